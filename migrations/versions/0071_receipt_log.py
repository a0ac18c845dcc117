"""The receipt log: leaves, nodes and heads of its tree, and the one row that its sequencer locks.

A leaf is a fact: the settler appends it. The operator may erase what it was made of, and nothing else: row
security lets no update through that leaves a nonce or a receipt.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import OPERATOR_ROLE, SETTLER_ROLE
from migrations.protection import close, open_to_all, protect, unprotect

revision = "0071"
down_revision = "0070"
branch_labels = None
depends_on = None

ROWS = {
    "new_receipt_leaf": "leaf_index bigint, request_id uuid, tenant_id text, rated_at timestamptz,"
    " leaf bytea, nonce bytea, receipt text",
    "new_tree_node": "level smallint, position bigint, hash bytea",
}


def upgrade() -> None:
    _leaves()
    _tree()
    _state()
    for name, columns in ROWS.items():
        op.execute(f"CREATE TYPE {name} AS ({columns})")
    protect("receipt_leaf", {SETTLER_ROLE: "INSERT", OPERATOR_ROLE: "UPDATE (nonce, receipt)"})
    op.execute(
        "CREATE POLICY erased_alone ON receipt_leaf AS RESTRICTIVE FOR UPDATE"
        " USING (true) WITH CHECK (nonce IS NULL AND receipt IS NULL)"
    )
    for table in ("tree_node", "tree_head"):
        open_to_all(table, {SETTLER_ROLE: "INSERT"})
    open_to_all("log_state", {SETTLER_ROLE: "UPDATE"})


def downgrade() -> None:
    for table in ("log_state", "tree_head", "tree_node"):
        close(table)
    op.execute("DROP POLICY erased_alone ON receipt_leaf")
    unprotect("receipt_leaf")
    for name in ROWS:
        op.execute(f"DROP TYPE {name}")
    for table in ("log_state", "tree_head", "tree_node", "receipt_leaf"):
        op.drop_table(table)


def _leaves() -> None:
    op.create_table(
        "receipt_leaf",
        sa.Column("leaf_index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("rated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("leaf", sa.LargeBinary(), nullable=False, comment="hash of nonce and receipt"),
        sa.Column("nonce", sa.LargeBinary(), comment="null: erased, with the receipt"),
        sa.Column("receipt", sa.Text(), comment="canonical JSON"),
        sa.CheckConstraint("leaf_index >= 0", name=op.f("ck_receipt_leaf_leaf_index")),
        sa.CheckConstraint("octet_length(leaf) = 32", name=op.f("ck_receipt_leaf_leaf")),
        sa.CheckConstraint("octet_length(nonce) = 32", name=op.f("ck_receipt_leaf_nonce")),
        sa.CheckConstraint("(nonce IS NULL) = (receipt IS NULL)", name=op.f("ck_receipt_leaf_erased")),
        sa.PrimaryKeyConstraint("leaf_index", name=op.f("pk_receipt_leaf")),
        sa.UniqueConstraint("request_id", name=op.f("uq_receipt_leaf_request_id")),
    )
    op.create_index(op.f("ix_receipt_leaf_tenant_id_leaf_index"), "receipt_leaf", ["tenant_id", "leaf_index"])


def _tree() -> None:
    op.create_table(
        "tree_node",
        sa.Column("level", sa.SmallInteger(), autoincrement=False, nullable=False, comment="0: a leaf"),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("octet_length(hash) = 32", name=op.f("ck_tree_node_hash")),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_tree_node")),
    )
    op.create_table(
        "tree_head",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False, comment="a whole second"),
        sa.Column(
            "cut",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="its leaves are the events recorded before",
        ),
        sa.Column("document", sa.Text(), nullable=False, comment="as the deployment signed it"),
        sa.CheckConstraint("size >= 0", name=op.f("ck_tree_head_size")),
        sa.CheckConstraint("octet_length(root) = 32", name=op.f("ck_tree_head_root")),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_tree_head")),
    )


def _state() -> None:
    op.create_table(
        "log_state",
        sa.Column(
            "only",
            sa.Boolean(),
            server_default=sa.true(),
            nullable=False,
            comment="one row: who locks it seals",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column(
            "sealed_before",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="leaves are the events recorded before",
        ),
        sa.CheckConstraint('"only"', name=op.f("ck_log_state_only")),
        sa.CheckConstraint("size >= 0", name=op.f("ck_log_state_size")),
        sa.PrimaryKeyConstraint("only", name=op.f("pk_log_state")),
    )
    op.execute("INSERT INTO log_state (size, sealed_before) VALUES (0, 'epoch')")
