"""What is left when a store fails in mid settlement: what costs nothing is never charged by the sweeper."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from billing.errors import StoreRefused, StoreUnavailable, UsageInvalid
from billing.ledger.balance import BalanceVersion
from billing.ledger.credit import Grant
from billing.money import Femto
from billing.reports.service import Reports
from billing.reports.usage_row import QuarantinedRow, UsageFilter
from billing.settlement.batch import Settlement
from billing.settlement.event import UsageEvent
from billing.tenancy.api_key import KeyGrant
from engine.proof.coverage import Attempt
from gateway.admission.admit import Admission
from gateway.admission.leases import Leases
from gateway.admission.rebuild import Projections
from gateway.instant import ValkeyClock
from gateway.refusal import BalanceInsufficient, ValkeyUnavailable
from gateway.settle import Books, Outcome, Proof, Settler, Terms
from gateway.sweep import SweepReport
from gateway.telemetry import Telemetry
from tests.attested import prefill
from tests.gateway.conftest import CREDIT, ROW, House
from tests.gateway.doubles import MODEL, ScriptedJournals
from tests.gateway.sweeping import Orphan, sweeper

ID = UUID("0199f5a0-0000-7000-8000-000000000000")
PROOF = Proof(prefill(ID), "{}")
PREFILL, DECODE, LATER = (
    Attempt(0, "prefill", "p1", 0, 1),
    Attempt(1, "decode", "d1", 1, 5),
    Attempt(2, "decode", "d2", 5, 9),
)


@pytest.mark.parametrize(
    ("output", "accepted"),
    [
        (9, (PREFILL, DECODE, LATER)),
        (7, (PREFILL, DECODE, replace(LATER, output_to=7))),
        (5, (PREFILL, DECODE)),
        (3, (PREFILL, replace(DECODE, output_to=3))),
        (1, (PREFILL,)),
        (0, (replace(PREFILL, output_to=0),)),
    ],
)
def test_what_is_billed_ends_the_attempts(output: int, accepted: tuple[Attempt, ...]) -> None:
    outcome = Outcome("aborted", PROOF, (PREFILL, DECODE, LATER), output, 0, 1.0)
    assert outcome.accepted == accepted


@pytest.mark.parametrize(("status", "proof"), [("failed", PROOF), ("aborted", None)])
def test_what_costs_nothing_has_no_accepted_attempts(status: Any, proof: Any) -> None:
    assert Outcome(status, proof, (PREFILL, DECODE), 5, 0, 1.0).accepted == ()


class DeafAdmission(Admission):
    """A Valkey that went away once the hold stood."""

    async def release_id(self, *_: object) -> bool:
        raise ValkeyUnavailable("away")


class LostSettlement(Settlement):
    """A Postgres that went away."""

    async def settle(self, event: UsageEvent) -> BalanceVersion:
        raise StoreUnavailable("away")


def settler(house: House, admission: Admission, settlement: Settlement) -> Settler:
    projections = Projections(admission, house.parts.ledger, Reports(house.parts.database))
    books = Books(projections, settlement, house.desk.prices)
    clock = ValkeyClock(house.parts.valkey)
    return Settler(admission, Leases(admission, 10.0), books, clock, Telemetry(), 30.0)


def terms(house: House) -> Terms:
    grant = KeyGrant(house.key_id, house.tenant_id, "USD", None, "test")
    return Terms(grant, MODEL, 10, 5, "chat")


async def held(house: House) -> Orphan:
    """A hold of which workers can attest as if everything had gone well."""
    await house.desk.prices.refresh()
    return await Orphan.of(house)


def journals(orphan: Orphan) -> ScriptedJournals:
    return ScriptedJournals([orphan.prefilled(), orphan.decoded(1, 0, 5)])


async def test_a_request_voided_while_valkey_is_away_is_not_charged_from_journals(house: House) -> None:
    orphan = await held(house)
    deaf = settler(house, DeafAdmission(house.parts.valkey), house.parts.settlement)
    await deaf.void(terms(house), orphan.hold, Outcome("failed", None, (), 0, 0, 1.0))
    assert await sweeper(house, journals(orphan)).sweep_once() == SweepReport(released=1)
    assert [(row.status, row.charge) for row in await house.rows()] == [("failed", 0)]
    assert await house.balance() == CREDIT


async def test_a_failure_that_postgres_does_not_take_is_not_charged_from_journals(house: House) -> None:
    orphan = await held(house)
    lost = settler(house, Admission(house.parts.valkey), LostSettlement(house.parts.database))
    failed = Outcome("failed", Proof(prefill(orphan.hold.request_id), "{}"), (PREFILL, DECODE), 5, 0, 1.0)
    with pytest.raises(StoreUnavailable):
        await lost.charge(terms(house), orphan.hold, failed)
    assert await sweeper(house, journals(orphan)).sweep_once() == SweepReport()
    assert await sweeper(house, late_s=0.0).sweep_once() == SweepReport()
    assert await house.nothing_happened()


async def test_a_gateway_that_settles_what_a_sweeper_has_settled_changes_nothing(house: House) -> None:
    orphan = await held(house)
    await sweeper(house, journals(orphan)).sweep_once()
    (before,) = await house.rows()
    balance = await house.parts.ledger.balance(house.tenant_id)
    late = settler(house, Admission(house.parts.valkey), house.parts.settlement)
    attempts = (Attempt(0, "prefill", "p1", 0, 0), Attempt(1, "decode", "d1", 0, 2))
    proof = Proof(prefill(orphan.hold.request_id), orphan.prefilled().document)
    await late.charge(terms(house), orphan.hold, Outcome("aborted", proof, attempts, 2, 0, 1.0))
    assert await house.rows() == [before]
    assert await house.parts.ledger.balance(house.tenant_id) == balance
    assert (await house.held()).balance == balance.total
    assert (await orphan.receipt()).grade == "attested"


async def test_what_a_request_costs_beyond_its_hold_is_debt_and_not_clamped_to_zero(house: House) -> None:
    """pollinations/pollinations#8112: and whoever is in debt is not admitted."""
    await house.desk.prices.refresh()
    parts, admission = house.parts, house.admission
    tenant = await parts.tenancy.create_tenant(f"poor-{house.tenant_id}", at=ROW.effective_from)
    key = (await parts.tenancy.create_key(tenant.id, "test", ROW.effective_from)).key
    await parts.ledger.grant(tenant.id, Grant(Femto(1000), "granted", "test", "test"), ROW.effective_from)
    await admission.project(BalanceVersion(tenant.id, Femto(1000), 1))
    hold = await admission.admit(tenant.id, Femto(1000))
    orphan = Orphan(House(parts, house.engine, tenant.id, "", key.id), hold)
    proof = Proof(prefill(hold.request_id, hit_tokens=4), orphan.prefilled().document)
    attempts = (Attempt(0, "prefill", "p1", 0, 0), Attempt(1, "decode", "d1", 0, 2))
    owing = replace(terms(house), grant=KeyGrant(key.id, tenant.id, "USD", None, "test"))
    billed = await settler(house, admission, parts.settlement).charge(
        owing, hold, Outcome("completed", proof, attempts, 2, 0, 1.0)
    )
    balance = await parts.ledger.balance(tenant.id)
    assert (balance.total, balance.topped_up) == (1000 - billed.charge.amount,) * 2
    assert (await admission.held(tenant.id)).balance == balance.total < 0
    with pytest.raises(BalanceInsufficient):
        await admission.admit(tenant.id, Femto(0))


