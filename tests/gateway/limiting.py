"""Limits, budgets and demands by hand, as a key's grant would carry them."""

from typing import Any

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.tenancy.limits import Budget, Limit
from gateway.admission.admit import Admission
from gateway.admission.hold import Hold
from gateway.admission.limits import Demand, counted
from gateway.refusal import LimitReached

TENANT, KEY = "ten_a", "key_a"
MODEL = "m/1 b"
RICH = Femto(10**24)


def limit(measure: Any, amount: int, **fields: Any) -> Limit:
    return Limit(**{"level": "key", "owner_id": KEY, "measure": measure, "amount": amount, **fields})


def budget(amount: int, **fields: Any) -> Budget:
    whole = {
        "id": "bud_a",
        "level": "tenant",
        "owner_id": TENANT,
        "period": "lifetime",
        "tz": "UTC",
        **fields,
    }
    return Budget(amount=Femto(amount), **whole)


def demand(*limits: Limit, tokens: tuple[int, int] = (1, 1), model: str = MODEL, user: str = "") -> Demand:
    return Demand(*tokens, limits=counted(limits, model, user))


async def rich(admission: Admission, tenant_id: str = TENANT) -> Admission:
    await admission.project(BalanceVersion(tenant_id, RICH, 1))
    return admission


async def tried(admission: Admission, asked: Demand) -> Hold | None:
    """The hold, or None where a limit refused."""
    try:
        return await admission.admit(TENANT, Femto(1), asked)
    except LimitReached:
        return None
