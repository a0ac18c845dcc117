"""A month of traffic, made up but whole: prices that change, three tenants, and all that goes wrong.

March 2025 in each tenant's own zone. Two models have DeepSeek's two window schemes: of 2025 (rates of the
instant of completion, off-peak hours in UTC) and of 2026 (rates of admission, peak hours in Beijing), whose
rows are put a year and five months earlier, so that one begins in mid-month and one a week after it. Some
requests are aborted, some fail, some meet a broken promise, one is recorded when March is closed. Everything
follows from a seed but ids and keys of tenants, and when the late one is recorded: now.

    month = await Month.furnish(database)
    *traffic, late = month.traffic(300)
    await month.settle(traffic)
    # close March: its head does not have the late request
    await month.settle_late(late)
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

from billing.db.access import OWNER
from billing.db.transaction import Database
from billing.interval import SLOT, Interval
from billing.invoicing.agreements.given_coupon import GivenCoupon
from billing.invoicing.agreements.service import Agreements
from billing.invoicing.party import Party
from billing.invoicing.period import Period
from billing.invoicing.terms import Coupon, Discount, Fee, Terms
from billing.ledger.balance import BillingTerms
from billing.ledger.credit import Grant
from billing.ledger.service import Ledger
from billing.money import Femto, femto_of
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rating import rate, rating_instant
from billing.pricing.service import Prices
from billing.pricing.toml import shipped
from billing.receipts.memo import Memo
from billing.receipts.service import Receipts
from billing.reports.rollup import Rollups
from billing.request_id import mint
from billing.settlement.event import UsageEvent
from billing.settlement.posting import post
from billing.tenancy.service import Tenancy
from billing.usage import TokenUsage
from engine.proof.attestation import Attestation, DecodeAttestation, PrefillAttestation, commitment
from engine.proof.certificate import DeploymentKey
from engine.proof.coverage import Attempt
from engine.proof.ring import DeploymentRing

CREATED: Final = datetime(2025, 2, 27, tzinfo=UTC)
MARCH_OVER: Final = datetime(2025, 4, 5, tzinfo=UTC)  # everywhere
APRIL_OVER: Final = datetime(2025, 5, 2, 12, tzinfo=UTC)
CHANGE: Final = datetime(2025, 3, 16, 16, tzinfo=UTC)

Name = Literal["north", "east", "west"]
Outcome = Literal["completed", "aborted", "failed"]

_OUTCOMES: Final[tuple[Outcome, ...]] = ("completed", "aborted", "failed")
_MODELS: Final = ("deepseek-chat", "deepseek-v4-pro")
_FIVE_MONTHS: Final = {
    datetime(2026, 1, 1, tzinfo=UTC): datetime(2025, 1, 1, tzinfo=UTC),
    datetime(2026, 8, 16, 16, tzinfo=UTC): CHANGE,
    datetime(2026, 8, 22, 16, tzinfo=UTC): datetime(2025, 3, 22, 16, tzinfo=UTC),
}


def book() -> PriceBook:
    """Both of DeepSeek's schemes in one month, in USD."""
    rows = [row for row in shipped("deepseek").rows if row.model in _MODELS and row.currency == "USD"]
    return PriceBook(tuple(moved for row in rows if (moved := _moved(row)) is not None))


def _moved(row: PriceRow) -> PriceRow | None:
    if row.model == "deepseek-chat":
        return row
    begins = _FIVE_MONTHS.get(row.effective_from)
    return None if begins is None else replace(row, effective_from=begins)


@dataclass(frozen=True, slots=True)
class Member:
    """A tenant of the month. Its first period with usage is March; that before has a day or two."""

    name: Name
    tenant_id: str
    key_id: str
    zone: str

    @property
    def march(self) -> Period:
        """The month, in its zone."""
        return Period.of(datetime(2025, 3, 15, tzinfo=UTC), self.zone)


@dataclass(frozen=True, slots=True)
class Proof:
    """Implements `billing.receipts.receipt.Journaled`."""

    attestation: Attestation
    document: str
    certificate: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """A settled request, and when its event was recorded."""

    event: UsageEvent
    at: datetime
    member: Member


