"""What workers have signed."""

from typing import Final

from sqlalchemy import CheckConstraint, Column, Integer, Table, Text, Uuid, func

from billing.db.tables.schema import instant, metadata

attestation: Final = Table(
    "attestation",
    metadata,
    Column("request_id", Uuid, primary_key=True, comment="its event may come later, or never"),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    Column("tenant_id", Text, comment="of its memo, when that names one"),
    Column("worker", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("recorded_at", instant(), nullable=False, server_default=func.now()),
    CheckConstraint("attempt >= 0", name="attempt"),
    CheckConstraint("kind IN ('prefill', 'decode')", name="kind"),
)

worker_certificate: Final = Table(
    "worker_certificate",
    metadata,
    Column("key_id", Text, primary_key=True, comment="of the worker's key, as its attestations name it"),
    Column("worker", Text, nullable=False),
    Column("document", Text, nullable=False, comment="as the deployment signed it"),
    Column("recorded_at", instant(), nullable=False, server_default=func.now()),
)
