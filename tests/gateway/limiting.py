"""Limits, budgets and demands by hand, as a key's grant would carry them."""

from pathlib import Path
from typing import Any

import gateway.admission
from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.tenancy.limits import Budget, Limit
from gateway.admission.admit import Admission
from gateway.admission.hold import Hold
from gateway.admission.limits import Demand, counted
from gateway.refusal import LimitReached
from gateway.valkey import Script, Valkey

TENANT, KEY = "ten_a", "key_a"
MODEL = "m/1 b"
RICH = Femto(10**24)
MINUTE_US = 60_000_000
LUA = Path(gateway.admission.__file__).parent
PRELUDE = (LUA / "limbs.lua").read_text() + (LUA / "bucket.lua").read_text() + "\n"
READ_BUCKET = Script(
    PRELUDE + "local w, r, at = struct.unpack(BUCKET, redis.call('GET', KEYS[1]))"
    " return {digits(w), digits(r), digits(at)}"
)


async def bucket(valkey: Valkey, key: str, window_us: int = MINUTE_US) -> tuple[int, int]:
    """A bucket in Valkey: its level in units of 1 / window, as it stood at an instant in us."""
    whole, rest, at_us = await valkey.run(READ_BUCKET, (key,), ())
    return int(whole) * window_us + int(rest), int(at_us)


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
