"""A top-up that was ordered and will not be paid: its rule backs off, and the tenant is told once."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from billing.db.transaction import Connection
from billing.ledger import repository as ledger
from billing.ledger.auto_top_up import RETRY_AFTER
from billing.money import Femto, decimal_of
from billing.notify.notice import Notice
from billing.notify.service import emit
from billing.payments.order import is_automatic

SWITCHED_OFF: Final = "switched_off"  # the tenant did it, and needs no telling


@dataclass(frozen=True, slots=True)
class Declined:
    """An order, what it was to bring, and the provider's word for why it did not."""

    order_id: str
    tenant_id: str
    amount: Femto
    currency: str
    code: str


async def decline(connection: Connection, declined: Declined, at: datetime) -> None:
    """Note it in the settler's transaction that is open; the tenant is told once an order."""
    if is_automatic(declined.order_id, declined.tenant_id):
        retry_at = [at + pause for pause in RETRY_AFTER]
        await ledger.update_declines(connection, declined.tenant_id, retry_at)
    if declined.code == SWITCHED_OFF:
        return
    facts = {
        "order_id": declined.order_id,
        "amount": decimal_of(declined.amount),
        "currency": declined.currency,
        "code": declined.code,
    }
    occasion = f"payment.failed/{declined.order_id}"
    await emit(connection, Notice(declined.tenant_id, "payment.failed", at, facts, occasion))
