"""The types that rows of bulk statements travel in (`billing/db/bulk.py`), money and JSON as text.

One phase: expand. A type never changes: processes that know it write on while migrations run. New columns
that a statement is to fill come in a new type.
"""

from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None

TYPES = {
    "new_usage_event": """
        request_id uuid, tenant_id text, key_id text, model text, status text, traffic_class text,
        admitted_at timestamptz, rated_at timestamptz,
        cache_hit integer, cache_owed integer, cache_write integer, cache_miss integer,
        output integer, reasoning integer,
        charge text, currency text, price_row_id text, price_window text, tier text, attempts text
    """,
    "new_attestation": """
        request_id uuid, attempt integer, kind text, tenant_id text, worker text, document text
    """,
    "new_idempotency_record": """
        tenant_id text, key_digest bytea, body_digest bytea, request_id uuid, status text,
        created_at timestamptz, expires_at timestamptz
    """,
    "new_ledger_transaction": """
        id uuid, tenant_id text, kind text, at timestamptz, actor text, reason text, idempotency_key text
    """,
    "new_ledger_entry": """
        transaction_id uuid, position smallint, tenant_id text, account text, lot_id uuid, amount text
    """,
    "new_credit_lot": """
        tenant_id text, id uuid, account text, amount text, remaining text,
        created_at timestamptz, expires_at timestamptz, priority smallint
    """,
    "new_balance": "tenant_id text, granted text, topped_up text, receivable text, version bigint",
    "wanted_balance": "tenant_id text",
}


def upgrade() -> None:
    for name, columns in TYPES.items():
        op.execute(f"CREATE TYPE {name} AS ({columns})")


def downgrade() -> None:
    for name in TYPES:
        op.execute(f"DROP TYPE {name}")
