"""Requests of tenants with prices of their own, or of a plan, and of a tier, from the hold to the event."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from billing.pricing.book import Placement, PriceBook
from billing.pricing.publication import LEAD
from billing.pricing.rates import Rates
from billing.reports.service import Reports
from billing.settlement.batch import Settlement
from billing.tenancy.api_key import KeyGrant
from engine.api import TokenChunk
from engine.proof.coverage import Attempt
from gateway.admission.admit import Admission
from gateway.admission.leases import Leases
from gateway.admission.rebuild import Projections
from gateway.instant import ValkeyClock
from gateway.settle import Books, Outcome, Proof, Settler, Terms
from gateway.telemetry import Telemetry
from tests.attested import prefill
from tests.gateway.conftest import CREDIT, EPOCH, ROW, House
from tests.gateway.doubles import END, MODEL, Play, says

HALF = Rates(hit=500, miss=5_000, output=10_000)
QUARTER = Rates(hit=250, miss=2_500, output=5_000)
OWN = Rates(hit=1_000, miss=10_000, output=20_000, flex=HALF, batch=QUARTER)
TIERS = [("flex", "flex", HALF), ("default", "default", OWN), ("auto", "default", OWN), (None, None, OWN)]


async def priced(house: House, **owner: Any) -> str:
    """Publish a row of somebody's, and let the gateway read it; its id."""
    row = replace(ROW, effective_from=EPOCH + LEAD, standard=OWN, **owner)
    await house.parts.prices.publish(PriceBook((row,)), "test", EPOCH)
    await house.desk.prices.refresh()
    return row.id


async def test_a_tenant_pays_its_own_price_and_its_event_and_memo_name_it(house: House) -> None:
    own = await priced(house, tenant_id=house.tenant_id)
    house.engine.play = Play(hit_tokens=4)
    async with house.chat() as answer:
        usage = (await answer.json())["usage"]
    (row,) = await house.settled()
    assert row.price_row_id == json.loads(house.engine.generations[-1].request.memo)["price_row"] == own
    assert row.charge == 4 * 1_000 + 4 * 10_000 + usage["completion_tokens"] * 20_000
    another = await house.parts.tenancy.create_tenant("another", at=EPOCH)
    assert house.desk.prices.book.of(another.id).row(MODEL, "USD", row.rated_at) == ROW


async def test_a_tenant_that_is_put_on_a_plan_pays_its_price(house: House) -> None:
    await house.parts.prices.create_plan("gold", "test", EPOCH)
    gold = await priced(house, plan="gold")
    async with house.chat() as answer:
        await answer.read()
    placement = Placement(house.tenant_id, EPOCH + LEAD, "gold")
    await house.parts.prices.place(placement, "test", EPOCH)
    await house.desk.prices.refresh()
    async with house.chat() as answer:
        usage = (await answer.json())["usage"]
    public, of_plan = await house.settled(2)
    assert (public.price_row_id, of_plan.price_row_id) == (ROW.id, gold)
    assert of_plan.charge == 8 * 10_000 + usage["completion_tokens"] * 20_000


async def test_a_tier_is_held_and_charged_at_its_rates(house: House) -> None:
    await priced(house, tenant_id=house.tenant_id)
    settlement = Settlement(house.parts.database)
    await settlement.start()
    admission = Admission(house.parts.valkey)
    projections = Projections(admission, house.parts.ledger, Reports(house.parts.database))
    books = Books(projections, settlement, house.desk.prices)
    clock = ValkeyClock(house.parts.valkey)
    settler = Settler(admission, Leases(admission, 10.0), books, clock, Telemetry(), 30.0)
    terms = Terms(KeyGrant(house.key_id, house.tenant_id, "USD", None, "test"), MODEL, 10, 5, "chat", "batch")
    hold = await settler.hold(terms)
    assert hold.amount == 10 * 2_500 + 5 * 5_000
    attempts = (Attempt(0, "prefill", "p1", 0, 0), Attempt(1, "decode", "d1", 0, 5))
    proof = Proof(prefill(hold.request_id), "{}")
    billed = await settler.charge(terms, hold, Outcome("completed", proof, attempts, 5, 0, 1.0))
    assert billed.charge.amount == billed.miss * 2_500 + billed.hit * 250 + 5 * 5_000
    assert billed.charge.tier == "batch"
    await settlement.close()


@pytest.mark.parametrize(("asked", "told", "rates"), TIERS)
async def test_the_tier_that_a_body_names_is_held_charged_and_told(
    house: House, asked: str | None, told: str | None, rates: Rates
) -> None:
    await priced(house, tenant_id=house.tenant_id)
    gate = asyncio.Event()
    house.engine.play = Play([says("a"), gate, TokenChunk((END,), "stop")], hit_tokens=4)
    async with house.chat(service_tier=asked, stream=True, max_tokens=50) as answer:
        await answer.content.readline()
        assert (await house.held()).held == 8 * rates.miss + 50 * rates.output
        gate.set()
        lines = (await answer.text()).splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert {chunk.get("service_tier") for chunk in chunks} == {told}
    assert "x-ignored-params" not in answer.headers
    async with house.chat(service_tier=asked) as answer:
        assert (await answer.json()).get("service_tier") == told
    rows = await house.settled(2)
    assert [row.charge for row in rows] == [4 * rates.hit + 4 * rates.miss + 2 * rates.output] * 2
    assert await house.balance() == CREDIT - 2 * rows[0].charge
    memo = json.loads(house.engine.generations[-1].request.memo)
    assert memo.get("tier", "standard") == ("flex" if told == "flex" else "standard")
    assert await house.parts.ledger.check_integrity() == []