@dataclass
class Month:
    """A house with three tenants. ``deployment`` signs; its workers are w0, which is certified by it."""

    database: Database
    members: dict[Name, Member] = field(default_factory=dict)
    deployment: DeploymentKey = field(default_factory=lambda: DeploymentKey(_key("deployment")))
    worker: Ed25519PrivateKey = field(default_factory=lambda: _key("w0"))
    book: PriceBook = field(default_factory=book)

    @property
    def ring(self) -> DeploymentRing:
        """Its keys: one."""
        return DeploymentRing.of(self.deployment.public)

    @property
    def certificate(self) -> str:
        """Of its worker."""
        issued_s = int(CREATED.timestamp())
        return self.deployment.certify("w0", self.worker.public_key(), issued_s)

    @classmethod
    async def furnish(cls, database: Database) -> "Month":
        """Prices, tenants with their keys, terms, credit and coupon. The database has none of these yet."""
        month = cls(database)
        await Prices(database).publish(month.book, "test", datetime(2025, 1, 1, tzinfo=UTC))
        await month._tenant("north", "Europe/Stockholm", "postpaid")
        await month._tenant("east", "Asia/Kolkata", "postpaid")
        await month._tenant("west", "America/Los_Angeles", "prepaid")
        north, east, west = (month.members[name].tenant_id for name in ("north", "east", "west"))
        agreements, ledger, first = Agreements(database), Ledger(database), date(2025, 2, 1)
        said = {"actor": "test"}
        await agreements.name(
            north, Party("Norr AB", "Gatan 1\n111 11 Stockholm", "SE", "SE5566"), CREATED, **said
        )
        fees = (Fee("support", 4_900),)
        tiers = (Discount(100, "5"), Discount(300, "12.5"))
        await agreements.agree(
            north, first, Terms(tax_rate="24", fees=fees, discounts=tiers), CREATED, **said
        )
        changed = Terms(tax_rate="24", fees=(Fee("support", 9_900, "6"),), discounts=tiers, series="NORTH")
        await agreements.agree(north, date(2025, 3, 11), changed, CREATED, **said)
        coupon = GivenCoupon(Coupon("WELCOME", cents=500, minimum_cents=1_000), 1, date(2025, 3, 1), CREATED)
        await agreements.give_coupon(north, coupon, **said)
        await ledger.grant(north, Grant(femto_of("3.33"), "granted", "welcome", "test"), CREATED)
        await agreements.agree(east, first, Terms(tax_rate="18", commitment_cents=100_000), CREATED, **said)
        await agreements.agree(west, first, Terms(tax_rate="7.25"), CREATED, **said)
        await ledger.grant(west, Grant(femto_of("500"), "topped_up", "paid", "test"), CREATED)
        async with database.transaction(OWNER) as connection:
            # Nothing was recorded yet, so rollups hold all of it. They would look at each hour since.
            await connection.execute(text("UPDATE rollup_watermark SET recorded_before = now()"))
        return month

    async def _tenant(self, name: Name, zone: str, mode: Literal["prepaid", "postpaid"]) -> None:
        tenancy = Tenancy(self.database, b"pepper")
        tenant = await tenancy.create_tenant(name, at=CREATED, billing_mode=mode, tz=zone)
        issued = await tenancy.create_key(tenant.id, "first", CREATED)
        self.members[name] = Member(name, tenant.id, issued.key.id, zone)
        if mode == "postpaid":
            limit = BillingTerms("postpaid", femto_of("10000"))
            await Ledger(self.database).agree(tenant.id, limit, CREATED, actor="test")

    def traffic(self, requests: int, seed: int = 7) -> list[Recorded]:
        """So many requests of each tenant within its month, four at its edges, and last the late one."""
        drawn = random.Random(seed)  # noqa: S311  traffic is no secret
        made: list[Recorded] = []
        for member in self.members.values():
            march = member.march
            seconds = int((march.until - march.since).total_seconds())
            instants = [
                march.since - timedelta(microseconds=1),
                march.since,
                march.until - timedelta(seconds=1),
                march.until,
                *(march.since + timedelta(seconds=drawn.randrange(seconds)) for _ in range(requests)),
            ]
            made += (self._request(member, at, drawn) for at in sorted(instants))
        north = self.members["north"]
        return [*made, self._request(north, north.march.until - timedelta(hours=5), drawn)]

    def _request(self, member: Member, at: datetime, drawn: random.Random) -> Recorded:
        model = drawn.choice(_MODELS)
        outcome = drawn.choices(_OUTCOMES, (8, 1, 1))[0]
        prompt = drawn.randrange(200, 120_000)
        hit = drawn.choice((0, prompt // 128 * 64, (prompt - 1) // 64 * 64))
        owed = 64 * drawn.choice((0, 0, 0, 0, 7)) if hit and hit + 448 < prompt else 0
        output = drawn.randrange(1, 8_000)
        usage = TokenUsage(hit, owed, 0, prompt - hit - owed, output)
        request_id = mint(at, drawn.randbytes(10))
        done = at + timedelta(milliseconds=20 * output)
        row = self.book.row(model, "USD", at)
        memo = Memo(member.tenant_id, member.key_id, model, "chat", row.id).to_text()
        if outcome == "failed":
            usage = TokenUsage.none()
        rated_at = rating_instant(row, at, done)
        proofs = () if outcome == "failed" else self._proofs(str(request_id), usage, memo, outcome, done)
        event = UsageEvent(
            request_id=request_id,
            tenant_id=member.tenant_id,
            key_id=member.key_id,
            model=model,
            status=outcome,
            admitted_at=at,
            rated_at=rated_at,
            usage=usage,
            reasoning_tokens=usage.output // 3,
            charge=rate(self.book, model, "USD", usage, rated_at),
            traffic_class="chat",
            attempts=() if outcome == "failed" else (Attempt(0, "both", "w0", 0, usage.output),),
            attestations=proofs,
        )
        return Recorded(event, done + timedelta(milliseconds=5), member)

    def _proofs(
        self, request_id: str, usage: TokenUsage, memo: str, outcome: Outcome, done: datetime
    ) -> tuple[Proof, ...]:
        nonce = hashlib.sha256(request_id.encode()).digest()
        common: dict[str, Any] = {
            "request_id": request_id,
            "attempt": 0,
            "stage": "both",
            "worker": "w0",
            "namespace": "ab" * 32,
            "prompt_tokens": usage.prompt,
            "memo": memo,
            "attested_at_ns": int(done.timestamp() * 1000) * 10**6,
        }
        prefill = PrefillAttestation(
            hit_tokens=usage.cache_hit,
            owed_tokens=usage.cache_owed,
            hit_device_tokens=0,
            hit_store_tokens=usage.cache_hit,
            block_tokens=64,
            retention_class="chat",
            promised_until=int(done.timestamp()) + 604_800,
            prompt_commitment=commitment(nonce, (1,)),
            cached_prefix_commitment=commitment(nonce, ()),
            output_to=0,
            **common,
        )
        decode = DecodeAttestation(
            handoff_tokens=0,
            output_from=0,
            output_to=usage.output,
            ended="stop" if outcome == "completed" else "abort",
            **common,
        )
        return tuple(Proof(each, each.sign(self.worker), self.certificate) for each in (prefill, decode))

    async def settle(self, traffic: Sequence[Recorded]) -> None:
        """Settle as the gateway does, and say that each was recorded when it was."""
        await self._post(traffic)
        statement = text("UPDATE usage_event SET recorded_at = :at WHERE request_id = :id")
        rows = [{"at": one.at, "id": one.event.request_id} for one in traffic]
        async with self.database.transaction(OWNER) as connection:
            await connection.execute(statement, rows)
        await self._add_up(traffic)

    async def settle_late(self, late: Recorded) -> None:
        """Settle one that is recorded now, behind all heads that there are."""
        await self._post([late])
        await Rollups(self.database, timedelta(0)).build()

    async def _post(self, traffic: Sequence[Recorded]) -> None:
        for start in range(0, len(traffic), 200):
            await post(self.database, [one.event for one in traffic[start : start + 200]])
        said = next(proof for one in traffic for proof in one.event.attestations)
        assert isinstance(said, Proof)
        await Receipts(self.database).keep([said])

    async def _add_up(self, traffic: Sequence[Recorded]) -> None:
        instants = [one.event.rated_at for one in traffic]
        slots = {Interval(at - SLOT, at).slots.until for at in instants}
        await Rollups(self.database, timedelta(0)).rebuild(sorted(slots))


def charged(traffic: Sequence[Recorded]) -> Femto:
    """What requests come to."""
    return Femto(sum(one.event.charge.amount for one in traffic))


def _key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"month/{name}".encode()).digest())
