"""Say of a lot that it is spent, for indexes that a charge does not change.

An update of a column that an index names, also in its condition, writes into every index of the table.
One phase: expand.
"""

from alembic import op

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None

INDEXES = {"ix_credit_lot_open": "tenant_id", "ix_credit_lot_expiring": "expires_at"}


def upgrade() -> None:
    op.execute("ALTER TABLE credit_lot ADD COLUMN spent boolean GENERATED ALWAYS AS (remaining = 0) STORED")
    index("NOT spent")


def downgrade() -> None:
    index("remaining > 0")
    op.drop_column("credit_lot", "spent")


def index(condition: str) -> None:
    for name, column in INDEXES.items():
        op.drop_index(name, "credit_lot")
        op.execute(f"CREATE INDEX {name} ON credit_lot ({column}) WHERE {condition}")
