"""The receipt log: sealed receipts, the nodes of the Merkle tree over their leaves, and its signed heads."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    true,
)

from billing.db.tables.schema import instant, metadata

receipt_leaf: Final = Table(
    "receipt_leaf",
    metadata,
    Column("leaf_index", BigInteger, primary_key=True, autoincrement=False),
    Column("request_id", Uuid, nullable=False, unique=True),
    Column("tenant_id", Text, nullable=False),
    Column("rated_at", instant(), nullable=False),
    Column("leaf", LargeBinary, nullable=False, comment="hash of nonce and receipt"),
    Column("nonce", LargeBinary, comment="null: erased, with the receipt"),
    Column("receipt", Text, comment="canonical JSON"),
    CheckConstraint("leaf_index >= 0", name="leaf_index"),
    CheckConstraint("octet_length(leaf) = 32", name="leaf"),
    CheckConstraint("octet_length(nonce) = 32", name="nonce"),
    CheckConstraint("(nonce IS NULL) = (receipt IS NULL)", name="erased"),
    Index(None, "tenant_id", "leaf_index"),
)

tree_node: Final = Table(
    "tree_node",
    metadata,
    Column("level", SmallInteger, primary_key=True, autoincrement=False, comment="0: a leaf"),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    CheckConstraint("octet_length(hash) = 32", name="hash"),
)

tree_head: Final = Table(
    "tree_head",
    metadata,
    Column("size", BigInteger, primary_key=True, autoincrement=False),
    Column("root", LargeBinary, nullable=False),
    Column("at", instant(), nullable=False, comment="a whole second"),
    Column("cut", instant(), nullable=False, comment="its leaves are the events recorded before"),
    Column("document", Text, nullable=False, comment="as the deployment signed it"),
    CheckConstraint("size >= 0", name="size"),
    CheckConstraint("octet_length(root) = 32", name="root"),
)

log_state: Final = Table(
    "log_state",
    metadata,
    Column("only", Boolean, primary_key=True, server_default=true(), comment="one row: who locks it seals"),
    Column("size", BigInteger, nullable=False),
    Column("sealed_before", instant(), nullable=False, comment="leaves are the events recorded before"),
    CheckConstraint('"only"', name="only"),
    CheckConstraint("size >= 0", name="size"),
)
