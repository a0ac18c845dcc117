"""What a key may do at the gateway, and how soon a change of it holds everywhere."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from multidict import CIMultiDict

from billing.db.transaction import Database
from billing.settlement.batch import Settlement
from billing.tenancy.api_key import ApiKey, KeyTerms, network_of
from billing.tenancy.projects.service import Projects
from billing.tenancy.service import Tenancy
from gateway.snapshot import announce_change
from gateway.valkey import Valkey
from tests.gateway.conftest import EPOCH, OPTIONS, PEPPER, House, furnish, served
from tests.gateway.doubles import MODEL

BOUND_S = 2.0

Headers = Mapping[str, str] | None


async def ask(house: House, secret: str, headers: Headers = None, **body: Any) -> tuple[int, Any]:
    """Status and body of a chat completion with this key."""
    document = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **body}
    sent = CIMultiDict(headers or {})
    sent["authorization"] = f"Bearer {secret}"
    async with house.session.post(f"{house.url}/v1/chat/completions", json=document, headers=sent) as answer:
        return answer.status, await answer.json()


async def show(house: House, secret: str, path: str) -> tuple[int, Any]:
    sent = {"authorization": f"Bearer {secret}"}
    async with house.session.get(house.url + path, headers=sent) as answer:
        return answer.status, await answer.json()


async def issue(house: House, **terms: Any) -> str:
    issued = await house.parts.tenancy.create_key(house.tenant_id, "k", EPOCH, terms=KeyTerms(**terms))
    return issued.secret


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Deaf(Valkey):
    """A Valkey whose messages never arrive."""

    async def listen(self, channel: str) -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""


@asynccontextmanager
async def beside_a_deaf_one(database_url: str, valkey_url: str) -> AsyncIterator[tuple[House, House]]:
    """Two gateways of one house, the second of which hears no message: its age bound alone holds."""
    first = await furnish(database_url, valkey_url)
    database = Database(database_url)
    parts = replace(
        first.parts,
        database=database,
        settlement=Settlement(database),
        tenancy=Tenancy(database, PEPPER),
        valkey=Deaf.connect(valkey_url),
    )
    second = House(parts, first.engine, first.tenant_id, first.key, first.key_id)
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(served(first)), await stack.enter_async_context(served(second))


async def revoke(tenancy: Tenancy, key: ApiKey) -> None:
    await tenancy.revoke_key(key.id, datetime.now(UTC))


async def rotate(tenancy: Tenancy, key: ApiKey) -> None:
    await tenancy.rotate_key(key.id, timedelta(0), datetime.now(UTC))


async def rotate_with_grace(tenancy: Tenancy, key: ApiKey) -> None:
    await tenancy.rotate_key(key.id, timedelta(seconds=0.5), datetime.now(UTC))


async def expire(tenancy: Tenancy, key: ApiKey) -> None:
    now = datetime.now(UTC)
    await tenancy.change_key(key.id, {"expires_at": now + timedelta(seconds=0.5)}, now)


async def restrict_models(tenancy: Tenancy, key: ApiKey) -> None:
    await tenancy.change_key(key.id, {"models": frozenset({"other"})}, EPOCH)


async def restrict_networks(tenancy: Tenancy, key: ApiKey) -> None:
    await tenancy.change_key(key.id, {"networks": (network_of("10.0.0.0/8"),)}, EPOCH)


CHANGES: dict[Callable[[Tenancy, ApiKey], Awaitable[None]], int] = {
    revoke: 401,
    rotate: 401,
    rotate_with_grace: 401,
    expire: 401,
    restrict_models: 403,
    restrict_networks: 403,
}


async def test_every_change_of_a_key_holds_on_every_gateway_within_two_seconds(
    database_url: str, valkey_url: str
) -> None:
    """gpustack/gpustack#6173: one gateway is told; the other one is not, and asks again in time."""

    async def follow(change: Callable[[Tenancy, ApiKey], Awaitable[None]], status: int) -> None:
        tenancy = told.parts.tenancy
        issued = await tenancy.create_key(told.tenant_id, change.__name__, EPOCH)
        for house in houses:
            assert (await ask(house, issued.secret))[0] == 200
        await change(tenancy, issued.key)
        changed_s = now_s()
        await announce_change(told.parts.valkey, issued.key.id)
        for house in houses:
            asked_s = now_s()  # a busy machine answers late, but never what was asked later than the bound
            while (await ask(house, issued.secret))[0] != status:
                assert asked_s - changed_s < BOUND_S, f"{change.__name__} does not hold"
                await asyncio.sleep(0.01)
                asked_s = now_s()

    async with beside_a_deaf_one(database_url, valkey_url) as houses:
        told, _ = houses
        await asyncio.gather(*(follow(change, status) for change, status in CHANGES.items()))


async def test_who_is_told_of_a_project_or_a_tenant_forgets_all_its_keys(house: House) -> None:
    """Revocation by archiving: the message names the project, every key of it stops."""
    projects = Projects(house.parts.database)
    project = await projects.create(house.tenant_id, "search", EPOCH, actor="test")
    tenancy = house.parts.tenancy
    issued = await tenancy.create_key(house.tenant_id, "k", EPOCH, project=project.id)
    assert (await ask(house, issued.secret))[0] == 200
    await projects.archive(project.id, EPOCH, actor="test")
    house.desk.keys.forget(project.id)
    assert (await ask(house, issued.secret))[0] == 401
    await tenancy.revoke_key(house.key_id, EPOCH)
    house.desk.keys.forget(house.tenant_id)
    assert (await ask(house, house.key))[0] == 401


