"""All tables. Money is NUMERIC(38,0) femto-units; instants are TIMESTAMPTZ; the ledger only grows."""

from billing.db.tables.alert import balance_alert, promise_watermark
from billing.db.tables.audit import audit_event, audit_head
from billing.db.tables.billing_terms import billing_profile, billing_terms, coupon
from billing.db.tables.catalog import model_alias
from billing.db.tables.dunning import dunning_step
from billing.db.tables.export import usage_export
from billing.db.tables.idempotency import idempotency_record
from billing.db.tables.invoice import (
    invoice,
    invoice_line,
    invoice_payment,
    invoice_usage,
    number_series,
)
from billing.db.tables.ledger import balance, credit_lot, ledger_entry, ledger_transaction
from billing.db.tables.log import log_state, receipt_leaf, tree_head, tree_node
from billing.db.tables.notify import (
    notice,
    webhook_attempt,
    webhook_delivery,
    webhook_endpoint,
    webhook_secret,
)
from billing.db.tables.payment import payment, payment_customer, payment_inbox, payment_outbox
from billing.db.tables.pricing import price_plan, price_row, price_tier, price_window, tenant_plan
from billing.db.tables.quarantine import usage_quarantine
from billing.db.tables.receipts import attestation, worker_certificate
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
    "balance_alert",
    "billing_profile",
    "billing_terms",
    "budget",
    "coupon",
    "credit_lot",
    "dunning_step",
    "idempotency_record",
    "invoice",
    "invoice_line",
    "invoice_payment",
    "invoice_usage",
    "key_secret",
    "ledger_entry",
    "ledger_transaction",
    "log_state",
    "metadata",
    "model_alias",
    "notice",
    "number_series",
    "payment",
    "payment_customer",
    "payment_inbox",
    "payment_outbox",
    "price_plan",
    "price_row",
    "price_tier",
    "price_window",
    "project",
    "promise_watermark",
    "receipt_leaf",
    "rollup_watermark",
    "tenant",
    "tenant_plan",
    "tenant_user",
    "top_up_request",
    "tree_head",
    "tree_node",
    "usage_event",
    "usage_export",
    "usage_limit",
    "usage_quarantine",
    "usage_rollup",
    "webhook_attempt",
    "webhook_delivery",
    "webhook_endpoint",
    "webhook_secret",
    "worker_certificate",
]
