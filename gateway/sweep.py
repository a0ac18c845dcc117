"""What a dead process left: holds whose lease ran out are released, with their request's charge or with none.

A lost request that has an event was charged; only its release is missing. One that has none is settled from
what workers attest of it, once their journals are drained; where that does not suffice it is voided, and a
trace of it is kept (`kv:lost`).

A wipe of Valkey takes holds, and then a gateway may die. What workers attest of a request that has neither
event nor hold nor trace is settled too, when no gateway can be serving it any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

from billing.errors import BillingError, StoreRefused, StoreUnavailable, UsageInvalid
from billing.ledger.balance import BalanceVersion
from billing.ledger.service import Ledger
from billing.pricing.service import Prices
from billing.receipts.memo import Memo
from billing.receipts.receipt import Journaled, Receipt
from billing.receipts.service import Receipts
from billing.settlement.batch import Settlement
from billing.settlement.event import UsageEvent
from billing.settlement.idempotency import ANSWERED
from billing.settlement.quarantine import Quarantined
from billing.tenancy.service import Tenancy
from gateway.admission.admit import Admission
from gateway.admission.hold import NOTHING_SPENT, spent_by
from gateway.instant import ValkeyClock
from gateway.lost import LostRequest, event_of, proven
from gateway.telemetry import SweepTelemetry, log
from gateway.valkey import Valkey

# A request may run for ten minutes, and its lines be a minute late.
LATE_S: Final = 660.0
# How long before its start a sweeper looks for requests without a hold: nobody swept meanwhile.
UNHELD_REACH: Final = timedelta(days=1)


class Drained(Protocol):
    """What a draining of all journals came to (`engine.api.Drained`)."""

    @property
    def lines(self) -> int:
        """Lines that were kept."""

    @property
    def unreachable(self) -> tuple[str, ...]:
        """Workers whose journal could not be drained to its end."""


class Journals(Protocol):
    """Workers' journals (`engine.api.Journals`)."""

    async def drain(self, keep: Callable[[Sequence[Journaled]], Awaitable[None]]) -> Drained:
        """Hand over what is new, verified; acknowledge what was kept."""


@dataclass(frozen=True, slots=True)
class SweepBooks:
    """Where money and proofs are kept."""

    tenancy: Tenancy
    prices: Prices
    ledger: Ledger
    settlement: Settlement
    receipts: Receipts


