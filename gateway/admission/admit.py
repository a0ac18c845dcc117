"""Take limits, budgets and a hold, renew, give back, release: one atomic script each; ids are minted."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.reports.usage_row import Use
from billing.request_id import RANDOM_BYTES
from billing.tenancy.limits import Budget
from billing.tenancy.periods import period_at
from gateway.admission import budgets
from gateway.admission.hold import (
    NOTHING_SPENT,
    Held,
    Hold,
    Spent,
    amount_of,
    instant_at,
    limbs,
    microseconds,
)
from gateway.admission.limits import AMOUNT_MAX, DAY, SLOT, Counted, Demand
from gateway.admission.quota import Left, Quota
from gateway.refusal import (
    BalanceHeld,
    BalanceInsufficient,
    BudgetHeld,
    BudgetReached,
    LimitReached,
    ProjectionMissing,
)
from gateway.valkey import Reply, Script, Valkey, Word

TENANTS_HELD: Final = "kv:held"  # every tenant that ever held; global, for the sweeper
LOST_HOLDS: Final = "kv:lost"  # what was let go without an event though workers may attest it, newest last
LOST_HOLDS_MAX: Final = 10_000
EXPIRED_BATCH: Final = 500
NOTHING_DEMANDED: Final = Demand()
TAKE_NOTHING: Final = -1  # for a lease, to the script
TELL_AGAIN_S: Final = 10.0
RETRY_AFTER_S_MAX: Final = 60  # clients that are told to wait for longer do not


def _script(*names: str) -> Script:
    """One script of several files: it begins with the functions that the last one calls."""
    return Script("\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names))


ADMIT: Final = _script("limbs.lua", "bucket.lua", "hold.lua", "admit.lua")
RELEASE: Final = _script("limbs.lua", "bucket.lua", "hold.lua", "release.lua")
PREFILLED: Final = _script("limbs.lua", "bucket.lua", "hold.lua", "prefilled.lua")
RENEW: Final = _script("limbs.lua", "bucket.lua", "hold.lua", "renew.lua")
PROJECT: Final = _script("limbs.lua", "bucket.lua", "project.lua")
FORGET: Final = _script("limbs.lua", "bucket.lua", "hold.lua", "forget.lua")
EXPIRED: Final = _script("expired.lua")


class Admission:
    """Holds of all tenants. Every method raises ValkeyUnavailable when Valkey does not answer."""

    def __init__(self, valkey: Valkey, *, lease_s: float = 30.0, retry_after_s: int = 5) -> None:
        self._valkey = valkey
        self._lease_ms = round(lease_s * 1000)
        self.retry_after_s = retry_after_s
        self._told_s: dict[str, float] = {}

    async def admit(self, tenant_id: str, amount: Femto, demand: Demand = NOTHING_DEMANDED) -> Hold:
        """Take every limit and budget, and hold ``amount``: all or nothing.

        Raises:
            ProjectionMissing: project what it names, then ask once more.
            BalanceInsufficient: the balance itself is less than the amount.
            BalanceHeld: requests in flight hold what is missing.
            BudgetReached, BudgetHeld: the same of a hard budget.
            LimitReached: a limit is used up for now, or allows none.
        """
        keys, arguments = _asked(tenant_id, amount, demand, self._lease_ms)
        reply = await self._run_told(tenant_id, ADMIT, keys, arguments)
        return self._admitted(tenant_id, amount, demand, reply)

    async def would_admit(self, tenant_id: str, amount: Femto, demand: Demand) -> None:
        """See whether `admit` would at this moment, and take nothing. Raises as that does."""
        reply = await self._valkey.run(ADMIT, *_asked(tenant_id, amount, demand, TAKE_NOTHING))
        if reply != ["allowed"]:
            self._admitted(tenant_id, amount, demand, reply)

    async def _run_told(
        self, tenant_id: str, script: Script, keys: Sequence[str], arguments: Sequence[Word]
    ) -> Reply:
        """Run a script that places or keeps holds; first name the tenant to sweepers, unless that was lately.

        A wipe takes the balance with the name: then both are told again.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s.get(tenant_id, -TELL_AGAIN_S) < TELL_AGAIN_S:
            return await self._valkey.run(script, keys, arguments)
        _, reply = await asyncio.gather(
            self._valkey.call("SADD", TENANTS_HELD, tenant_id), self._valkey.run(script, keys, arguments)
        )
        self._told_s[tenant_id] = now_s
        return reply

    def _admitted(self, tenant_id: str, amount: Femto, demand: Demand, reply: Reply) -> Hold:
        match reply:
            case ["admitted", request_id, time_us, *rest]:
                passed = list(zip((demand.budgets[n - 1].id for n in rest[6::2]), rest[7::2], strict=True))
                return Hold(
                    UUID(request_id),
                    tenant_id,
                    amount,
                    instant_at(time_us),
                    quota=_quota(demand.limits, rest[:6]),
                    strained=tuple(id_ for id_, _ in passed),
                    alerts=tuple(id_ for id_, new in passed if new),
                    gives_back=any(one.limit.cached_free for one in demand.limits),
                    parts=demand.parts,
                )
            case ["insufficient_balance"]:
                raise BalanceInsufficient
            case ["balance_held"]:
                raise BalanceHeld(self.retry_after_s)
            case ["budget", number, held]:
                budget = demand.budgets[number - 1]
                raise BudgetHeld(budget, self.retry_after_s) if held else BudgetReached(budget)
            case ["limit", number, wait_ms, *rest]:
                raise self._refused(demand, demand.limits[number - 1], wait_ms, _quota(demand.limits, rest))
            case ["unknown", time_us, *numbers]:
                self._told_s.pop(tenant_id, None)
                raise _missing(demand, time_us, numbers)
        raise AssertionError(f"admit.lua answered {reply}")

    def _refused(self, demand: Demand, by: Counted, wait_ms: int, quota: Quota) -> LimitReached:
        if by.letter == SLOT:  # nobody knows when another request ends
            wait_ms = self.retry_after_s * 1000
            quota = replace(quota, requests=Left(by.amount, 0, wait_ms))
        retry_after_s = min(max(1, -(-wait_ms // 1000)), RETRY_AFTER_S_MAX)
        return LimitReached(by.limit, demand.cost(by), retry_after_s, quota)

    async def prefilled(self, hold: Hold, cached_tokens: int) -> bool:
        """Give cached tokens back to limits that do not count them; returns whether the hold was there."""
        words = (str(hold.request_id), cached_tokens)
        return bool(await self._valkey.run(PREFILLED, _keys(hold.tenant_id)[:2], words))

    async def renew(self, tenant_id: str, request_ids: Sequence[UUID]) -> int:
        """Extend the leases of holds that still stand, slots included; returns how many did."""
        words: list[Word] = [self._lease_ms, *(str(request_id) for request_id in request_ids)]
        return int(await self._run_told(tenant_id, RENEW, _keys(tenant_id), words))

    async def release(self, hold: Hold, balance: BalanceVersion, spent: Spent | None = None) -> bool:
        """Drop the hold, settle what it took, take over the balance; returns whether the hold was there."""
        assert balance.tenant_id == hold.tenant_id
        return await self.release_id(hold.tenant_id, hold.request_id, balance, spent, hold.parts)

    async def void(self, hold: Hold) -> bool:
        """Drop the hold of a request that was charged nothing; returns whether it was still there."""
        return await self.release_id(hold.tenant_id, hold.request_id, None, NOTHING_SPENT, hold.parts)

    async def release_id(
        self,
        tenant_id: str,
        request_id: UUID | None,
        balance: BalanceVersion | None,
        spent: Spent | None = None,
        parts: str = "",
    ) -> bool:
        """Release by id (the sweeper has no more); idempotent, in any order with `project`.

        Args:
            spent: None where it is not known: tokens stay counted, and budgets are read from Postgres again.
            parts: of the hold, for one that Valkey may have lost, or never had.
        """
        words = (
            "" if request_id is None else str(request_id),
            *_versioned(balance),
            *(("",) * 6 if spent is None else spent.words),
            parts,
        )
        return bool(await self._valkey.run(RELEASE, _keys(tenant_id), words))

    async def project(self, balance: BalanceVersion) -> None:
        """Take over a balance if it is newer than the one known."""
        await self.release_id(balance.tenant_id, None, balance)

    async def project_budget(self, tenant_id: str, budget: Budget, use: Use, at: datetime) -> bool:
        """Take over what is spent of a budget in its period at ``at``; no if something later was seen."""
        period = period_at(budget, at)
        bounds = (microseconds(period.start), microseconds(period.until))
        keys = (_tag(tenant_id) + "projected", _tag(tenant_id) + budgets.name_of(budget))
        words = ("b", use.balance_version, *limbs(use.charge), *bounds)
        return bool(await self._valkey.run(PROJECT, keys, words))

    async def project_day(self, tenant_id: str, day: Counted, tokens: int) -> None:
        """Take over how many tokens were used in the last 24 hours, where Valkey does not know."""
        keys = (_tag(tenant_id) + "projected", _tag(tenant_id) + day.name)
        await self._valkey.run(PROJECT, keys, (DAY, min(tokens, AMOUNT_MAX)))

    async def forget(self, tenant_id: str) -> int:
        """Drop what was projected, but no hold; returns how many budgets and days that were."""
        balance, holds, _ = _keys(tenant_id)
        return int(await self._valkey.run(FORGET, (balance, holds, _tag(tenant_id) + "projected"), ()))

    async def tenants(self) -> list[str]:
        """List tenants that may hold something."""
        return sorted(await self._valkey.call("SMEMBERS", TENANTS_HELD))

    async def expired(self, tenant_id: str) -> dict[UUID, timedelta]:
        """Find holds whose lease ran out, and how long ago; the longest first, at most `EXPIRED_BATCH`."""
        found = await self._valkey.run(EXPIRED, (_keys(tenant_id)[2],), (EXPIRED_BATCH,))
        ages = (timedelta(milliseconds=int(age_ms)) for age_ms in found[1::2])
        return dict(zip(map(UUID, found[::2]), ages, strict=True))

    async def record_lost(self, tenant_id: str, request_id: UUID) -> None:
        """Keep a trace of a hold that is voided without an event: nothing is charged for it any more."""
        words = ("XADD", LOST_HOLDS, "MAXLEN", "~", LOST_HOLDS_MAX, "*")
        await self._valkey.call(*words, "tenant", tenant_id, "request_id", str(request_id))

    async def lost(self) -> set[UUID]:
        """Requests of which there is such a trace."""
        entries = await self._valkey.call("XRANGE", LOST_HOLDS, "-", "+")
        return {UUID(_pairs(fields)["request_id"]) for _, fields in entries}

    async def stands(self, tenant_id: str, request_id: UUID) -> bool:
        """Whether a request holds something."""
        return bool(await self._valkey.call("HEXISTS", _keys(tenant_id)[1], str(request_id)))

    async def held(self, tenant_id: str) -> Held:
        """Read one tenant's rows."""
        balance_key, holds_key, leases_key = _keys(tenant_id)
        row = _pairs(await self._valkey.call("HGETALL", balance_key))
        holds = _pairs(await self._valkey.call("HGETALL", holds_key))
        leases = await self._valkey.call("ZRANGE", leases_key, 0, -1)
        return Held(
            balance=amount_of(row["hi"], row["lo"]) if "version" in row else None,
            version=int(row.get("version", 0)),
            held=amount_of(row.get("held_hi", "0"), row.get("held_lo", "0")),
            holds={request_id: amount_of(*text.split(":")[:2]) for request_id, text in holds.items()},
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


def _asked(
    tenant_id: str, amount: Femto, demand: Demand, lease_ms: int
) -> tuple[tuple[str, ...], tuple[Word, ...]]:
    """Keys and arguments of admit.lua."""
    assert amount >= 0
    arguments: tuple[Word, ...] = (
        *limbs(amount),
        secrets.token_hex(RANDOM_BYTES),
        lease_ms,
        demand.input_tokens,
        demand.output_tokens,
        len(demand.limits),
        *(word for one in demand.limits for word in (one.letter, one.amount)),
        *(word for one in demand.budgets for word in (*limbs(one.amount), "hard" if one.hard else "soft")),
    )
    tag = _tag(tenant_id)
    keys = (
        *_keys(tenant_id),
        *(tag + one.name for one in demand.limits),
        *(tag + budgets.name_of(one) for one in demand.budgets),
    )
    return keys, arguments


def _quota(limits: Sequence[Counted], words: Sequence[int]) -> Quota:
    """Read what the script tells of the tightest limits of requests and of tokens."""
    requests, tokens = (
        Left(limits[number - 1].amount, left, reset_ms) if number else None
        for number, left, reset_ms in (words[:3], words[3:])
    )
    return Quota(requests, tokens)


def _missing(demand: Demand, time_us: str, numbers: Sequence[int]) -> ProjectionMissing:
    limits = len(demand.limits)
    return ProjectionMissing(
        at=instant_at(time_us),
        balance=0 in numbers,
        days=tuple(demand.limits[n - 1] for n in numbers if 0 < n <= limits),
        budgets=tuple(demand.budgets[n - 1 - limits] for n in numbers if n > limits),
    )


def _versioned(balance: BalanceVersion | None) -> tuple[str | int, ...]:
    return ("", "", "") if balance is None else (*limbs(balance.balance), balance.version)


def _tag(tenant_id: str) -> str:
    """What all keys of a tenant begin with: one slot of a cluster holds them, so one script may use them."""
    return "kv:{" + tenant_id + "}:"


def _keys(tenant_id: str) -> tuple[str, str, str]:
    tag = _tag(tenant_id)
    return f"{tag}balance", f"{tag}holds", f"{tag}leases"


def _pairs(reply: dict[str, str] | list[str]) -> dict[str, str]:
    """Read HGETALL, which a raw pipeline answers flat and a typed one as a mapping."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