async def test_both_secrets_work_during_the_grace_of_a_rotation(house: House) -> None:
    rotated = await house.parts.tenancy.rotate_key(house.key_id, timedelta(hours=1), datetime.now(UTC))
    for secret in (house.key, rotated.secret):
        assert (await ask(house, secret))[0] == 200
    assert {row.key_id for row in await house.settled(2)} == {house.key_id}


async def test_a_management_key_cannot_call_inference(house: House) -> None:
    secret = await issue(house, scopes=frozenset({"management"}))
    status, body = await ask(house, secret)
    assert (status, body["error"]["type"]) == (403, "permission_error")
    assert not house.engine.generations


@pytest.mark.parametrize(
    ("scope", "chat", "balance"),
    [("inference", 200, 403), ("usage_read", 403, 200), ("management", 403, 403)],
)
async def test_a_key_does_what_its_scopes_name_and_nothing_else(
    house: House, scope: str, chat: int, balance: int
) -> None:
    secret = await issue(house, scopes=frozenset({scope}))
    assert (await ask(house, secret))[0] == chat
    assert (await show(house, secret, "/user/balance"))[0] == balance
    assert (await show(house, secret, "/v1/models"))[0] == 200


async def test_a_key_asks_the_models_of_its_list_and_sees_no_other(house: House) -> None:
    allowed, other = (
        await issue(house, models=frozenset({MODEL})),
        await issue(house, models=frozenset({"x"})),
    )
    assert (await ask(house, allowed))[0] == 200
    status, body = await ask(house, other)
    assert (status, body["error"]["type"], body["error"]["param"]) == (403, "permission_error", "model")
    assert [model["id"] for model in (await show(house, allowed, "/v1/models"))[1]["data"]] == [MODEL]
    assert (await show(house, other, "/v1/models"))[1]["data"] == []
    assert (await show(house, other, f"/v1/models/{MODEL}"))[0] == 403


async def test_a_key_is_good_in_its_networks_alone(house: House) -> None:
    here = await issue(house, networks=(network_of("127.0.0.0/8"),))
    elsewhere = await issue(house, networks=(network_of("10.0.0.0/8"),))
    assert (await ask(house, here))[0] == 200
    assert (await ask(house, elsewhere))[0] == 403


async def test_who_is_no_trusted_proxy_cannot_lend_itself_an_address(house: House) -> None:
    secret = await issue(house, networks=(network_of("10.0.0.0/8"),))
    assert (await ask(house, secret, {"x-forwarded-for": "10.1.2.3"}))[0] == 403


async def test_behind_a_trusted_proxy_the_client_is_whom_it_names(database_url: str, valkey_url: str) -> None:
    options = replace(OPTIONS, trusted_proxies=(network_of("127.0.0.1/32"), network_of("192.168.0.0/16")))
    async with served(await furnish(database_url, valkey_url, options)) as house:
        secret = await issue(house, networks=(network_of("10.0.0.0/8"),))
        for forwarded, status in {
            "10.1.2.3": 200,
            "10.1.2.3, 192.168.1.1": 200,  # through two proxies of ours
            "::ffff:10.1.2.3": 200,
            "10.1.2.3, 8.8.8.8": 403,  # the client wrote the first one itself
            "8.8.8.8": 403,
            "10.1.2.3, garbage": 403,
        }.items():
            assert (await ask(house, secret, {"x-forwarded-for": forwarded}))[0] == status, forwarded
        assert (await ask(house, secret))[0] == 403
        lines = CIMultiDict([("x-forwarded-for", "10.1.2.3"), ("x-forwarded-for", "8.8.8.8")])
        assert (await ask(house, secret, lines))[0] == 403  # the proxy's line is the last one


@pytest.mark.parametrize(
    ("terms", "header", "kept"),
    [
        ({}, None, "chat"),
        ({}, "agent", "agent"),
        ({}, "Agent ", "agent"),
        ({"traffic_class": "agent"}, None, "agent"),
        ({"traffic_class": "agent"}, "chat", "chat"),
        ({"traffic_class": "agent", "traffic_classes": frozenset()}, "chat", "agent"),
        ({"traffic_classes": frozenset({"chat"})}, "agent", "chat"),
    ],
)
async def test_the_retention_class_is_the_headers_if_allowed_else_the_keys_else_the_requests(
    house: House, terms: Any, header: str | None, kept: str
) -> None:
    secret = await issue(house, **terms)
    assert (await ask(house, secret, {"x-traffic-class": header} if header else None))[0] == 200
    assert house.engine.generations[-1].request.retention_class == kept


async def test_a_class_that_does_not_exist_is_refused(house: House) -> None:
    status, body = await ask(house, house.key, {"x-traffic-class": "batch"})
    assert (status, body["error"]["param"]) == (422, "X-Traffic-Class")


async def test_a_key_caps_the_answer_and_refuses_to_be_asked_for_more(house: House) -> None:
    secret = await issue(house, max_tokens=7)
    for body, longest in (({}, 7), ({"max_tokens": 3}, 3), ({"max_tokens": 7}, 7)):
        assert (await ask(house, secret, **body))[0] == 200
        assert house.engine.generations[-1].request.sampling.max_tokens == longest
    for param in ("max_tokens", "max_completion_tokens"):
        status, body = await ask(house, secret, **{param: 8})
        assert (status, body["error"]["param"]) == (422, param)
