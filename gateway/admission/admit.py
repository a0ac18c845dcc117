"""Take a hold, renew its lease, release it: one atomic script each. Request id and instant are made here."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.request_id import RANDOM_BYTES
from gateway.refusal import BalanceHeld, BalanceInsufficient, BalanceUnknown
from gateway.valkey import Script, Valkey, Word

LIMB: Final = 10**9
TENANTS_HELD: Final = "kv:held"  # every tenant that ever held; global, for the sweeper
LOST_HOLDS: Final = "kv:lost"  # what the sweeper voided without an event, newest last
LOST_HOLDS_MAX: Final = 10_000
EXPIRED_BATCH: Final = 500

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _script(name: str) -> Script:
    return Script(Path(__file__).with_name(name).read_text(encoding="utf-8"))


ADMIT: Final = _script("admit.lua")
RELEASE: Final = _script("release.lua")
RENEW: Final = _script("renew.lua")
EXPIRED: Final = _script("expired.lua")


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation that stands. ``admitted_at`` is Valkey's TIME, the only clock that rates anything."""

    request_id: UUID
    tenant_id: str
    amount: Femto
    admitted_at: datetime


@dataclass(frozen=True, slots=True)
class Held:
    """One tenant's rows as Valkey has them: for audits and tests."""

    balance: Femto | None
    version: int
    held: Femto
    holds: dict[str, Femto]
    leases: frozenset[str]


class Admission:
    """Holds of all tenants. Every method raises ValkeyUnavailable when Valkey does not answer."""

    def __init__(self, valkey: Valkey, *, lease_s: float = 30.0, retry_after_s: int = 5) -> None:
        self._valkey = valkey
        self._lease_ms = round(lease_s * 1000)
        self._retry_after_s = retry_after_s

    async def admit(self, tenant_id: str, amount: Femto) -> Hold:
        """Hold ``amount``, all or nothing.

        Raises:
            BalanceUnknown: project the tenant's balance, then ask once more.
            BalanceInsufficient: the balance itself is less than the amount.
            BalanceHeld: requests in flight hold what is missing.
        """
        assert amount >= 0
        arguments: tuple[Word, ...] = (*limbs(amount), secrets.token_hex(RANDOM_BYTES), self._lease_ms)
        _, reply = await asyncio.gather(
            self._valkey.call("SADD", TENANTS_HELD, tenant_id),  # first: no hold that no sweeper looks for
            self._valkey.run(ADMIT, _keys(tenant_id), arguments),
        )
        match reply:
            case ["admitted", request_id, time_us]:
                admitted_at = EPOCH + timedelta(microseconds=int(time_us))
                return Hold(UUID(request_id), tenant_id, amount, admitted_at)
            case ["insufficient_balance"]:
                raise BalanceInsufficient
            case ["balance_held"]:
                raise BalanceHeld(self._retry_after_s)
            case _:
                raise BalanceUnknown

    async def renew(self, tenant_id: str, request_ids: Sequence[UUID]) -> int:
        """Extend the leases of holds that still stand; returns how many did."""
        _, holds, leases = _keys(tenant_id)
        words: list[Word] = [self._lease_ms, *(str(request_id) for request_id in request_ids)]
        return int(await self._valkey.run(RENEW, (holds, leases), words))

    async def release(self, hold: Hold, balance: BalanceVersion) -> bool:
        """Drop the hold and take over the settled balance; returns whether the hold was still there."""
        assert balance.tenant_id == hold.tenant_id
        return await self.release_id(hold.tenant_id, hold.request_id, balance)

    async def void(self, hold: Hold) -> bool:
        """Drop the hold of a request that was charged nothing; returns whether it was still there."""
        return await self.release_id(hold.tenant_id, hold.request_id, None)

    async def release_id(self, tenant_id: str, request_id: UUID, balance: BalanceVersion | None) -> bool:
        """Release by id (the sweeper has no more); idempotent, in any order with `project`."""
        words = (str(request_id), *_versioned(balance))
        return bool(await self._valkey.run(RELEASE, _keys(tenant_id), words))

    async def project(self, balance: BalanceVersion) -> None:
        """Take over a balance if it is newer than the one known."""
        await self._valkey.run(RELEASE, _keys(balance.tenant_id), ("", *_versioned(balance)))

    async def forget(self, tenant_id: str) -> None:
        """Drop the projected balance but no hold: the next admission reads the ledger again."""
        await self._valkey.call("HDEL", _keys(tenant_id)[0], "hi", "lo", "version")

    async def tenants(self) -> list[str]:
        """List tenants that may hold something."""
        return sorted(await self._valkey.call("SMEMBERS", TENANTS_HELD))

    async def expired(self, tenant_id: str) -> dict[UUID, timedelta]:
        """Find holds whose lease ran out, and how long ago; the longest first, at most `EXPIRED_BATCH`."""
        found = await self._valkey.run(EXPIRED, (_keys(tenant_id)[2],), (EXPIRED_BATCH,))
        ages = (timedelta(milliseconds=int(age_ms)) for age_ms in found[1::2])
        return dict(zip(map(UUID, found[::2]), ages, strict=True))

    async def record_lost(self, tenant_id: str, request_id: UUID) -> None:
        """Keep a trace of a hold that is about to be voided without an event."""
        words = ("XADD", LOST_HOLDS, "MAXLEN", "~", LOST_HOLDS_MAX, "*")
        await self._valkey.call(*words, "tenant", tenant_id, "request_id", str(request_id))

    async def held(self, tenant_id: str) -> Held:
        """Read one tenant's rows."""
        balance_key, holds_key, leases_key = _keys(tenant_id)
        row = _pairs(await self._valkey.call("HGETALL", balance_key))
        holds = _pairs(await self._valkey.call("HGETALL", holds_key))
        leases = await self._valkey.call("ZRANGE", leases_key, 0, -1)
        return Held(
            balance=_amount(row["hi"], row["lo"]) if "version" in row else None,
            version=int(row.get("version", 0)),
            held=_amount(row.get("held_hi", "0"), row.get("held_lo", "0")),
            holds={request_id: _amount(*text.split(":")) for request_id, text in holds.items()},
            leases=frozenset(leases),
        )

    async def check_integrity(self, tenant_id: str) -> list[str]:
        """Name what contradicts itself; only meaningful while nothing is admitted."""
        rows = await self.held(tenant_id)
        faults = []
        if sum(rows.holds.values()) != rows.held:
            faults.append(f"{tenant_id}: {len(rows.holds)} holds do not sum to {rows.held}")
        if rows.leases != rows.holds.keys():
            faults.append(f"{tenant_id}: {len(rows.leases)} leases for {len(rows.holds)} holds")
        return faults


def limbs(amount: int) -> tuple[int, int]:
    """Split femto-units into micro-units (any sign) and a rest below 10^9: exact in Lua's doubles."""
    return divmod(amount, LIMB)


def _amount(hi: str, lo: str) -> Femto:
    assert 0 <= int(lo) < LIMB, f"limbs {hi} and {lo} are not normalised"
    return Femto(int(hi) * LIMB + int(lo))


def _versioned(balance: BalanceVersion | None) -> tuple[str | int, ...]:
    return ("", "", "") if balance is None else (*limbs(balance.balance), balance.version)


def _keys(tenant_id: str) -> tuple[str, str, str]:
    tag = "kv:{" + tenant_id + "}"
    return f"{tag}:balance", f"{tag}:holds", f"{tag}:leases"


def _pairs(reply: dict[str, str] | list[str]) -> dict[str, str]:
    """Read HGETALL, which a raw pipeline answers flat and a typed one as a mapping."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
