"""From a request to its hold, from what happened to its charge: the only place that settles, and once.

hold    ──▶ charge ──▶ released with the settled balance
        ├─▶ void   ──▶ released, nothing charged
        ├─▶ (usage that cannot be) put in quarantine, released, nothing charged
        ╰─▶ (store or Valkey lost) lease not renewed; the sweeper asks the database, then workers' journals

A request that is to cost nothing says so in the database or by its release, whichever can be reached: the
sweeper must not find it held and unsettled, with attestations that it would charge for.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from billing.errors import BillingError, StoreRefused, UsageInvalid
from billing.ledger.balance import BalanceVersion
from billing.ledger.service import Ledger
from billing.money import Femto
from billing.pricing.rating import Charge, WorstCase, rate, rating_instant, worst_case
from billing.settlement.batch import Settlement
from billing.settlement.event import Status, UsageEvent
from billing.settlement.quarantine import Quarantined
from billing.tenancy.api_key import KeyGrant
from billing.usage import TokenUsage
from engine.proof.attestation import PrefillAttestation
from engine.proof.coverage import Attempt
from gateway.admission.admit import Admission, Hold
from gateway.admission.leases import Leases
from gateway.instant import ValkeyClock
from gateway.refusal import BalanceUnknown, ChargeUnknown, ValkeyUnavailable
from gateway.snapshot import PriceSnapshot
from gateway.telemetry import Telemetry, log

# The hold is priced before Valkey tells the instant of admission, which may be this much later.
CLOCK_MARGIN: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known of a request's price before it is admitted."""

    grant: KeyGrant
    model: str
    prompt_tokens: int
    output_tokens_max: int
    traffic_class: str


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

    ledger: Ledger
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

    async def hold(self, terms: Terms) -> Hold:
        """Reserve the request's worst case and keep its lease alive.

        Raises:
            PriceMissing: the model has no price in the tenant's currency.
            BalanceInsufficient, BalanceHeld: the tenant cannot cover it.
            ValkeyUnavailable, StoreUnavailable: nobody can tell.
        """
        hold = await self._admit(terms.grant.tenant_id, await self._worst_case(terms))
        self._leases.keep(hold)
        self._clock.saw(hold.admitted_at)
        return hold

    async def charge(self, terms: Terms, hold: Hold, outcome: Outcome) -> Billed:
        """Rate, commit durably, then release the hold. Returns only when the charge is durable.

        Raises:
            UsageInvalid, StoreRefused: this cannot be: it is in quarantine, its hold let go, nothing charged.
            ChargeUnknown: not committed as far as we know; the hold is left to the sweeper, which asks.
            BillingError: the same of a request that costs nothing; its hold is let go.
        """
        try:
            event = self._event(terms, hold, outcome)
            balance = await self._books.settlement.settle(event)
        except (UsageInvalid, StoreRefused) as impossible:
            await self._quarantine(hold, outcome, impossible)
            raise
        except BaseException as error:
            billable = outcome.usage.prompt > 0
            if billable:
                self._leave_to_sweeper(hold)
            else:
                await self._release(hold, None)
            if billable and isinstance(error, BillingError):
                log.error("charge_unknown", request_id=str(hold.request_id), reason=str(error))
                raise ChargeUnknown from error
            raise
        self._count(outcome, event.usage)
        await self._release(hold, balance)
        return Billed(event.usage, event.reasoning_tokens, event.charge)

    async def void(self, terms: Terms, hold: Hold, outcome: Outcome) -> None:
        """Let a hold go that nothing is charged to; if that fails, record that nothing is. Never raises."""
        assert not outcome.usage.prompt, "what is billable is charged, not voided"
        if not await self._release(hold, None):
            try:
                await self._books.settlement.settle(self._event(terms, hold, outcome))
            except BillingError as error:
                log.warning("void_not_recorded", request_id=str(hold.request_id), reason=str(error))

    async def _admit(self, tenant_id: str, amount: Femto) -> Hold:
        try:
            return await self._admission.admit(tenant_id, amount)
        except BalanceUnknown:
            balance = await self._books.ledger.balance(tenant_id)
            await self._admission.project(BalanceVersion(tenant_id, balance.total, balance.version))
        return await self._admission.admit(tenant_id, amount)

    async def _worst_case(self, terms: Terms) -> Femto:
        now = await self._clock.now()
        model, currency = terms.model, terms.grant.currency
        book = await self._books.prices.covering(model, currency, now)
        cases = (
            WorstCase(terms.prompt_tokens, terms.output_tokens_max, admitted_at, admitted_at + self._deadline)
            for admitted_at in (now, now + CLOCK_MARGIN)
        )
        return max(worst_case(book, model, currency, case) for case in cases)

    def _event(self, terms: Terms, hold: Hold, outcome: Outcome) -> UsageEvent:
        usage = outcome.usage
        completed_at = hold.admitted_at + timedelta(seconds=outcome.elapsed_s)
        currency = terms.grant.currency
        book = self._books.prices.book
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
            charge=rate(book, terms.model, currency, usage, rated_at),
            traffic_class=terms.traffic_class,
            attempts=outcome.accepted,
            attestations=() if outcome.proof is None else (outcome.proof,),
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
        await self._release(hold, None)

    async def _release(self, hold: Hold, balance: BalanceVersion | None) -> bool:
        """Return whether Valkey was told."""
        try:
            if balance is None:
                await self._admission.void(hold)
            else:
                await self._admission.release(hold, balance)
        except (ValkeyUnavailable, asyncio.CancelledError) as error:
            self._leave_to_sweeper(hold)
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        self._leases.drop(hold)
        return True

    def _leave_to_sweeper(self, hold: Hold) -> None:
        self._telemetry.unreleased.inc()
        log.warning("hold_left_to_sweeper", request_id=str(hold.request_id), tenant=hold.tenant_id)
        self._leases.drop(hold)

    def _count(self, outcome: Outcome, usage: TokenUsage) -> None:
        self._telemetry.settled.labels(outcome.status).inc()
        self._telemetry.request_s.observe(outcome.elapsed_s)
        for bucket in ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output"):
            self._telemetry.tokens.labels(bucket).inc(getattr(usage, bucket))
