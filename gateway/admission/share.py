"""Admission that goes on without Valkey, where the operator prefers that to refusing (`GatewayOptions`).

While Valkey is away each replica gives out its share of every limit, ``amount // replicas``, from its memory.
It holds nothing: neither balances nor budgets are asked. At risk is what the limits let through until Valkey
is back; it is charged all the same, and is debt where nothing was left. So a request is refused unless some
limit of requests or tokens bounds its tenant, project or key, and nothing that was reserved is given back. A
request whose process dies in this time is not charged: no hold names it.
"""

import asyncio
import secrets
from collections import defaultdict
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from prometheus_client import Counter

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.request_id import RANDOM_BYTES, mint
from gateway.admission.admit import NOTHING_DEMANDED, Admission
from gateway.admission.hold import Hold, Spent, microseconds
from gateway.admission.limits import DAY, DAY_OF_USER, SLOT, Counted, Demand
from gateway.admission.quota import Left, Quota
from gateway.instant import ValkeyClock
from gateway.refusal import LimitReached, ValkeyUnavailable
from gateway.telemetry import log
from gateway.valkey import Valkey

MINUTE_US: Final = 60_000_000
DAY_US: Final = 1440 * MINUTE_US
BUCKETS_MAX: Final = 100_000
# How long Valkey is not asked again after it did not answer.
PAUSE_S: Final = 1.0


@dataclass(slots=True)
class _Bucket:
    """As bucket.lua: ``level`` in units of 1 / window."""

    level: int = 0
    at_us: int = 0


class ShareOfLimits:
    """One replica's share of all limits, in its memory."""

    def __init__(self, replicas: int) -> None:
        assert replicas > 0
        self._replicas = replicas
        self._buckets: dict[str, _Bucket] = {}
        self._slots: defaultdict[str, set[UUID]] = defaultdict(set)

    def take(self, tenant_id: str, request_id: UUID, demand: Demand, at_us: int, retry_after_s: int) -> None:
        """Take every limit, all or none.

        Raises:
            LimitReached: the share of one of them is used up.
        """
        taken: list[tuple[str, _Bucket]] = []
        for one in demand.limits:
            name, share = f"{tenant_id}/{one.name}", one.amount // self._replicas
            if one.letter == SLOT:
                if len(self._slots[name]) >= share:
                    raise _reached(one, 1, share, retry_after_s * 1000)
                continue
            window_us, cost = _window_us(one), demand.cost(one)
            known = self._buckets.get(name, _Bucket())
            level = max(0, known.level - share * max(0, at_us - known.at_us)) + cost * window_us
            if share == 0 or level > share * window_us:
                wait_ms = window_us // 1000 if cost > share else (level // share - window_us) // 1000
                raise _reached(one, cost, share, wait_ms)
            taken.append((name, _Bucket(level, max(at_us, known.at_us))))
        self._buckets.update(taken)
        for one in demand.limits:
            if one.letter == SLOT:
                self._slots[f"{tenant_id}/{one.name}"].add(request_id)
        if len(self._buckets) > BUCKETS_MAX:  # whoever invents users forgets limits only of those long gone
            del self._buckets[next(iter(self._buckets))]

    def free(self, request_id: UUID) -> None:
        """Give the slots of a request back."""
        for name in [name for name, ids in self._slots.items() if request_id in ids]:
            self._slots[name].discard(request_id)
            if not self._slots[name]:
                del self._slots[name]


class AdmissionByShare(Admission):
    """Admission through Valkey while it answers, else by this replica's share of the limits."""

    def __init__(
        self,
        valkey: Valkey,
        clock: ValkeyClock,
        replicas: int,
        admitted: Counter,
        *,
        lease_s: float = 30.0,
        retry_after_s: int = 5,
    ) -> None:
        super().__init__(valkey, lease_s=lease_s, retry_after_s=retry_after_s)
        self._clock = clock
        self._share = ShareOfLimits(replicas)
        self._admitted_by_share = admitted
        self._away_until_s = 0.0
        self._running: set[UUID] = set()
        self._untold: dict[str, tuple[BalanceVersion, frozenset[str]]] = {}

    async def admit(self, tenant_id: str, amount: Femto, demand: Demand = NOTHING_DEMANDED) -> Hold:
        """See `Admission.admit`; while Valkey is away, LimitReached where the share is used up.

        Raises:
            ValkeyUnavailable: and no limit bounds this request, or Valkey's time is not known.
        """
        if _now_s() >= self._away_until_s:
            try:
                await self._tell()
                return await super().admit(tenant_id, amount, demand)
            except ValkeyUnavailable as error:
                self._away(error)
        if not any(one.letter != SLOT and not one.limit.per_user for one in demand.limits):
            raise ValkeyUnavailable("away, and no limit bounds this request")
        return await self._by_share(tenant_id, amount, demand)

    async def would_admit(self, tenant_id: str, amount: Femto, demand: Demand) -> None:
        """See `Admission.would_admit`; while Valkey is away, nobody can tell before it is tried."""
        if _now_s() >= self._away_until_s:
            try:
                await super().would_admit(tenant_id, amount, demand)
            except ValkeyUnavailable as error:
                self._away(error)

    async def release_id(
        self,
        tenant_id: str,
        request_id: UUID | None,
        balance: BalanceVersion | None,
        spent: Spent | None = None,
        parts: str = "",
    ) -> bool:
        """See `Admission.release_id`; what was admitted by share is told to Valkey when it is back."""
        if request_id not in self._running:
            return await super().release_id(tenant_id, request_id, balance, spent, parts)
        self._running.discard(request_id)
        self._share.free(request_id)
        if balance is not None:
            newest, named = self._untold.get(tenant_id, (balance, frozenset[str]()))
            newest = max(newest, balance, key=lambda one: one.version)
            self._untold[tenant_id] = newest, named | {parts}
        return True

    async def _by_share(self, tenant_id: str, amount: Femto, demand: Demand) -> Hold:
        at = await self._clock.now()
        request_id = mint(at, secrets.token_bytes(RANDOM_BYTES))
        self._share.take(tenant_id, request_id, demand, microseconds(at), self.retry_after_s)
        self._running.add(request_id)
        self._admitted_by_share.inc()
        return Hold(request_id, tenant_id, amount, at, parts=demand.parts)

    async def _tell(self) -> None:
        """Show Valkey the balances it missed, and have it read budgets and days again."""
        for tenant_id, (balance, named) in list(self._untold.items()):
            await super().release_id(tenant_id, None, balance, None, "".join(named))
            if self._untold.get(tenant_id) == (balance, named):
                del self._untold[tenant_id]

    def _away(self, error: ValkeyUnavailable) -> None:
        self._away_until_s = _now_s() + PAUSE_S
        log.warning("admission_by_share", reason=str(error))


def _reached(by: Counted, cost: int, share: int, wait_ms: int) -> LimitReached:
    left = Left(share, 0, wait_ms)
    quota = Quota(requests=left) if by.letter in ("r", SLOT) else Quota(tokens=left)
    return LimitReached(by.limit, cost, min(max(1, -(-wait_ms // 1000)), 60), quota)


def _window_us(one: Counted) -> int:
    return DAY_US if one.letter in (DAY, DAY_OF_USER) else MINUTE_US


def _now_s() -> float:
    return asyncio.get_running_loop().time()
