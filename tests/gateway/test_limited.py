"""A gateway whose keys have limits and budgets: from the request to the headers, the ledger and back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from billing.money import Femto
from billing.reports.service import Reports
from billing.settlement.batch import Settlement
from billing.tenancy.api_key import KeyGrant
from billing.tenancy.limits import Budget, Limit
from billing.tenancy.service import Tenancy
from engine.api import EngineFailed, TokenChunk
from gateway.admission.admit import Admission
from gateway.admission.hold import EPOCH
from gateway.admission.rebuild import Projections
from gateway.options import GatewayOptions
from gateway.valkey import Valkey
from tests.gateway.conftest import CREDIT, OPTIONS, PEPPER, ROW, House, furnish, served, until
from tests.gateway.doubles import END, MODEL, Play, says
from tests.gateway.limiting import MINUTE_US, bucket

PROMPT = len("user:Hi\n")
Owned = Callable[[str, str], tuple[Limit | Budget, ...]]


class LimitedTenancy(Tenancy):
    """Grants that carry limits and budgets, made of the ids of tenant and key."""

    owned: Owned

    async def find_key(self, digest: bytes) -> KeyGrant | None:
        grant = await super().find_key(digest)
        assert grant is not None
        owned = self.owned(grant.tenant_id, grant.key_id)
        limits = tuple(one for one in owned if isinstance(one, Limit))
        budgets = tuple(one for one in owned if isinstance(one, Budget))
        return replace(grant, limits=limits, budgets=budgets)


Limited = Callable[..., Any]


@pytest.fixture
def limited(database_url: str, valkey_url: str) -> Limited:
    @asynccontextmanager
    async def open_house(owned: Owned, options: GatewayOptions = OPTIONS) -> AsyncIterator[House]:
        house = await furnish(database_url, valkey_url, options)
        tenancy = LimitedTenancy(house.parts.database, PEPPER)
        tenancy.owned = owned
        house.parts = replace(house.parts, tenancy=tenancy)
        async with served(house) as serving:
            yield serving

    return open_house


def of_key(measure: Any, amount: int, **fields: Any) -> Owned:
    return lambda _, key_id: (Limit("key", key_id, measure, amount, **fields),)


def of_tenant(amount: int, **fields: Any) -> Owned:
    whole = {"id": "bud_t", "period": "monthly", "tz": "Asia/Shanghai", **fields}
    return lambda tenant_id, _: (Budget(level="tenant", owner_id=tenant_id, amount=Femto(amount), **whole),)


async def test_a_limit_refuses_with_429_its_name_and_openais_headers(limited: Limited) -> None:
    async with limited(of_key("requests_per_minute", 2)) as house:
        for remaining in ("1", "0"):
            async with house.chat(stream=remaining == "0") as answer:
                await answer.read()
                assert answer.status == 200
                assert answer.headers["x-ratelimit-limit-requests"] == "2"
                assert answer.headers["x-ratelimit-remaining-requests"] == remaining
                assert answer.headers["x-ratelimit-reset-requests"][-1] == "s"
        async with house.chat() as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["param"]) == (
            429,
            "rate_limit_exceeded",
            "key.requests_per_minute",
        )
        assert house.key_id in error["message"]
        assert 25 <= int(answer.headers["retry-after"]) <= 30
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(await house.settled(2)) == 2
        async with house.session.get(f"{house.url}/metrics") as metrics:
            text = await metrics.text()
    assert 'kvitto_limit_refusals_total{level="key",measure="requests_per_minute"} 1.0' in text
    assert 'kvitto_valkey_lost_policy{policy="refuse"} 1.0' in text


async def test_what_is_never_possible_is_not_worth_a_retry(limited: Limited) -> None:
    async with limited(of_key("output_tokens_per_minute", 40)) as house:
        async with house.chat(max_tokens=41) as answer:
            assert answer.status == 429
            assert answer.headers["x-should-retry"] == "false"
        async with house.chat(max_tokens=40) as answer:
            assert answer.status == 200


async def test_cached_tokens_come_back_before_the_answer_ends(limited: Limited) -> None:
    """BerriAI/litellm#18728: given back when prefill answers, not at settlement."""
    gate = asyncio.Event()
    async with limited(of_key("input_tokens_per_minute", PROMPT, cached_free=True)) as house:
        house.engine.play = Play([gate, TokenChunk((END,), "stop")], hit_tokens=PROMPT - 1)
        first = asyncio.create_task(finished(house.chat()))
        key = f"kv:{{{house.tenant_id}}}:limit:{house.key_id}/input_tokens_per_minute.f/*/*"

        async def given_back() -> bool:
            exists = await house.parts.valkey.call("EXISTS", key)
            return exists and (await bucket(house.parts.valkey, key))[0] <= MINUTE_US

        await until(given_back)
        assert (await house.held()).holds
        gate.set()
        assert await first == 200
        assert await given_back()


