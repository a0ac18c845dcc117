"""What a tenant has left, in DeepSeek's shape: amounts are exact decimal strings."""

from typing import Any

from litestar import get

from billing.money import Femto, decimal_of
from gateway import paths
from gateway.desk import AnyRequest, caller, desk_of


@get(list(paths.BALANCE))
async def show_balance(request: AnyRequest) -> dict[str, Any]:
    """Read the balance from the ledger, not from its projection: what is shown is what is owned.

    ``topped_up_balance`` below zero is what the tenant owes. In either mode it is available while something
    can be spent; of a postpaid tenant that is up to its credit limit.
    """
    grant = await caller(request, "usage_read")
    balance = await desk_of(request).ledger.balance(grant.tenant_id)
    return {
        "is_available": balance.spendable > 0,
        "balance_infos": [
            {
                "currency": balance.currency,
                "total_balance": _amount(balance.total),
                "granted_balance": _amount(balance.granted),
                "topped_up_balance": _amount(Femto(balance.topped_up + balance.receivable)),
            }
        ],
    }


def _amount(amount: Femto) -> str:
    """Write an amount exactly, with two decimals at least."""
    units, _, fraction = decimal_of(amount).partition(".")
    return f"{units}.{fraction.ljust(2, '0')}"
