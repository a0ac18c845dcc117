"""What the key's organisation has, owes and was given. To be read: nobody gives himself credit."""

from datetime import datetime
from typing import Final, Literal

import msgspec
from litestar import get

from billing.ledger.credit import MovementRow
from billing.ledger.entries import Kind
from billing.money import Femto, decimal_of
from billing.tenancy.tenant import BillingMode
from gateway.desk import AnyRequest, desk_of
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Listed, RowsMax


class CreditShown(msgspec.Struct):
    """Exact decimals in ``currency``. ``topped_up`` below zero is debt, ``receivable`` what will be invoiced.

    ``spendable`` is what requests may hold: a postpaid organisation's credit waits for its invoice.
    """

    currency: str
    billing_mode: BillingMode
    credit_limit: str
    granted: str
    topped_up: str
    receivable: str
    spendable: str
    object: Literal["organization.credit"] = "organization.credit"


class MovementShown(msgspec.Struct):
    """Money that moved, but for charges; what came in is above zero. ``remaining`` is of what it opened."""

    id: str
    kind: Kind
    at: datetime
    amount: str
    currency: str
    remaining: str | None
    expires_at: datetime | None
    priority: int | None
    reason: str
    object: Literal["organization.credit.movement"] = "organization.credit.movement"


@get("/credit")
async def show_credit(request: AnyRequest) -> CreditShown:
    """Show what the organisation has and owes, by the ledger."""
    balance = await desk_of(request).ledger.balance(edge.manager(request).tenant_id)
    return CreditShown(
        currency=balance.currency,
        billing_mode=balance.terms.mode,
        credit_limit=decimal_of(balance.terms.credit_limit),
        granted=decimal_of(balance.granted),
        topped_up=decimal_of(balance.topped_up),
        receivable=decimal_of(balance.receivable),
        spendable=decimal_of(balance.spendable),
    )


@get("/credit/movements")
async def list_movements(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[MovementShown]:
    """List grants, top-ups, refunds, write-offs, corrections and what expired."""
    by = edge.manager(request)
    rows = reversed(await desk_of(request).ledger.movements(by.tenant_id))
    page = [row for row in rows if after is None or str(row.transaction_id) > after]
    return edge.listed(page, limit, lambda row: _shown(row, by.currency))


def _shown(row: MovementRow, currency: str) -> MovementShown:
    effect = row.effect
    return MovementShown(
        id=str(row.transaction_id),
        kind=effect.kind,
        at=row.at,
        amount=decimal_of(Femto(-effect.amount)),
        currency=currency,
        remaining=None if row.remaining is None else decimal_of(Femto(row.remaining)),
        expires_at=effect.expires_at,
        priority=effect.priority,
        reason=row.reason,
    )


HANDLERS: Final = [show_credit, list_movements]
