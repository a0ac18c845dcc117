"""From a request to its hold, from what happened to its charge: the only place that settles, and once.

hold    ──▶ charge ──▶ released with the settled balance
        ├─▶ void   ──▶ released, nothing charged
        ├─▶ (usage that cannot be) put in quarantine, released, nothing charged
        ╰─▶ (store or Valkey lost) lease not renewed; the sweeper asks the database, then workers' journals

A request that is to cost nothing says so in the database or in Valkey, whichever can be reached: the sweeper
must not find it unsettled, with attestations that it would charge for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeVar
from uuid import UUID

from billing.errors import BillingError, StoreRefused, UsageInvalid
from billing.ledger.balance import BalanceVersion
from billing.money import ZERO, Femto
from billing.pricing.rating import Charge, WorstCase, rate, rating_instant, worst_case
from billing.request_id import instant_of
from billing.settlement.batch import Settlement
from billing.settlement.event import Status, UsageEvent
from billing.settlement.idempotency import ANSWERED, IdempotencyRecord
from billing.settlement.quarantine import Quarantined
from billing.tenancy.api_key import KeyGrant
from billing.usage import Tier, TokenUsage
from engine.proof.attestation import PrefillAttestation
from engine.proof.coverage import Attempt
from gateway.admission.admit import Admission
from gateway.admission.hold import Hold, Spent, spent_by
from gateway.admission.leases import Leases
from gateway.admission.limits import Demand, counted
from gateway.admission.rebuild import Projections
from gateway.instant import ValkeyClock
from gateway.kept import Ask
from gateway.refusal import (
    AnsweredMeanwhile,
    ChargeUnknown,
    LimitReached,
    ProjectionMissing,
    ValkeyUnavailable,
)
from gateway.snapshot import PriceSnapshot
from gateway.telemetry import Telemetry, log

# The hold is priced before Valkey tells the instant of admission, which may be this much later.
CLOCK_MARGIN: Final = timedelta(seconds=5)
# Reading what an admission misses is done again when a period ends, or charges arrive, meanwhile.
PROJECTIONS_MAX: Final = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known of a request's price before it is admitted."""

    grant: KeyGrant
    model: str
    prompt_tokens: int
    output_tokens_max: int
    traffic_class: str
    tier: Tier = "standard"
    answers: Ask | None = None
    user_id: str = ""

    @property
    def demand(self) -> Demand:
        """What the request takes of limits and budgets."""
        limits = counted(self.grant.limits, self.model, self.user_id)
        return Demand(self.prompt_tokens, self.output_tokens_max, limits, self.grant.budgets)