UNPROVEN = Outcome("completed", PROOF, (), 5, 0, 1.0)
UNKEPT = Outcome("completed", PROOF, (PREFILL, replace(DECODE, output_to=2**31)), 2**31, 0, 1.0)


async def quarantined(house: House) -> list[QuarantinedRow]:
    return await Reports(house.parts.database).quarantined(UsageFilter(tenant_id=house.tenant_id))


@pytest.mark.parametrize("outcome", [UNPROVEN, UNKEPT], ids=["that no call covers", "too large to keep"])
async def test_usage_that_cannot_be_is_put_in_quarantine_and_never_billed(
    house: House, outcome: Outcome
) -> None:
    orphan = await held(house)
    ours = settler(house, house.admission, house.parts.settlement)
    with pytest.raises((UsageInvalid, StoreRefused)):
        await ours.charge(terms(house), orphan.hold, outcome)
    (row,) = await quarantined(house)
    assert (row.request_id, row.attestation) == (orphan.hold.request_id, PROOF.document)
    assert b"kvitto_usage_quarantined_total 1.0" in ours._telemetry.render()
    assert await sweeper(house, journals(orphan)).sweep_once() == SweepReport()
    assert await house.nothing_happened()


async def test_usage_in_quarantine_whose_hold_stayed_is_not_charged_from_journals(house: House) -> None:
    orphan = await held(house)
    deaf = settler(house, DeafAdmission(house.parts.valkey), house.parts.settlement)
    with pytest.raises(UsageInvalid):
        await deaf.charge(terms(house), orphan.hold, UNPROVEN)
    assert await sweeper(house, journals(orphan)).sweep_once() == SweepReport(released=1)
    assert await house.nothing_happened()


