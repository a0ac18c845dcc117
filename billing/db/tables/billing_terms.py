"""What tenants are billed by beside prices, and how documents name them."""

from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, Column, Date, ForeignKey, Integer, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from billing.db.tables.schema import instant, metadata

billing_profile: Final = Table(
    "billing_profile",
    metadata,
    Column("tenant_id", Text, primary_key=True, comment="or house: who sells"),
    Column("profile", JSONB, nullable=False, comment="personal: erased with the tenant"),
    Column("set_at", instant(), nullable=False),
    Column("set_by", Text, nullable=False),
)

billing_terms: Final = Table(
    "billing_terms",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("effective_from", Date, primary_key=True, comment="a day of the tenant's zone"),
    Column("revision", Integer, primary_key=True, autoincrement=False, comment="the highest of a day holds"),
    Column("terms", JSONB, nullable=False),
    Column("set_at", instant(), nullable=False),
    Column("set_by", Text, nullable=False),
)

coupon: Final = Table(
    "coupon",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("code", Text, primary_key=True),
    Column("percent", Text),
    Column("cents", BigInteger),
    Column("minimum_cents", BigInteger, nullable=False),
    Column("periods", Integer, comment="that it is used in; null: all"),
    Column("effective_from", Date, nullable=False, comment="a day of the tenant's zone"),
    Column("given_at", instant(), nullable=False),
    Column("given_by", Text, nullable=False),
    Column("ended_at", instant(), comment="taken back"),
    CheckConstraint("num_nulls(percent, cents) = 1", name="off"),
    CheckConstraint("cents > 0", name="cents"),
    CheckConstraint("periods > 0", name="periods"),
    CheckConstraint("minimum_cents >= 0", name="minimum_cents"),
)
