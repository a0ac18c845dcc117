"""All tables. Money is NUMERIC(38,0) femto-units; instants are TIMESTAMPTZ; the ledger only grows."""

from billing.db.tables.audit import audit_event, audit_head
from billing.db.tables.catalog import model_alias
from billing.db.tables.idempotency import idempotency_record
from billing.db.tables.ledger import balance, credit_lot, ledger_entry, ledger_transaction
from billing.db.tables.payment import payment, payment_customer, payment_inbox, payment_outbox
from billing.db.tables.pricing import price_plan, price_row, price_tier, price_window, tenant_plan
from billing.db.tables.quarantine import usage_quarantine
from billing.db.tables.receipts import attestation
from billing.db.tables.rollup import rollup_watermark, usage_rollup
from billing.db.tables.schema import metadata
from billing.db.tables.tenancy import api_key, budget, key_secret, project, tenant, tenant_user, usage_limit
from billing.db.tables.top_up import auto_top_up, top_up_request
from billing.db.tables.usage import usage_event

__all__ = [
    "api_key",
    "attestation",
    "audit_event",
    "audit_head",
    "auto_top_up",
    "balance",
    "budget",
    "credit_lot",
    "idempotency_record",
    "key_secret",
    "ledger_entry",
    "ledger_transaction",
    "metadata",
    "model_alias",
    "payment",
    "payment_customer",
    "payment_inbox",
    "payment_outbox",
    "price_plan",
    "price_row",
    "price_tier",
    "price_window",
    "project",
    "rollup_watermark",
    "tenant",
    "tenant_plan",
    "tenant_user",
    "top_up_request",
    "usage_event",
    "usage_limit",
    "usage_quarantine",
    "usage_rollup",
]