async def test_a_lost_request_whose_usage_cannot_be_is_put_in_quarantine_and_voided(house: House) -> None:
    orphan = await held(house)
    impossible = ScriptedJournals([orphan.prefilled(), orphan.decoded(1, 0, 2**31)])
    assert await sweeper(house, impossible).sweep_once() == SweepReport(voided=1)
    (row,) = await quarantined(house)
    assert orphan.prefilled().document in str(row.attestation)
    assert await house.nothing_happened()


class Contested(Settlement):
    """The sweeper's: as it settles a request, ``rival`` settles it too, every second time sooner."""

    def __init__(self, house: House, rival: Callable[[UUID], Awaitable[object]]) -> None:
        super().__init__(house.parts.database)
        self._rival = rival
        self._rivals = 0

    async def settle(self, event: UsageEvent) -> BalanceVersion:
        self._rivals += 1
        ours, theirs = super().settle(event), self._rival(event.request_id)
        if self._rivals % 2:
            return (await asyncio.gather(ours, theirs))[0]
        await asyncio.gather(theirs)
        return await ours


async def test_a_gateway_and_sweepers_that_race_for_the_same_requests_charge_each_once(house: House) -> None:
    """Living gateways whose leases have all run out; they had two tokens where workers made five."""
    orphans = {orphan.hold.request_id: orphan for orphan in [await held(house) for _ in range(20)]}
    lines = [line for orphan in orphans.values() for line in journals(orphan).lines]
    living = settler(house, Admission(house.parts.valkey), house.parts.settlement)

    async def charge(request_id: UUID) -> None:
        orphan = orphans[request_id]
        attempts = (Attempt(0, "prefill", "p1", 0, 0), Attempt(1, "decode", "d1", 0, 2))
        proof = Proof(prefill(request_id, hit_tokens=4), orphan.prefilled().document)
        await living.charge(terms(house), orphan.hold, Outcome("aborted", proof, attempts, 2, 0, 1.0))

    contested = [Contested(house, charge) for _ in range(2)]
    await asyncio.gather(*(settlement.start() for settlement in contested))
    await asyncio.gather(
        *(sweeper(house, ScriptedJournals(list(lines)), settlement).sweep_once() for settlement in contested)
    )
    await asyncio.gather(*(settlement.close() for settlement in contested))
    rows = await house.rows()
    assert {row.request_id for row in rows} == orphans.keys()
    assert len(rows) == len(orphans)
    assert {row.output for row in rows} <= {2, 5}
    rates, prompt = ROW.standard, 4 * ROW.standard.hit + 6 * ROW.standard.miss
    assert all(row.charge == prompt + row.output * rates.output for row in rows)
    assert await house.balance() == CREDIT - sum(row.charge for row in rows)
    assert await house.parts.ledger.check_integrity() == []
    rest = await house.held()
    assert (rest.holds, rest.held, rest.balance) == ({}, 0, await house.balance())
    assert {(await orphan.receipt()).grade for orphan in orphans.values()} == {"attested"}
