"""Several gateways over the same workers, and the Valkey between them: real, wiped, slow, away."""

import asyncio
import contextlib
import dataclasses
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api import EngineUnavailable
from engine.cluster import leases
from engine.cluster.leases import GATEWAYS, Leases
from engine.cluster.options import ScriptRunner
from engine.cluster.router import Placement, Router, Worker
from engine.cluster.score import NOTHING, Load, choose
from gateway.valkey import Valkey
from tests.engine.cluster.test_router import IDLE, candidates, loads, output, prompt, router_of, workers


class Link:
    """A line to Valkey that a test may cut, or that answers late."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self.cut = False
        self.late_s = 0.0
        self.calls = 0

    async def run_source(self, source: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        self.calls += 1
        await asyncio.sleep(self.late_s)
        if self.cut:
            raise ConnectionError("cut")
        return await self._valkey.run_source(source, keys, arguments)


@pytest.fixture
async def valkey(valkey_url: str) -> AsyncIterator[Valkey]:
    valkey = Valkey.connect(valkey_url)
    yield valkey
    await valkey.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a Valkey that is away."""
    monkeypatch.setattr(leases, "ANSWER_S", 5.0)


@contextlib.asynccontextmanager
async def gateways(shared: ScriptRunner, count: int, *roles: Any, **more: Any) -> AsyncIterator[list[Router]]:
    """Routers of several processes over workers of the same names."""
    async with contextlib.AsyncExitStack() as stack:
        routers = [router_of(workers(*roles), shared=shared, gateway=f"g{n}", **more) for n in range(count)]
        for router in routers:
            await router.open()
            stack.push_async_callback(router.close)
        yield routers


async def names(router: Router, stack: contextlib.AsyncExitStack, count: int) -> list[str]:
    """Place outputs for as long as the stack stands; whom they came to, "" for nobody."""

    async def one() -> str:
        try:
            return (await stack.enter_async_context(router.placed(output(10), ()))).worker.name
        except EngineUnavailable:
            return ""

    return [await one() for _ in range(count)]


async def beat(router: Router) -> None:
    """Exchange now what would be exchanged within two seconds."""
    await router._leases._exchange()


async def test_two_gateways_share_the_load(valkey: Valkey) -> None:
    async with gateways(valkey, 2, "decode", "decode", "decode", "decode") as (one, two):
        async with contextlib.AsyncExitStack() as stack:
            first, second = await names(one, stack, 2), await names(two, stack, 2)
            assert sorted(first + second) == ["w0", "w1", "w2", "w3"]
            assert sorted(await names(two, stack, 4)) == ["w0", "w1", "w2", "w3"]
            await beat(one)
            assert [worker.others.running for worker in one.workers] == [1, 1, 2, 2]
        await beat(one)
        await beat(two)
        assert [worker.load for worker in two.workers] == [NOTHING] * 4


async def test_placements_at_once_never_pile_up_and_never_exceed_a_slot(valkey: Valkey) -> None:
    async with (
        gateways(valkey, 4, "decode", "decode", "decode", worker_requests_max=40) as routers,
        contextlib.AsyncExitStack() as stack,
    ):
        placed = await asyncio.gather(*(names(routers[n % 4], stack, 1) for n in range(200)))
        counted = Counter(name for (name,) in placed)
        assert counted == {"w0": 40, "w1": 40, "w2": 40, "": 80}
        assert sum(router.counts.refusals["full"] for router in routers) == 80
        assert sum(router.counts.unshared for router in routers) == 0


async def test_prompts_of_two_gateways_queue_behind_each_other(valkey: Valkey) -> None:
    async with (
        gateways(valkey, 2, "prefill", "prefill") as (one, two),
        one.placed(prompt(4000), ()) as first,
        two.placed(prompt(4000, first=1), ()) as second,
        two.placed(prompt(100), ()) as third,
    ):
        assert [placement.worker.name for placement in (first, second, third)] == ["w0", "w1", "w0"]
        assert third.worker.load.queued_ms > first.left_ms
    async with gateways(valkey, 2, "prefill", queue_s_max=1.0) as (one, two):
        async with one.placed(prompt(4000), ()):
            with pytest.raises(EngineUnavailable) as caught:
                await two.placed(prompt(4000), ()).__aenter__()
        assert 1 < caught.value.retry_after_s < 10, "the other gateway's prompt, less the bound"


async def test_an_idle_worker_is_borrowed_by_one_gateway_only(valkey: Valkey) -> None:
    async with (
        gateways(valkey, 3, "prefill", "decode", "decode") as routers,
        contextlib.AsyncExitStack() as stack,
    ):
        await stack.enter_async_context(routers[0].placed(prompt(4000), ()))
        placed = await asyncio.gather(
            *(stack.enter_async_context(router.placed(prompt(3000), ())) for router in routers[1:])
        )
        assert sorted(placement.worker.name for placement in placed) in (["w0", "w1"], ["w1", "w2"])


