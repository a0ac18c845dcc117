"""Who changed what. Rows are appended and never edited."""

from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, Column, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from billing.db.tables.schema import instant, metadata

audit_event: Final = Table(
    "audit_event",
    metadata,
    Column("tenant_id", Text, primary_key=True, comment="or house: its own chain"),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("at", instant(), nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("before", JSONB(none_as_null=True)),
    Column("after", JSONB(none_as_null=True)),
    Column("hash", LargeBinary, nullable=False),
    Column("digest", LargeBinary, comment="of the facts and the salt; null: the hash covers the facts"),
    Column("salt", LargeBinary, comment="null beside a digest: the facts were dropped"),
    CheckConstraint("position > 0", name="position"),
    CheckConstraint("octet_length(hash) = 32", name="hash"),
    CheckConstraint("octet_length(digest) = 32 AND octet_length(salt) = 32", name="digest"),
)

audit_head: Final = Table(
    "audit_head",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("position", BigInteger, nullable=False, comment="of the newest event"),
    Column("hash", LargeBinary, nullable=False, comment="of the newest event"),
    CheckConstraint("position >= 0", name="position"),
    CheckConstraint("octet_length(hash) = 32", name="hash"),
)
