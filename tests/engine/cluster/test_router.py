"""Where requests go."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Deadlines, EngineOptions, EngineUnavailable, Role, WorkerAddress
from engine.cluster import prefixes
from engine.cluster.prefixes import Known, Prefixes, PromptTokens
from engine.cluster.router import Ask, Placement, Router, Worker
from engine.cluster.score import HANDOFF_S, Candidate, Load, choose, prefill_s
from engine.cluster.worker_client import WorkerClient
from engine.cost import CostLaw
from engine.proof.prefix import block_hashes
from engine.store.directory import PrefixStore
from engine.store.namespace import Namespace
from engine.wire import Stage, WorkerReport

NAMESPACE = "5" * 64
SALT = "a" * 64
TENANT = "ten_0123456789abcdef01234567"
IDLE = WorkerReport(0, 0, 0, 0, draining=False, namespace=NAMESPACE)


def workers(*roles: Role) -> list[Worker]:
    addresses = (WorkerAddress(f"w{n}", role, Path("/nowhere")) for n, role in enumerate(roles))
    return [Worker(WorkerClient(address, Deadlines()), ready=True) for address in addresses]


def router_of(some: list[Worker], **more: Any) -> Router:
    addresses = tuple(worker.client.address for worker in some)
    return Router(some, EngineOptions(addresses, b"s" * 32, b"", **more))


def prompt(tokens: int, first: int = 0) -> Ask:
    return Ask("prompt", tuple(range(first, first + tokens)), SALT, TENANT)


def output(tokens: int) -> Ask:
    return dataclasses.replace(prompt(tokens), kind="output")


class Placing:
    """Places calls and keeps them until the end of the test."""

    def __init__(self, stack: contextlib.AsyncExitStack, router: Router) -> None:
        self._stack = stack
        self._router = router

    async def __call__(self, ask: Ask, *tried: Worker) -> Placement:
        return await self._stack.enter_async_context(self._router.placed(ask, tried))


@contextlib.asynccontextmanager
async def placing(some: list[Worker], **more: Any):
    async with contextlib.AsyncExitStack() as stack:
        yield Placing(stack, router_of(some, **more))


async def where(router: Router, ask: Ask, *tried: Worker) -> tuple[Worker, Stage]:
    async with router.placed(ask, tried) as placement:
        return placement.worker, placement.stage


async def test_a_prompt_goes_where_the_fewest_seconds_wait() -> None:
    first, second = pair = workers("prefill", "prefill")
    async with placing(pair) as place:
        assert (await place(prompt(4000))).worker is first
        assert [(await place(prompt(1000, first=n))).worker for n in (1, 2, 3)] == [second] * 3, (
            "seconds, not tokens: attention makes the long prompt cost more than three short ones"
        )
        assert (await place(prompt(100), second)).worker is first


async def test_a_slower_worker_is_given_less() -> None:
    first, second = pair = workers("prefill", "prefill")
    first.hear(dataclasses.replace(IDLE, law=(0.0385, 2.1e-3, 1.3e-6)), 0.0)
    second.hear(dataclasses.replace(IDLE, law=(0.011, 6e-4, 3.7e-7)), 0.0)
    async with placing(pair) as place:
        placed = [(await place(prompt(1000, first=n))).worker for n in range(5)]
    assert placed == [second, second, second, first, second]


async def test_an_output_weighs_running_requests_and_context() -> None:
    first, second = pair = workers("decode", "decode")
    async with placing(pair) as place:
        long = await place(output(100))
        assert long.worker is first
        assert (await place(output(10))).worker is second
        assert (await place(output(10))).worker is second, "10 tokens of context weigh less than 100"
        assert (await place(output(10))).worker is first, "two requests weigh more than 90 tokens"
        long.tokens = 10_000
        assert [(await place(output(10))).worker for _ in range(3)] == [second] * 3, "context grows"


async def test_an_output_avoids_a_worker_that_has_a_prompt_to_compute() -> None:
    first, second = pair = workers("both", "both")
    async with placing(pair) as place:
        computing = await place(prompt(2000))
        assert (computing.worker, computing.stage) == (first, "both")
        assert [(await place(output(500))).worker for _ in range(4)] == [second] * 4
        computing.tokens += 1
        assert (await place(output(500))).worker is first, "its first token says that the prompt is computed"


async def test_a_worker_for_everything_is_given_prompts_by_its_queue_then_by_its_streams() -> None:
    first, second = pair = workers("both", "both")
    async with placing(pair) as place:
        stream = await place(output(500))
        assert stream.worker is first
        computing = await place(prompt(1000))
        assert (computing.worker, computing.stage, computing.reason) == (second, "both", "mono")
        assert (await place(prompt(500))).worker is first, "a queue is worth more than a stream"


def test_scores_are_the_measured_laws() -> None:
    one = Candidate(0, "decode", "stored", 0, Load(), 9, 10**6)
    assert one.score_ns(Load(2, 1000, 0)) == 2 * 470_000 + 1000 * 3_200, "0.47 ms a request, 3.2 us a token"
    assert one.score_ns(Load(0, 0, 1280)) == pytest.approx(10**7, rel=1e-3), (
        "a prefill delays an output once, not each token"
    )
    waiting = dataclasses.replace(one, stage="prefill", own_ns=5)
    assert waiting.score_ns(Load(9, 9999, 3)) == 3_000_005
    law = CostLaw(0.01, 0.001, 0.0)
    assert [prefill_s(law, 64, 64 + n) for n in (1, 512, 513)] == pytest.approx([0.011, 0.522, 0.533])


async def test_strict_roles_are_kept() -> None:
    prefill, decode, both = trio = workers("prefill", "decode", "both")
    router = router_of(trio, elastic=False, worker_requests_max=1)
    assert await where(router, prompt(9)) == (prefill, "prefill")
    assert await where(router, prompt(9), prefill) == (both, "both")
    assert await where(router, output(9)) == (decode, "decode")
    assert await where(router, output(9), decode) == (both, "decode")
    prefill.ready = False
    async with router.placed(prompt(9), ()) as placement:
        assert placement.worker is both
        with pytest.raises(EngineUnavailable):
            await where(router, prompt(9))
        assert router.ready, "a full worker lives"
    both.ready = False
    assert not router.ready
    with pytest.raises(EngineUnavailable, match="ready") as caught:
        await where(router, prompt(9))
    assert caught.value.retry_after_s == Deadlines().retry_after_s
    assert router.counts.refusals == {"full": 1, "none_ready": 1}


async def test_the_worker_that_is_left_does_everything() -> None:
    prefill, decode = pair = workers("prefill", "decode")
    router = router_of(pair)
    prefill.ready = False
    assert await where(router, prompt(4000)) == (decode, "both")
    assert await where(router, output(4000)) == (decode, "decode")
    prefill.ready, decode.ready = True, False
    assert await where(router, prompt(4000)) == (prefill, "prefill")
    assert await where(router, output(4000)) == (prefill, "decode")
    decode.ready = True
    assert await where(router, prompt(4000), prefill) == (decode, "both"), "the prefill worker has failed it"
    assert router.counts.retries == {"both": 1}


async def test_with_little_left_to_compute_the_hand_off_is_skipped() -> None:
    prefill, decode = pair = workers("prefill", "decode")
    async with placing(pair) as place:
        await place(output(2000))
        assert (await place(prompt(128))).stage == "both"
        assert (await place(prompt(129))).worker is prefill
        behind = await place(prompt(128))
        assert (behind.worker, behind.stage, behind.reason) == (decode, "both", "little_left")
    async with placing(pair) as place:
        placed = [(await place(prompt(128, first=n))).worker for n in range(6)]
        assert placed.count(prefill) >= 2, "but a queue costs more than a hand-off"


async def test_a_long_prompt_never_joins_streams_on_a_decode_worker() -> None:
    prefill, decode = pair = workers("prefill", "decode")
    async with placing(pair) as place:
        stream = await place(output(10))
        assert stream.worker is decode
        for n in range(20):
            assert (await place(prompt(4000, first=n))).worker is prefill


async def test_an_idle_decode_worker_is_borrowed_when_that_is_much_sooner() -> None:
    prefill, first, _ = trio = workers("prefill", "decode", "decode")
    async with placing(trio) as place:
        assert (await place(prompt(1000))).worker is prefill, "idle too, and no hand-off is worth nothing"
        borrowed = await place(prompt(2000))
        assert (borrowed.worker, borrowed.stage, borrowed.reason) == (first, "both", "idle")
        assert (await place(prompt(2000))).worker is prefill, "the last one is kept for the streams to come"


async def test_nobody_borrows_for_less_than_a_hand_off_is_worth() -> None:
    prefill, *_ = trio = workers("prefill", "decode", "decode")
    async with placing(trio) as place:
        waiting = await place(prompt(129))
        assert 0 < waiting.left_ms < 1000 * HANDOFF_S
        assert (await place(prompt(2000))).worker is prefill


async def test_the_only_decode_worker_is_back_before_the_first_stream_needs_it() -> None:
    prefill, decode = pair = workers("prefill", "decode")
    async with placing(pair) as place:
        await place(prompt(4000))
        assert (await place(prompt(3990, first=1))).worker is decode
    async with placing(pair) as place:
        await place(prompt(1000))
        assert (await place(prompt(1010))).worker is prefill, "the first would come back to a busy worker"
        decode.report = None
    async with placing(pair) as place:
        await place(prompt(4000))
        prefill.others = Load(1, 500, 300)
        assert (await place(prompt(1000))).worker is prefill, "nobody here knows when the other's will come"


async def test_a_queue_has_an_end_and_says_when_to_come_again() -> None:
    some = workers("prefill")
    one_s = prefill_s(CostLaw(), 0, 4000)
    async with placing(some, queue_s_max=2.5 * one_s, elastic=False) as place:
        for n in range(3):
            await place(prompt(4000, first=n))
        with pytest.raises(EngineUnavailable) as caught:
            await place(prompt(4000))
        assert caught.value.retry_after_s == -(-one_s // 2), "half a prompt above the bound"
    async with placing(some, queue_s_max=0.0, elastic=False) as place:
        await place(prompt(40_000))
        with pytest.raises(EngineUnavailable) as caught:
            await place(prompt(1))
        assert caught.value.retry_after_s == 60


async def test_what_a_worker_says_is_running_counts_at_least() -> None:
    first, second = pair = workers("decode", "decode")
    first.hear(dataclasses.replace(IDLE, running=3, waiting=1, kv_tokens=2000), 0.0)
    async with placing(pair, worker_requests_max=5) as place:
        assert [(await place(output(10))).worker for _ in range(4)] == [second] * 4
        first.hear(dataclasses.replace(IDLE, running=4), 0.0)
        assert first.load.running == 4
        await place(output(10), second)
        assert first.load.running == 5
        with pytest.raises(EngineUnavailable):
            await place(output(10), second)


async def test_a_report_corrects_how_much_of_a_prefill_is_left() -> None:
    (worker,) = some = workers("prefill")
    async with placing(some) as place:
        long = await place(prompt(4000))
        whole_ms = long.left_ms
        now_s = long.placed_s + 0.1
        worker.hear(IDLE, now_s)
        assert long.left_ms == whole_ms, "the report may be older than the call"
        worker.hear(dataclasses.replace(IDLE, running=1, prefill_tokens=1000), now_s + 1)
        assert long.left_ms == pytest.approx(1000 * prefill_s(CostLaw(), 0, 1000), rel=0.05)
        fresh = await place(prompt(2000))
        worker.hear(dataclasses.replace(IDLE, running=1), now_s + 2)
        assert (long.left_ms, fresh.left_ms > 0) == (0, False)
        worker.hear(dataclasses.replace(IDLE, running=9, waiting=9, prefill_tokens=9000), now_s + 3)
        assert worker.load.queued_ms > 5000, "and counts what nobody here has sent"


def test_what_a_worker_said_dies_with_it() -> None:
    (worker,) = workers("decode")
    worker.hear(dataclasses.replace(IDLE, running=3), 0.0)
    worker.lost()
    assert (worker.ready, worker.load, worker.report is not None) == (False, Load(), True)


async def test_a_draining_worker_is_given_nothing() -> None:
    first, second = pair = workers("prefill", "prefill")
    first.hear(dataclasses.replace(IDLE, draining=True), 0.0)
    assert await where(router_of(pair), prompt(9)) == (second, "prefill")
    assert first.snapshot().draining
    first.hear(IDLE, 0.0)
    assert await where(router_of(pair), prompt(9)) == (first, "prefill")


async def test_a_prompt_comes_back_to_the_device_that_computed_it_unless_it_would_wait() -> None:
    first, second = pair = workers("prefill", "prefill")
    router = router_of(pair)
    async with router.placed(prompt(500, first=7), ()):
        assert await where(router, prompt(1000)) == (second, "prefill")
    assert await where(router, prompt(1000)) == (second, "prefill"), "where its blocks are"
    assert await where(router, prompt(1000, first=9)) == (first, "prefill"), "other tokens, other blocks"
    async with router.placed(prompt(1000), ()):
        assert await where(router, prompt(1000)) == (first, "prefill")


async def test_stored_blocks_cost_next_to_nothing(tmp_path: Path) -> None:
    prefill, decode = pair = workers("prefill", "decode")
    store = PrefixStore(tmp_path, lambda: 1_790_000_000)
    publish(store, prompt(1000).token_ids, 15)
    async with placing(pair, store_dir=tmp_path) as place:
        assert (await place(prompt(1000))).worker is prefill, "no worker has said what it calls its blocks"
        prefill.report = decode.report = IDLE
        assert (await place(prompt(1000))).stage == "both", "40 tokens are left to compute"
        cold = dataclasses.replace(prompt(1000), tenant="ten_another")
        assert (await place(cold)).stage == "prefill", "tenants do not share"


def publish(store: PrefixStore, token_ids: Sequence[int], count: int) -> None:
    blocks = store.namespace(NAMESPACE, TENANT)
    for block_hash in block_hashes(token_ids, SALT)[:count]:
        blocks.publish(block_hash, [memoryview(b"kv")], "chat")


@pytest.mark.parametrize("stored", [0, 1, 7, 8, 15, 16])
async def test_the_stored_part_is_found_exactly_and_leaves_a_token_to_compute(
    tmp_path: Path, stored: int
) -> None:
    token_ids = tuple(range(1024))
    publish(PrefixStore(tmp_path, lambda: 1_790_000_000), token_ids, stored)
    reading = Prefixes(tmp_path)
    known = await reading.look_up(PromptTokens(token_ids, SALT, TENANT), {NAMESPACE, "", "../x", "6" * 64})
    assert known is not None
    assert known.stored_tokens == {NAMESPACE: min(stored, 15) * 64, "6" * 64: 0}
    reading.close()


async def test_blocks_are_as_long_as_their_namespace_says(tmp_path: Path) -> None:
    store, token_ids = PrefixStore(tmp_path, lambda: 1_790_000_000), tuple(range(1024))
    store.describe(Namespace(NAMESPACE, NAMESPACE, block_tokens=32))
    for block_hash in block_hashes(token_ids, SALT, 32)[:9]:
        store.namespace(NAMESPACE, TENANT).publish(block_hash, [memoryview(b"kv")], "chat")
    reading = Prefixes(tmp_path)
    known = await reading.look_up(PromptTokens(token_ids, SALT, TENANT), {NAMESPACE})
    assert known is not None
    assert known.stored_tokens == {NAMESPACE: 288}
    reading.close()


def test_only_so_many_blocks_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "REMEMBERED_MAX", 3)
    remembering = Prefixes(None)
    old, new = Known([b"a", b"b"]), Known([b"c", b"d"])
    remembering.remember(old, "w0")
    remembering.remember(new, "w1")
    assert [remembering.on_device(new, "w1"), remembering.on_device(old, "w0")] == [2, 0]
    assert len(remembering._workers) == 3


async def test_a_disk_that_hangs_delays_nobody_for_long() -> None:
    pair = workers("prefill", "prefill")
    router, hung = router_of(pair), threading.Event()
    try:
        for _ in range(2):
            router._prefixes._threads.submit(hung.wait)
        for _ in range(20):
            async with asyncio.timeout(5):
                assert await where(router, prompt(1000)) == (pair[0], "prefill")
        assert router.counts.unestimated == 20
        assert router._prefixes._pending == 16, "the last four did not even ask"
    finally:
        hung.set()
    await router.close()


loads = st.builds(Load, st.integers(0, 200), st.integers(0, 10**6), st.integers(0, 10**5))
candidates = st.builds(
    Candidate,
    worker=st.integers(0, 2),
    stage=st.sampled_from(["prefill", "decode", "both"]),
    reason=st.just("any"),
    own_ns=st.integers(0, 10**12),
    load=st.builds(Load, st.just(1), st.integers(0, 10**5), st.integers(0, 10**5)),
    running_below=st.integers(1, 200),
    queued_ms_max=st.integers(0, 120_000),
)


@given(st.lists(candidates, max_size=8), st.lists(loads, min_size=3, max_size=3))
def test_the_choice_fits_and_nothing_that_fits_scores_less(some: list[Candidate], at: list[Load]) -> None:
    index = choose(some, at)
    fit = [each for each in some if each.fits(at[each.worker])]
    if index is None:
        assert not fit
    else:
        assert some[index] in fit
        assert some[index].score_ns(at[some[index].worker]) == min(
            each.score_ns(at[each.worker]) for each in fit
        )


@given(candidates, loads, loads)
def test_more_load_never_makes_a_worker_better(one: Candidate, load: Load, more: Load) -> None:
    assert one.score_ns(load + more) >= one.score_ns(load)
    assert one.fits(load) or not one.fits(load + more)


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.floats(0, 1, exclude_max=True))
def test_a_prompt_never_costs_less_for_being_longer_or_more_for_being_stored(
    tokens: int, more: int, stored: float
) -> None:
    law = CostLaw()
    assert prefill_s(law, 0, tokens) <= prefill_s(law, 0, tokens + more)
    assert prefill_s(law, int(tokens * stored), tokens) <= prefill_s(law, 0, tokens) * (1 + 1e-9)
    assert HANDOFF_S > 0


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_calls_give_back_what_they_took(sizes: Sequence[int]) -> None:
    pair = workers("prefill", "prefill")

    async def place_all() -> list[Load]:
        async with placing(pair) as place:
            for size in sizes:
                await place(prompt(size))
            return [worker.own for worker in pair]

    first, second = asyncio.run(place_all())
    assert first.kv_tokens + second.kv_tokens == sum(sizes)
    longest_ms = 1000 * prefill_s(CostLaw(), 0, max(sizes))
    assert abs(first.queued_ms - second.queued_ms) <= longest_ms + len(sizes), "never off by more than one"
    assert [worker.own for worker in pair] == [Load(), Load()]
