"""What older versions moved without saying why gets the words that are true of it.

One phase: backfill.
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column, of_expiry in (("actor", "system"), ("reason", "expired")):
        op.execute(f"""
            UPDATE ledger_transaction
            SET {column} = CASE kind WHEN 'expiry' THEN '{of_expiry}' ELSE 'not recorded' END
            WHERE kind <> 'charge' AND coalesce({column}, '') = ''
        """)  # noqa: S608  names of this file


def downgrade() -> None:
    """Nothing to take back: the words stay true."""
