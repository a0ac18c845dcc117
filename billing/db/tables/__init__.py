"""All tables. Money is NUMERIC(38,0) femto-units; instants are TIMESTAMPTZ; the ledger only grows."""

from billing.db.tables.ledger import balance, credit_lot, ledger_entry, ledger_transaction
from billing.db.tables.pricing import price_row, price_window
from billing.db.tables.quarantine import usage_quarantine
from billing.db.tables.receipts import attestation
from billing.db.tables.schema import metadata
from billing.db.tables.tenancy import api_key, tenant
from billing.db.tables.usage import usage_event

__all__ = [
    "api_key",
    "attestation",
    "balance",
    "credit_lot",
    "ledger_entry",
    "ledger_transaction",
    "metadata",
    "price_row",
    "price_window",
    "tenant",
    "usage_event",
    "usage_quarantine",
]
