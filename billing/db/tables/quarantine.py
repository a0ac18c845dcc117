"""Usage that cannot be."""

from typing import Final

from sqlalchemy import Column, Table, Text, Uuid, func

from billing.db.tables.schema import instant, metadata

usage_quarantine: Final = Table(
    "usage_quarantine",
    metadata,
    Column("request_id", Uuid, primary_key=True, comment="it has no event, and will have none"),
    Column("tenant_id", Text, nullable=False, comment="without a key: it may be what is wrong"),
    Column("reason", Text, nullable=False),
    Column("attestation", Text, comment="as its worker signed it"),
    Column("recorded_at", instant(), nullable=False, server_default=func.now()),
)
