"""Take no entries that leave their transaction unbalanced: once a statement, which has all of them.

One phase: expand.
"""

from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE FUNCTION ledger_entry_balanced() RETURNS trigger
        LANGUAGE plpgsql AS $$
        DECLARE open uuid;
        BEGIN
            SELECT transaction_id INTO open FROM added GROUP BY 1 HAVING sum(amount) <> 0 LIMIT 1;
            IF open IS NOT NULL THEN
                RAISE check_violation USING CONSTRAINT = 'ck_ledger_entry_balanced',
                    MESSAGE = format('entries of transaction %s do not sum to zero', open);
            END IF;
            RETURN NULL;
        END $$
    """)
    op.execute("""
        CREATE TRIGGER ledger_entry_balanced AFTER INSERT ON ledger_entry
        REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION ledger_entry_balanced()
    """)


def downgrade() -> None:
    op.execute("DROP TRIGGER ledger_entry_balanced ON ledger_entry")
    op.execute("DROP FUNCTION ledger_entry_balanced")