@dataclass(frozen=True, slots=True)
class Proof:
    """A prefill's attestation and the signed text it was read from (`billing.receipts.receipt.Attested`)."""

    attestation: PrefillAttestation
    document: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended; attempts and output tokens as this gateway received them, billable or not."""

    status: Status
    proof: Proof | None
    attempts: tuple[Attempt, ...]
    output_tokens: int
    reasoning_tokens: int
    elapsed_s: float

    @property
    def usage(self) -> TokenUsage:
        """The buckets to bill. Nothing of a failed attempt is billable, nor what no worker attested."""
        if self.proof is None or self.status == "failed":
            return TokenUsage.none()
        return TokenUsage.of(self.proof.attestation, self.output_tokens)

    @property
    def accepted(self) -> tuple[Attempt, ...]:
        """The attempts to bill. The last one is cut where the billed output ends: by a stop string, say."""
        if not self.usage.prompt:
            return ()
        end = self.output_tokens
        return tuple(
            replace(attempt, output_to=min(attempt.output_to, end))
            for attempt in self.attempts
            if attempt.output_from < end or attempt.stage != "decode"
        )


NOTHING: Final = Outcome("failed", None, (), 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Billed:
    """What was settled, as the client is told it (`recipe.usage.Usage`)."""

    usage: TokenUsage
    reasoning: int
    charge: Charge

    @property
    def hit(self) -> int:
        """Tokens really served from cache."""
        return self.usage.cache_hit

    @property
    def owed(self) -> int:
        """Tokens billed as hits because their promise was broken."""
        return self.usage.cache_owed

    @property
    def miss(self) -> int:
        """Tokens computed, priced writes included."""
        return self.usage.cache_miss + self.usage.cache_write

    @property
    def output(self) -> int:
        """Tokens generated, reasoning included."""
        return self.usage.output


@dataclass(frozen=True, slots=True)
class Books:
    """Where money is kept."""

    projections: Projections
    settlement: Settlement
    prices: PriceSnapshot


class Settler:
    """Holds, charges and voids."""

    def __init__(
        self,
        admission: Admission,
        leases: Leases,
        books: Books,
        clock: ValkeyClock,
        telemetry: Telemetry,
        request_deadline_s: float,
    ) -> None:
        self._admission = admission
        self._leases = leases
        self._books = books
        self._clock = clock
        self._telemetry = telemetry
        self._deadline = timedelta(seconds=request_deadline_s)
        self._giving_back: set[asyncio.Task[None]] = set()

    async def hold(self, terms: Terms) -> Hold:
        """Reserve the request's worst case and keep its lease alive.

        Raises:
            PriceMissing, TierMissing: the model has no price in the tenant's currency, or none at the tier.
            BalanceInsufficient, BalanceHeld, BudgetReached, BudgetHeld: the tenant cannot cover it.
            LimitReached: it has used up one of its limits.
            ValkeyUnavailable, StoreUnavailable: nobody can tell.
        """
        try:
            hold = await self._projected(terms, self._admission.admit)
        except LimitReached as refused:
            self._telemetry.refused_by_limit.labels(refused.limit.level, refused.limit.measure).inc()
            raise
        self._leases.keep(hold)
        self._clock.saw(hold.admitted_at)
        for budget_id in hold.alerts:
            self._telemetry.budget_alerts.inc()
            log.warning("budget_passed", tenant=hold.tenant_id, budget=budget_id)
        return hold

    async def would_hold(self, terms: Terms) -> None:
        """See whether `hold` would reserve it at this moment. Raises as that does."""
        await self._projected(terms, self._admission.would_admit)

    def prefilled(self, hold: Hold, attestation: PrefillAttestation) -> None:
        """Give cached tokens back to limits that do not count them; nobody waits, and `charge` makes sure."""
        cached_tokens = attestation.hit_tokens + attestation.owed_tokens
        if cached_tokens and hold.gives_back:
            task = asyncio.create_task(self._give_back(hold, cached_tokens), name="prefilled")
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _give_back(self, hold: Hold, cached_tokens: int) -> None:
        try:
            await self._admission.prefilled(hold, cached_tokens)
        except ValkeyUnavailable as error:
            log.warning("cached_tokens_not_given_back", request_id=str(hold.request_id), reason=str(error))

    async def charge(self, terms: Terms, hold: Hold, outcome: Outcome) -> Billed:
        """Rate, commit durably, then release the hold. Returns only when the charge is durable.

        Raises:
            AnsweredMeanwhile: another request has answered its idempotency key; this one is charged nothing.
            UsageInvalid, StoreRefused: this cannot be: it is in quarantine, its hold let go, nothing charged.
            ChargeUnknown: not committed as far as we know; the hold is left to the sweeper, which asks.
            BillingError: the same of a request that costs nothing; its hold is let go.
        """
        try:
            event = self._event(terms, hold, outcome)
            balance = await self._books.settlement.settle(event)
        except (UsageInvalid, StoreRefused) as impossible:
            if isinstance(impossible, StoreRefused) and impossible.constraint == ANSWERED:
                await self.charge(terms, hold, replace(outcome, status="failed"))
                raise AnsweredMeanwhile from impossible
            await self._quarantine(hold, outcome, impossible)
            raise
        except BaseException as error:
            billable = outcome.usage.prompt > 0
            if billable:
                self._leave_to_sweeper(hold)
            elif await self._release(hold, None, None):
                await self._record_lost(hold)
            if billable and isinstance(error, BillingError):
                log.error("charge_unknown", request_id=str(hold.request_id), reason=str(error))
                raise ChargeUnknown from error
            raise
        self._count(outcome, event.usage)
        await self._release(hold, balance, spent_by(event))
        return Billed(event.usage, event.reasoning_tokens, event.charge)

    async def void(self, terms: Terms, hold: Hold, outcome: Outcome) -> None:
        """Let a hold go that nothing is charged to; if that fails, record that nothing is. Never raises."""
        assert not outcome.usage.prompt, "what is billable is charged, not voided"
        if not await self._release(hold, None, None):
            try:
                await self._books.settlement.settle(self._event(terms, hold, outcome))
            except BillingError as error:
                log.warning("void_not_recorded", request_id=str(hold.request_id), reason=str(error))

    async def answered(self, ask: Ask) -> IdempotencyRecord | None:
        """Which request has answered this idempotency key.

        Raises:
            ValkeyUnavailable, StoreUnavailable: nobody can tell; likewise below.
        """
        return await self._books.settlement.answered(ask.tenant_id, ask.name, await self._clock.now())

    async def disown(self, terms: Terms, ask: Ask, request_id: UUID) -> bool:
        """Record that a request that died answering a key costs nothing.

        The sweeper finds it settled, and lets its hold go. False if it has been charged: then its answer
        is recorded as lost.
        """
        dead = Hold(request_id, terms.grant.tenant_id, ZERO, instant_of(request_id))
        await self._books.settlement.settle(self._event(terms, dead, NOTHING))
        if not await self._books.settlement.charged(request_id):
            return True
        await self._books.settlement.record_lost(replace(_answer(ask, dead), status="lost"))
        return False

    async def _projected(self, terms: Terms, ask: Callable[[str, Femto, Demand], Awaitable[T]]) -> T:
        """Ask admission about a request's worst case, and project what it does not know."""
        tenant_id, demand = terms.grant.tenant_id, terms.demand
        amount = await self._worst_case(terms)
        for _ in range(PROJECTIONS_MAX):
            try:
                return await ask(tenant_id, amount, demand)
            except ProjectionMissing as missing:
                await self._books.projections.project(tenant_id, missing)
        return await ask(tenant_id, amount, demand)

    async def _worst_case(self, terms: Terms) -> Femto:
        now = await self._clock.now()
        model, currency = terms.model, terms.grant.currency
        book = await self._books.prices.covering(terms.grant.tenant_id, model, currency, now)
        tokens = terms.prompt_tokens, terms.output_tokens_max
        cases = (
            WorstCase(*tokens, admitted_at, admitted_at + self._deadline, terms.tier)
            for admitted_at in (now, now + CLOCK_MARGIN)
        )
        return max(worst_case(book, model, currency, case) for case in cases)

    def _event(self, terms: Terms, hold: Hold, outcome: Outcome) -> UsageEvent:
        usage, ask = outcome.usage, terms.answers
        completed_at = hold.admitted_at + timedelta(seconds=outcome.elapsed_s)
        currency = terms.grant.currency
        book = self._books.prices.book.of(hold.tenant_id)
        rated_at = rating_instant(
            book.row(terms.model, currency, hold.admitted_at), hold.admitted_at, completed_at
        )
        return UsageEvent(
            request_id=hold.request_id,
            tenant_id=hold.tenant_id,
            key_id=terms.grant.key_id,
            model=terms.model,
            status=outcome.status,
            admitted_at=hold.admitted_at,
            rated_at=rated_at,
            usage=usage,
            reasoning_tokens=min(outcome.reasoning_tokens, usage.output),
            charge=rate(book, terms.model, currency, usage, rated_at, terms.tier),
            traffic_class=terms.traffic_class,
            attempts=outcome.accepted,
            attestations=() if outcome.proof is None else (outcome.proof,),
            answers=None if ask is None or outcome.status != "completed" else _answer(ask, hold),
        )

    async def _quarantine(self, hold: Hold, outcome: Outcome, impossible: BillingError) -> None:
        """Put usage aside that cannot be, then let its hold go."""
        self._telemetry.quarantined.inc()
        document = None if outcome.proof is None else outcome.proof.document
        usage = Quarantined(hold.request_id, hold.tenant_id, str(impossible), document)
        try:
            await self._books.settlement.quarantine(usage)
        except BaseException:
            self._leave_to_sweeper(hold)
            raise
        await self._release(hold, None, None)

    async def _release(self, hold: Hold, balance: BalanceVersion | None, spent: Spent | None) -> bool:
        """Return whether Valkey was told."""
        try:
            if balance is None:
                await self._admission.void(hold)
            else:
                await self._admission.release(hold, balance, spent)
        except (ValkeyUnavailable, asyncio.CancelledError) as error:
            self._leave_to_sweeper(hold)
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        self._leases.drop(hold)
        return True

    async def _record_lost(self, hold: Hold) -> None:
        try:
            await self._admission.record_lost(hold.tenant_id, hold.request_id)
        except ValkeyUnavailable as error:
            log.warning("loss_not_recorded", request_id=str(hold.request_id), reason=str(error))

    def _leave_to_sweeper(self, hold: Hold) -> None:
        self._telemetry.unreleased.inc()
        log.warning("hold_left_to_sweeper", request_id=str(hold.request_id), tenant=hold.tenant_id)
        self._leases.drop(hold)

    def _count(self, outcome: Outcome, usage: TokenUsage) -> None:
        self._telemetry.settled.labels(outcome.status).inc()
        self._telemetry.request_s.observe(outcome.elapsed_s)
        for bucket in ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output"):
            self._telemetry.tokens.labels(bucket).inc(getattr(usage, bucket))


def _answer(ask: Ask, hold: Hold) -> IdempotencyRecord:
    return IdempotencyRecord(ask.tenant_id, ask.name, ask.body, hold.request_id, hold.admitted_at)
