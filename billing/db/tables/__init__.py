"""All tables. Money is NUMERIC(38,0) femto-units; instants are TIMESTAMPTZ; the ledger only grows."""

from billing.db.tables.audit import audit_event, audit_head
from billing.db.tables.ledger import balance, credit_lot, ledger_entry, ledger_transaction
from billing.db.tables.pricing import price_row, price_window
from billing.db.tables.receipts import attestation
from billing.db.tables.schema import metadata
from billing.db.tables.tenancy import api_key, budget, key_secret, project, tenant, tenant_user, usage_limit
from billing.db.tables.usage import usage_attempt, usage_event

__all__ = [
    "api_key",
    "attestation",
    "audit_event",
    "audit_head",
    "balance",
    "budget",
    "credit_lot",
    "key_secret",
    "ledger_entry",
    "ledger_transaction",
    "metadata",
    "price_row",
    "price_window",
    "project",
    "tenant",
    "tenant_user",
    "usage_attempt",
    "usage_event",
    "usage_limit",
]
