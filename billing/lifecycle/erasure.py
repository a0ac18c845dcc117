"""What an erasure drops, by what it is: each package erases its own rows, in one transaction.

Who keeps anything that names people of a tenant, or opens doors, adds its function here. Rows that money or
proofs rest on stay, and hold nothing but ids.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Final

from billing.alerts.repository import delete_balance_alert
from billing.db.transaction import Connection
from billing.invoicing.agreements.repository import delete_profile
from billing.ledger.repository import disable_auto_top_up
from billing.lifecycle.repository import blank_payment_events
from billing.notify.repository import delete_endpoints, delete_notices
from billing.settlement.repository import delete_answers_of
from billing.tenancy.projects.repository import erase_projects
from billing.tenancy.repository import erase_keys, erase_nonce_secret
from billing.tenancy.users.repository import delete_users

Erase = Callable[[Connection, str, datetime], Awaitable[int]]

ERASURES: Final[Mapping[str, Erase]] = {
    "keys": erase_keys,
    "projects": lambda connection, tenant_id, _: erase_projects(connection, tenant_id),
    "users": lambda connection, tenant_id, _: delete_users(connection, tenant_id),
    "profiles": lambda connection, tenant_id, _: delete_profile(connection, tenant_id),
    "prompt_nonces": lambda connection, tenant_id, _: erase_nonce_secret(connection, tenant_id),
    "webhooks": lambda connection, tenant_id, _: delete_endpoints(connection, tenant_id),
    "notices": lambda connection, tenant_id, _: delete_notices(connection, tenant_id),
    "alerts": lambda connection, tenant_id, _: delete_balance_alert(connection, tenant_id),
    "top_up_rules": lambda connection, tenant_id, _: disable_auto_top_up(connection, tenant_id),
    "payment_events": lambda connection, tenant_id, _: blank_payment_events(connection, tenant_id),
    "idempotency_records": lambda connection, tenant_id, _: delete_answers_of(connection, tenant_id),
}