async def test_what_a_killed_gateway_had_vanishes_with_its_lease(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateways(valkey, 2, "decode", "decode") as (dead, alive), contextlib.AsyncExitStack() as stack:
        await names(dead, stack, 6)
        monkeypatch.setattr(leases, "LEASE_MS", 50)
        await beat(dead)
        assert dead._leases._task is not None
        dead._leases._task.cancel()
        monkeypatch.setattr(leases, "LEASE_MS", 10_000)
        await beat(alive)
        deadline = time.monotonic() + 5
        while any(worker.others.running for worker in alive.workers):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
            await beat(alive)
        assert await valkey.call("SCARD", GATEWAYS) == 1


async def test_a_gateway_that_stops_leaves_nothing(valkey: Valkey) -> None:
    async with gateways(valkey, 2, "decode") as (leaving, staying), contextlib.AsyncExitStack() as stack:
        await names(leaving, stack, 3)
        await leaving.close()
        await beat(staying)
        assert staying.workers[0].load == NOTHING
        assert await valkey.call("KEYS", "kv:{engine}*") != []
    assert await valkey.call("KEYS", "kv:{engine}*") == []


async def test_a_wiped_valkey_heals(valkey: Valkey) -> None:
    async with gateways(valkey, 2, "decode", "decode") as (one, two), contextlib.AsyncExitStack() as stack:
        await names(one, stack, 4)
        await valkey.call("FLUSHALL")
        await valkey.call("SCRIPT", "FLUSH")
        await beat(two)
        assert sum(worker.others.running for worker in two.workers) == 0
        await beat(one)
        await beat(two)
        assert [worker.others for worker in two.workers] == [Load(2, 20, 0)] * 2


async def test_without_valkey_the_own_ledger_decides_and_valkey_is_found_again(valkey: Valkey) -> None:
    link = Link(valkey)
    async with gateways(link, 2, "decode", "decode") as (one, two), contextlib.AsyncExitStack() as stack:
        await names(one, stack, 2)
        link.cut = True
        assert await names(two, stack, 2) == ["w0", "w1"]
        assert two.counts.unshared == 2
        calls = link.calls
        await names(two, stack, 2)
        assert link.calls == calls, "requests do not knock at a closed door"
        link.cut = False
        await beat(two)
        assert sum(worker.load.running for worker in two.workers) == 6
        await names(two, stack, 1)
        assert two.counts.unshared == 4


async def test_what_others_had_last_counts_on_for_one_lease(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(valkey)
    async with gateways(link, 2, "decode", "decode") as (one, two), contextlib.AsyncExitStack() as stack:
        assert await names(one, stack, 1) == ["w0"]
        await beat(two)
        link.cut = True
        await beat(two)
        assert await names(two, stack, 1) == ["w1"]
        monkeypatch.setattr(leases, "LEASE_MS", 0)
        await beat(two)
        assert await names(two, stack, 1) == ["w0"]


async def test_a_valkey_that_is_late_delays_a_request_once_and_shortly(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(valkey)
    async with gateways(link, 1, "decode") as (router,), contextlib.AsyncExitStack() as stack:
        link.late_s = 60.0
        monkeypatch.setattr(leases, "ANSWER_S", 0.025)
        async with asyncio.timeout(10):
            assert await names(router, stack, 20) == ["w0"] * 20
        assert router.counts.unshared == 20
        assert link.calls == 2, "one when it was opened, one that was late"
        link.late_s = 0.0


async def test_who_waits_behind_a_late_answer_waits_no_longer_than_it(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(valkey)
    async with gateways(link, 1, "decode") as (router,), contextlib.AsyncExitStack() as stack:
        link.late_s = 60.0
        monkeypatch.setattr(leases, "ANSWER_S", 0.1)
        monkeypatch.setattr(leases, "PROBE_S", 60.0)
        first = asyncio.create_task(names(router, stack, 1))
        while link.calls < 2:
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await names(router, stack, 1) == ["w0"]
            assert await first == ["w0"]
        assert router.counts.unshared == 2
        link.late_s = 0.0


async def test_a_valkey_that_is_down_from_the_start_fails_no_request() -> None:
    nowhere = Valkey.connect("unix:///nonexistent/valkey.sock?password=x")
    async with gateways(nowhere, 1, "decode") as (router,), contextlib.AsyncExitStack() as stack:
        assert await names(router, stack, 2) == ["w0"] * 2
        assert router.counts.unshared == 2
    await nowhere.close()


async def test_an_answer_that_is_none_is_as_good_as_no_answer(valkey: Valkey) -> None:
    class Babbler:
        async def run_source(self, source: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
            return ["what", "ever"]

    async with gateways(Babbler(), 1, "decode") as (router,), contextlib.AsyncExitStack() as stack:
        assert await names(router, stack, 1) == ["w0"]
        assert router.counts.unshared == 1


class Instant:
    """Answers at once that every call has its first candidate, so that turns of the loop can be counted."""

    def __init__(self) -> None:
        self.asks: list[int] = []
        self.open = asyncio.Event()
        self.open.set()

    async def run_source(self, source: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        asks = len(json.loads(arguments[1])["asks"])
        self.asks.append(asks)
        await self.open.wait()
        return [[1] * asks, [0, 0, 0]]


async def test_a_request_cancelled_in_whatever_turn_of_the_loop_leaves_no_lease() -> None:
    instant, entered = Instant(), 0
    async with gateways(instant, 1, "decode") as (router,):
        for turns in range(30):
            placing = router.placed(output(10), ())
            entering = asyncio.create_task(placing.__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            entering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await entering
                entered += 1
                assert router.workers[0].own.running == 1
                await placing.__aexit__(None, None, None)
            assert router.workers[0].own.running == 0
        assert 0 < entered < 30


async def test_nobody_asks_for_a_caller_who_has_gone() -> None:
    instant = Instant()
    async with gateways(instant, 1, "decode") as (router,), contextlib.AsyncExitStack() as stack:
        instant.open.clear()
        under_way = asyncio.create_task(names(router, stack, 1))
        while len(instant.asks) < 2:
            await asyncio.sleep(0)
        behind = [asyncio.create_task(names(router, stack, 1)) for _ in range(3)]
        await asyncio.sleep(0)
        behind[1].cancel()
        await asyncio.sleep(0)
        instant.open.set()
        assert await under_way == await behind[0] == await behind[2] == ["w0"]
        assert instant.asks == [0, 1, 2]


async def test_releases_are_known_to_others_before_the_next_renewal(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 60.0)
    async with gateways(valkey, 2, "decode") as (one, two):
        async with one.placed(output(10), ()):
            await beat(two)
            assert two.workers[0].others.running == 1
        deadline = time.monotonic() + leases.LEASE_MS / 2000
        while two.workers[0].others.running:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
            await beat(two)


async def test_what_another_gateway_has_and_the_worker_reports_counts_once(valkey: Valkey) -> None:
    async with (
        gateways(valkey, 2, "decode", worker_requests_max=4) as (one, two),
        contextlib.AsyncExitStack() as stack,
    ):
        assert await names(one, stack, 3) == ["w0"] * 3
        two.workers[0].hear(dataclasses.replace(IDLE, running=3, kv_tokens=30), time.monotonic())
        assert await names(two, stack, 2) == ["w0", ""]
        assert two.workers[0].load == Load(4, 40, 0)


async def test_an_engine_that_closes_leaves_nobody_waiting(valkey: Valkey) -> None:
    link = Link(valkey)
    async with gateways(link, 1, "decode") as (router,):
        link.late_s = 60.0
        under_way = asyncio.create_task(router.placed(output(10), ()).__aenter__())
        await asyncio.sleep(0.01)
        behind = asyncio.create_task(router.placed(output(10), ()).__aenter__())
        await asyncio.sleep(0.01)
        link.cut, link.late_s = True, 0.0
        await router.close()
        async with asyncio.timeout(5):
            assert {(await task).worker.name for task in (under_way, behind)} == {"w0"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    st.lists(st.lists(candidates, min_size=1, max_size=6), min_size=1, max_size=3),
    st.lists(loads, min_size=3, max_size=3),
    st.lists(loads, min_size=3, max_size=3),
)
def test_the_script_chooses_as_the_pure_function_does(
    valkey_url: str, asks: list[list[Any]], own: list[Load], unknown: list[Load]
) -> None:
    some = workers("both", "both", "both")
    for worker, has, said in zip(some, own, unknown, strict=True):
        worker.leases.append(Placement(worker, "both", has.kv_tokens, has.queued_ms))
        worker.unknown = said

    async def chosen() -> list[int]:
        valkey = Valkey.connect(valkey_url)
        try:
            await valkey.call("FLUSHALL")
            runner = Leases(some, valkey, "g", router_of(some).counts)
            return (await runner._run(10_000, asks))[0]
        finally:
            await valkey.close()

    at = [worker.load for worker in some]
    expected = []
    for ask in asks:
        index = choose(ask, at)
        expected.append(0 if index is None else index + 1)
        if index is not None:
            at[ask[index].worker] += ask[index].load
    assert asyncio.run(chosen()) == expected


async def test_numbers_are_exact_and_carried_as_integers(valkey: Valkey) -> None:
    worker: Worker
    (worker,) = some = workers("both")
    worker.leases.append(Placement(worker, "both", 10**9, 10**9))
    runner = Leases(some, valkey, "g", router_of(some).counts)
    await runner._run(10_000, [])
    (key,) = await valkey.call("SMEMBERS", GATEWAYS)
    assert await valkey.call("HGET", key, "w0") == "1:1000000000:1000000000"
    assert await valkey.call("PTTL", key) > 9000
    other = Leases(some, valkey, "h", router_of(some).counts)
    assert await other._run(10_000, []) == [[], [1, 10**9, 10**9]]
