"""A suspended tenant: no inference within two seconds, reads go on, what runs ends and is billed."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from billing.lifecycle.collection import Dunning
from billing.lifecycle.dunning import OverdueDocument
from billing.lifecycle.service import Lifecycle
from billing.money import femto_of
from billing.tenancy.api_key import KeyTerms
from engine.api import TokenChunk
from gateway.snapshot import announce_change
from tests.gateway.conftest import CREDIT, EPOCH, ROW, House
from tests.gateway.doubles import END, MODEL, Play, says
from tests.gateway.test_keys import BOUND_S, ask, beside_a_deaf_one, issue, now_s, show
from tests.gateway.test_management import manager_of


async def suspend(house: House) -> None:
    await Lifecycle(house.parts.database).suspend(house.tenant_id, "leaked keys", EPOCH, actor="ann")
    house.desk.keys.forget(house.tenant_id)


async def overdue(house: House) -> None:
    """Suspended by dunning."""

    class Owed:
        async def overdue(self, *_: Any) -> Mapping[str, list[OverdueDocument]]:
            return {house.tenant_id: [OverdueDocument("inv_1", "1", EPOCH, femto_of("1"), "USD")]}

    dunning = Dunning(house.parts.database, Owed())
    for day in (3, 10, 21):
        await dunning.look(EPOCH.replace(day=1 + day))
    house.desk.keys.forget(house.tenant_id)


SURFACES: tuple[tuple[str, Any], ...] = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
)


# Who suspends, and what every surface answers then: status, type, and type in Anthropic's shape.
REFUSALS = (
    (suspend, 403, "permission_error", "permission_error"),
    (overdue, 402, "tenant_suspended", "billing_error"),
)


@pytest.mark.parametrize(("path", "body"), SURFACES)
@pytest.mark.parametrize("refusal", REFUSALS, ids=["operator", "dunning"])
async def test_every_surface_refuses_in_its_own_shape_and_nothing_is_held(
    house: House, refusal: Any, path: str, body: Any
) -> None:
    suspends, status, type_, anthropic = refusal
    await suspends(house)
    headers = {"authorization": f"Bearer {house.key}"}
    async with house.session.post(house.url + path, json={"model": MODEL, **body}, headers=headers) as answer:
        refused = (await answer.json())["error"]
        assert answer.status == status
    assert refused["type"] == (anthropic if path == "/v1/messages" else type_)
    if path != "/v1/messages":
        assert refused["code"] == "tenant_suspended"
    assert "leaked" not in str(refused)
    assert await house.nothing_happened()
    assert not house.engine.generations


async def test_a_suspended_tenant_reads_and_manages_on(house: House) -> None:
    await suspend(house)
    reader = await issue(house, scopes=frozenset({"usage_read"}))
    for path in ("/user/balance", "/v1/models"):
        assert (await show(house, reader, path))[0] == 200
    manage = await manager_of(house, house.tenant_id)
    assert (await manage("GET", "/credit"))[0] == 200
    assert (await manage("GET", "/notices"))[0] == 200


async def test_a_request_in_flight_ends_and_is_billed(house: House) -> None:
    more = asyncio.Event()
    house.engine.play = Play([says("abc"), more, says("de"), TokenChunk((END,), "stop")])
    async with house.chat(stream=True) as answer:
        read = b""
        while b'"abc"' not in read:
            read += await answer.content.readany()
        await suspend(house)
        assert (await ask(house, house.key))[0] == 403
        more.set()
        read += await answer.content.read()
    assert b"[DONE]" in read
    (row,) = await house.settled()
    assert (row.status, row.output) == ("completed", 6)
    assert row.charge == row.cache_miss * ROW.standard.miss + 6 * ROW.standard.output
    assert await house.balance() == CREDIT - row.charge


async def test_every_gateway_knows_within_two_seconds_and_of_a_resumption_too(
    database_url: str, valkey_url: str
) -> None:
    """gpustack/gpustack#6173: one gateway is told; the other one is not, and asks again in time."""
    async with beside_a_deaf_one(database_url, valkey_url) as houses:
        told, _ = houses
        lifecycle = Lifecycle(told.parts.database)
        for house in houses:
            assert (await ask(house, told.key))[0] == 200
        for change, status in ((lifecycle.suspend, 403), (lifecycle.resume, 200)):
            await change(told.tenant_id, "why", EPOCH, actor="ann")
            changed_s = now_s()
            await announce_change(told.parts.valkey, told.tenant_id)
            for house in houses:
                asked_s = now_s()
                while (await ask(house, told.key))[0] != status:
                    assert asked_s - changed_s < BOUND_S
                    await asyncio.sleep(0.01)
                    asked_s = now_s()


async def test_a_neighbour_is_not_suspended(house: House) -> None:
    other = await house.parts.tenancy.create_tenant(f"beside {house.tenant_id}", at=EPOCH)
    key = await house.parts.tenancy.create_key(other.id, "k", EPOCH, terms=KeyTerms())
    await suspend(house)
    assert (await ask(house, key.secret))[0] == 402  # it has no credit, which is another matter
