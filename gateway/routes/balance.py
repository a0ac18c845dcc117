"""What a tenant has left, in DeepSeek's shape: amounts are exact decimal strings."""

from typing import Any

from litestar import get

from billing.money import Femto, decimal_of
from gateway.desk import AnyRequest, caller, desk_of


@get(["/user/balance", "/v1/user/balance"])
async def show_balance(request: AnyRequest) -> dict[str, Any]:
    """Read the balance from the ledger, not from its projection: what is shown is what is owned."""
    grant = await caller(request, "usage_read")
    balance = await desk_of(request).ledger.balance(grant.tenant_id)
    return {
        "is_available": balance.total > 0,
        "balance_infos": [
            {
                "currency": balance.currency,
                "total_balance": _amount(balance.total),
                "granted_balance": _amount(balance.granted),
                "topped_up_balance": _amount(balance.topped_up),
            }
        ],
    }


def _amount(amount: Femto) -> str:
    """Write an amount exactly, with two decimals at least."""
    units, _, fraction = decimal_of(amount).partition(".")
    return f"{units}.{fraction.ljust(2, '0')}"
