"""Check once a statement, not once a row, what usage events refer to; trust what one transaction writes.

A foreign key costs a look-up and a lock a row: nine of them took more of a settlement than all its rows and
indexes. One phase: contract.
"""

from alembic import op

revision = "0030"
down_revision = "0022"
branch_labels = None
depends_on = None

FOREIGN_KEYS = (
    (
        "usage_event",
        "fk_usage_event_key_id_tenant_id",
        ["key_id", "tenant_id"],
        "api_key",
        ["id", "tenant_id"],
    ),
    ("usage_event", "fk_usage_event_price_row_id", ["price_row_id"], "price_row", ["id"]),
    (
        "usage_event",
        "fk_usage_event_tenant_id_currency",
        ["tenant_id", "currency"],
        "tenant",
        ["id", "currency"],
    ),
    ("usage_attempt", "fk_usage_attempt_request_id", ["request_id"], "usage_event", ["request_id"]),
    ("ledger_transaction", "fk_ledger_transaction_tenant_id", ["tenant_id"], "tenant", ["id"]),
    ("ledger_entry", "fk_ledger_entry_transaction_id", ["transaction_id"], "ledger_transaction", ["id"]),
    ("ledger_entry", "fk_ledger_entry_lot_id", ["lot_id"], "credit_lot", ["id"]),
)

# Fails as the foreign keys did, by their names. Whoever writes events may read tenants, keys and prices.
REFERENCES = """
CREATE FUNCTION usage_event_references() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE broken text;
BEGIN
    SELECT CASE
        WHEN tenant.id IS NULL THEN 'fk_usage_event_tenant_id_currency'
        WHEN api_key.id IS NULL THEN 'fk_usage_event_key_id_tenant_id'
        ELSE 'fk_usage_event_price_row_id' END
    INTO broken
    FROM (SELECT DISTINCT tenant_id, currency, key_id, price_row_id FROM added) AS event
    LEFT JOIN tenant ON tenant.id = event.tenant_id AND tenant.currency = event.currency
    LEFT JOIN api_key ON api_key.id = event.key_id AND api_key.tenant_id = event.tenant_id
    LEFT JOIN price_row ON price_row.id = event.price_row_id
    WHERE tenant.id IS NULL OR api_key.id IS NULL OR price_row.id IS NULL
    LIMIT 1;
    IF broken IS NOT NULL THEN
        RAISE foreign_key_violation
            USING MESSAGE = format('usage events violate "%s"', broken), CONSTRAINT = broken;
    END IF;
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    for table, name, *_ in FOREIGN_KEYS:
        op.drop_constraint(op.f(name), table)
    op.execute(REFERENCES)
    op.execute("""
        CREATE TRIGGER usage_event_references AFTER INSERT ON usage_event
        REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION usage_event_references()
    """)


def downgrade() -> None:
    op.execute("DROP TRIGGER usage_event_references ON usage_event")
    op.execute("DROP FUNCTION usage_event_references")
    for table, name, columns, referred, referred_columns in FOREIGN_KEYS:
        op.create_foreign_key(op.f(name), table, referred, columns, referred_columns)