@dataclass(frozen=True, slots=True)
class SweepReport:
    """How many holds were released, by what became of their request.

    ``released``: it had been settled. ``settled``: it was, from attestations. ``voided``: it cost nothing.
    ``left``: holds that stand, because some worker's journal could not be drained. ``unheld``: requests
    without a hold that were settled from attestations.
    """

    released: int = 0
    voided: int = 0
    settled: int = 0
    left: int = 0
    unheld: int = 0

    def __add__(self, other: "SweepReport") -> "SweepReport":
        return SweepReport(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a sweeper waits, in seconds.

    Args:
        lost_after_s: how long after its lease a hold waits for a worker whose journal cannot be drained.
        grace_s: how long a hold must have been seen expired; not less than gateways pause between renewals,
            for when Valkey was away for longer than a lease, they get to renew first.
        late_s: how long after its admission a request without a hold may still be served.
    """

    lost_after_s: float = 600.0
    grace_s: float = 10.0
    late_s: float = LATE_S


class Sweeper:
    """Keeps journals, releases expired holds. Any number may run at once: each hold is dropped by the first.

    Args:
        valkey: where the holds are.
        books: where charges and attestations go.
        journals: of all workers that may have served a request.
        telemetry: counts.
        patience: how long it waits for what.
    """

    def __init__(
        self,
        valkey: Valkey,
        books: SweepBooks,
        journals: Journals,
        telemetry: SweepTelemetry | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._admission = Admission(valkey)
        self._clock = ValkeyClock(valkey)
        self._books = books
        self._journals = journals
        self._telemetry = telemetry or SweepTelemetry()
        self._patience = patience or Patience()
        self._looked_until: datetime | None = None
        self._expired_since_s: dict[UUID, float] = {}

    async def sweep_once(self) -> SweepReport:
        """Drain all journals, then look at every tenant once, at most `EXPIRED_BATCH` holds of each.

        Only holds that had expired before the journals were drained are judged: workers write until then.

        Raises:
            ValkeyUnavailable, StoreUnavailable: the rest waits for the next time.
        """
        before = {tenant: await self._admission.expired(tenant) for tenant in await self._admission.tenants()}
        dead = self._dead(id_ for expired in before.values() for id_ in expired)
        drained = await self._journals.drain(self._books.receipts.keep)
        self._telemetry.journal_lines.inc(drained.lines)
        self._telemetry.journals_unreachable.set(len(drained.unreachable))
        report = SweepReport()
        for tenant_id, expired in before.items():
            if expired:
                still = await self._admission.expired(tenant_id)  # its gateway may have come back meanwhile
                judged = {id_: age for id_, age in still.items() if id_ in dead}
                report += await self._judge(tenant_id, judged, drained.unreachable)
        report += await self._settle_unheld(drained.unreachable)
        for outcome in ("released", "settled", "voided", "unheld"):
            self._telemetry.holds_swept.labels(outcome).inc(getattr(report, outcome))
        return report

    def _dead(self, expired: Iterable[UUID]) -> set[UUID]:
        """Which of the expired holds have been seen so for long enough."""
        now_s = asyncio.get_running_loop().time()
        self._expired_since_s = {id_: self._expired_since_s.get(id_, now_s) for id_ in expired}
        return {
            id_ for id_, since_s in self._expired_since_s.items() if now_s - since_s >= self._patience.grace_s
        }

    async def _judge(
        self, tenant_id: str, expired: Mapping[UUID, timedelta], unreachable: tuple[str, ...]
    ) -> SweepReport:
        settled = await self._books.settlement.settled(list(expired))
        released = await self._release(tenant_id, [id_ for id_ in expired if id_ in settled])
        lost = [id_ for id_ in expired if id_ not in settled]
        lost_after = timedelta(seconds=self._patience.lost_after_s)
        left = [id_ for id_ in lost if unreachable and expired[id_] < lost_after]
        if left:
            log.warning("holds_wait_for_workers", tenant=tenant_id, holds=len(left), workers=unreachable)
        report = SweepReport(released=released, left=len(left))
        receipts = await self._books.receipts.of([id_ for id_ in lost if id_ not in left])
        for receipt in receipts.values():
            report += await self._settle(tenant_id, receipt)
        return report

    async def _release(self, tenant_id: str, request_ids: list[UUID]) -> int:
        if not request_ids:
            return 0
        balance = await self._books.ledger.balance(tenant_id)
        version = BalanceVersion(tenant_id, balance.spendable, balance.version)
        return sum([await self._admission.release_id(tenant_id, id_, version) for id_ in request_ids])

    async def _settle_unheld(self, unreachable: tuple[str, ...]) -> SweepReport:
        """Look once at each request that is late by now; at those that wait for a worker, some time later."""
        waits_s = self._patience.late_s + (self._patience.lost_after_s if unreachable else 0.0)
        until = await self._clock.now() - timedelta(seconds=waits_s)
        since = self._looked_until or until - UNHELD_REACH
        found = await self._books.receipts.unbilled_between(since, max(since, until))
        lost = await self._admission.lost() if found else set()
        report = SweepReport()
        for receipt in found:
            memo = Memo.read(receipt.attestations[0].memo) if receipt.attestations else None
            if memo is None or receipt.request_id in lost:
                continue
            if not await self._admission.stands(memo.tenant_id, receipt.request_id):
                settled = await self._charge(memo.tenant_id, receipt)
                report += SweepReport(unheld=int(settled is not None))
        self._looked_until = max(since, until)
        return report

    async def _settle(self, tenant_id: str, receipt: Receipt) -> SweepReport:
        """Charge what is attested; void what cannot be charged, and put aside what cannot be."""
        request_id = receipt.request_id
        settled = await self._charge(tenant_id, receipt)
        if settled is not None:
            return SweepReport(settled=int(settled))
        await self._admission.record_lost(tenant_id, request_id)
        log.warning("hold_lost", request_id=str(request_id), tenant=tenant_id)
        dropped = await self._admission.release_id(tenant_id, request_id, None, NOTHING_SPENT)
        return SweepReport(voided=int(dropped))

    async def _charge(self, tenant_id: str, receipt: Receipt) -> bool | None:
        """Charge what is attested; whether a hold was dropped then, None when nothing can be charged.

        What cannot be is put aside.
        """
        request_id = receipt.request_id
        try:
            lost = await self._lost(tenant_id, receipt)
            if lost is None:
                return None
            event, balance = await self._settled(lost)
        except StoreUnavailable:
            raise
        except BillingError as error:
            log.error("lost_request_not_charged", request_id=str(request_id), reason=str(error))
            if isinstance(error, UsageInvalid | StoreRefused):
                self._telemetry.quarantined.inc()
                await self._books.settlement.quarantine(Quarantined(request_id, tenant_id, str(error), None))
            return None
        log.warning("lost_request_settled", request_id=str(request_id), tenant=tenant_id)
        return await self._admission.release_id(tenant_id, request_id, balance, spent_by(event))

    async def _settled(self, lost: LostRequest) -> tuple[UsageEvent, BalanceVersion]:
        """Settle it; for nothing where its idempotency key has been answered, and charged, by another."""
        book, now = await self._books.prices.book(), await self._clock.now()
        event = event_of(lost, book, now)
        try:
            return event, await self._books.settlement.settle(event)
        except StoreRefused as refused:
            if refused.constraint != ANSWERED:
                raise
            event = event_of(lost, book, now, billable=False)
            return event, await self._books.settlement.settle(event)

    async def _lost(self, tenant_id: str, receipt: Receipt) -> LostRequest | None:
        """What attestations prove; None when that is nothing, or they were made for somebody else."""
        found = proven(receipt.attestations)
        if found is None:
            return None
        memo = Memo.read(found.prefill.memo) if len(found.memos) == 1 else None
        if memo is None or memo.tenant_id != tenant_id:
            log.error("memo_refused", request_id=str(receipt.request_id), tenant=tenant_id)
            return None
        currency = (await self._books.tenancy.tenant(tenant_id)).currency
        return LostRequest(receipt.request_id, found, memo, currency)