async def finished(asked: Any) -> int:
    async with asked as answer:
        await answer.read()
        status: int = answer.status
        return status


async def test_unused_output_comes_back_with_the_answer_and_all_of_it_after_a_failure(
    limited: Limited,
) -> None:
    async with limited(of_key("output_tokens_per_minute", 100)) as house:
        assert await finished(house.chat(max_tokens=100)) == 200
        await house.settled()
        assert await finished(house.chat(max_tokens=95)) == 429  # six are used
        house.engine.play = Play(prefill=EngineFailed("p", "down"))
        for _ in range(3):
            assert await finished(house.chat(max_tokens=90)) == 503


async def test_sixty_four_at_once_against_a_balance_for_ten_admit_ten(house: House) -> None:
    """QuantumNous/new-api#6609, songquanpeng/one-api#2440: the sum of holds never passes the balance."""
    gate = asyncio.Event()
    house.engine.play = Play([gate, TokenChunk((END,), "stop")])
    worst = PROMPT * ROW.standard.miss + 50 * ROW.standard.output
    await finished(house.session.get(f"{house.url}/user/balance", headers=house.headers))
    await house.spend(leaving=10 * worst + worst // 2)
    asked = [asyncio.create_task(finished(house.chat(max_tokens=50))) for _ in range(64)]

    async def refused() -> bool:
        return sum(task.done() for task in asked) == 54

    await until(refused)
    assert (await house.held()).held == 10 * worst
    gate.set()
    statuses = await asyncio.gather(*asked)
    assert sorted(statuses) == [200] * 10 + [402] * 54
    assert len(await house.settled(10)) == 10
    assert await house.balance() == CREDIT - 10 * (PROMPT * ROW.standard.miss + ROW.standard.output)


async def test_a_hard_budget_ends_what_may_be_spent_and_only_waiting_for_holds_helps(
    limited: Limited,
) -> None:
    cost = PROMPT * ROW.standard.miss + 6 * ROW.standard.output
    worst = PROMPT * ROW.standard.miss + 20 * ROW.standard.output
    async with limited(of_tenant(cost + worst - 1)) as house:
        gate = asyncio.Event()
        house.engine.play = Play([gate, says("Hello"), TokenChunk((END,), "stop")])
        first = asyncio.create_task(finished(house.chat(max_tokens=20)))

        async def held() -> bool:
            return bool((await house.held()).holds)

        await until(held)
        async with house.chat(max_tokens=20) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (402, "budget_held")
            assert 0 < int(answer.headers["retry-after"]) <= 60
        gate.set()
        assert await first == 200
        await house.settled()
        async with house.chat(max_tokens=20) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (402, "insufficient_quota")
            assert "retry-after" not in answer.headers
        assert await finished(house.chat(max_tokens=19)) == 200


async def test_a_soft_budget_alerts_once_and_goes_on(limited: Limited) -> None:
    async with limited(of_tenant(1, hard=False)) as house:
        assert [await finished(house.chat()) for _ in range(3)] == [200] * 3
        async with house.session.get(f"{house.url}/metrics") as metrics:
            assert "kvitto_budget_alerts_total 1.0" in await metrics.text()


def both(tenant_id: str, key_id: str) -> tuple[Limit | Budget, ...]:
    cost = PROMPT * ROW.standard.miss + 6 * ROW.standard.output
    worst = PROMPT * ROW.standard.miss + 20 * ROW.standard.output
    return (
        Limit("key", key_id, "tokens_per_day", 2 * (PROMPT + 6) + PROMPT + 20 - 1),
        Budget("bud_k", "key", key_id, Femto(2 * cost + worst - 1), "weekly", "UTC"),
        Budget("bud_t", "tenant", tenant_id, Femto(10**15), "lifetime", "UTC"),
    )


@pytest.mark.parametrize("how", ["wiped", "rebuilt"])
async def test_budgets_and_days_are_read_from_the_books_again(limited: Limited, how: str) -> None:
    """songquanpeng/one-api#1132: the database wins, and Valkey can be rebuilt from it at any time."""
    async with limited(both) as house:
        for _ in range(2):
            assert await finished(house.chat(max_tokens=20)) == 200
        await house.settled(2)
        valkey, parts = house.parts.valkey, house.parts
        if how == "wiped":
            await valkey.call("FLUSHALL")
        else:
            budget_key = f"kv:{{{house.tenant_id}}}:budget:bud_k/weekly/UTC"
            await valkey.call("HSET", budget_key, "spent_hi", 0, "spent_lo", 0)
            await house.spend(leaving=5)
            projections = Projections(Admission(valkey), parts.ledger, Reports(parts.database))
            balance, forgotten = await projections.rebuild(house.tenant_id)
            assert (balance.balance, forgotten) == (await house.balance(), 3)
        async with house.chat(max_tokens=20) as answer:
            assert (await answer.json())["error"]["code"] == "insufficient_quota"
        assert (await house.held()).balance == await house.balance()
        async with house.chat(max_tokens=19) as answer:
            assert answer.status == 200
        async with house.chat(max_tokens=20) as answer:
            assert answer.status in (402, 429)


async def test_skew_of_a_replicas_clock_changes_no_limit_and_no_charge(
    limited: Limited, valkey_url: str
) -> None:
    """Its own idea of the time looks ahead alone: limits, periods and rates go by Valkey's TIME."""
    owned = lambda tenant_id, key_id: (  # noqa: E731  a name would say no more
        *of_key("requests_per_minute", 2)(tenant_id, key_id),
        *of_tenant(10**15, period="daily")(tenant_id, key_id),
    )
    async with limited(owned) as ahead, served(replica_of(ahead, valkey_url)) as behind:
        seconds, _ = await ahead.parts.valkey.call("TIME")
        for house, days in ((ahead, 3), (behind, -3)):
            house.desk.pumps._settler._clock.saw(EPOCH + timedelta(seconds=int(seconds), days=days))
            assert await finished(house.chat()) == 200
        assert [await finished(house.chat()) for house in (ahead, behind)] == [429, 429]
        rows = await ahead.settled(2)
        assert all(abs(row.rated_at.timestamp() - int(seconds)) < 60 for row in rows)
        assert len({row.charge for row in rows}) == 1


def replica_of(house: House, valkey_url: str) -> House:
    """Another gateway over the same books and Valkey."""
    settlement, valkey = Settlement(house.parts.database), Valkey.connect(valkey_url)
    parts = replace(house.parts, settlement=settlement, valkey=valkey)
    return House(parts, house.engine, house.tenant_id, house.key, house.key_id)


@contextmanager
def no_valkey(house: House) -> Iterator[None]:
    """Valkey is away from a serving house: its connections lead nowhere."""
    valkey = house.parts.valkey
    client, valkey._client = valkey._client, Valkey.connect("unix:///nowhere/valkey.sock?password=x")._client
    yield
    valkey._client = client


async def test_without_valkey_paid_requests_are_refused(limited: Limited) -> None:
    """BerriAI/litellm#35533: not N times the limit, but 503 with Retry-After, by the declared policy."""
    async with limited(of_key("requests_per_minute", 5)) as house:
        assert await finished(house.chat()) == 200
        await house.settled()
        with no_valkey(house):
            async with house.chat() as answer:
                assert (answer.status, "retry-after" in answer.headers) == (503, True)


async def test_by_the_other_policy_each_replica_admits_its_share_of_the_limits(limited: Limited) -> None:
    """BerriAI/litellm#35533: N replicas admit the limit together, not N times; it is charged."""
    options = replace(OPTIONS, valkey_lost="share", replicas=2)
    async with limited(of_key("requests_per_minute", 6), options) as house:
        assert await finished(house.chat()) == 200
        await house.settled()
        with no_valkey(house):
            statuses = [await finished(house.chat()) for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        async with house.session.get(f"{house.url}/metrics") as metrics:
            text = await metrics.text()
        assert "kvitto_admitted_by_share_total 3.0" in text
        assert 'kvitto_valkey_lost_policy{policy="share"} 1.0' in text
        rows = await house.rows()
        assert len(rows) == 4
        assert await house.balance() == CREDIT - sum(row.charge for row in rows)
        house.desk.pumps._settler._admission._away_until_s = 0.0
        assert await finished(house.chat()) == 200
        await house.settled(5)
        assert (await house.held()).balance == await house.balance()


async def test_what_no_limit_bounds_is_refused_by_either_policy(limited: Limited) -> None:
    owned = of_key("requests_per_minute", 5, per_user=True)
    async with limited(owned, replace(OPTIONS, valkey_lost="share")) as house:
        assert await finished(house.chat()) == 200
        with no_valkey(house):
            assert await finished(house.chat()) == 503


async def test_the_users_of_a_key_are_limited_apart(limited: Limited) -> None:
    async with limited(of_key("requests_per_minute", 1, per_user=True, model=MODEL)) as house:
        statuses = [await finished(house.chat(user_id=user)) for user in ("ann", "bob", "ann")]
        assert statuses == [200, 200, 429]
        keys = json.dumps(await house.parts.valkey.call("KEYS", "*"))
        assert "ann" not in keys.replace(house.tenant_id, "")
