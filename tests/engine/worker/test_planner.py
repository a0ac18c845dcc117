"""The scheduler's half alone, against a double of vLLM's request at the process border."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.store.directory import Match, PrefixStore, TenantBlocks
from engine.worker import clock
from engine.worker.messages import StepReport
from engine.worker.planner import SYNCHRONOUS, Planner

from .vllm_double import NAMESPACE, Request, asked, attested, break_promise, keep, planner_of, step


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return PrefixStore(tmp_path / "store", clock.now_s)


@pytest.fixture
def planner(store: PrefixStore, tmp_path: Path) -> Planner:
    return planner_of(store, tmp_path / "journal")


@pytest.mark.parametrize(("prompt", "hit"), [(640, 576), (641, 640), (64, 0), (65, 64), (1, 0)])
def test_one_token_is_always_left_to_compute(
    store: PrefixStore, planner: Planner, prompt: int, hit: int
) -> None:
    request = Request(list(range(prompt)))
    keep(store, request.block_hashes)
    planner.add(request)
    assert asked(planner, request) == hit


def test_a_load_begins_where_the_device_hit_ends(store: PrefixStore, planner: Planner) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    planner.add(request)
    assert asked(planner, request, device_tokens=128) == 832
    planner.admit(request, list(range(50, 70)), 832)
    (load,) = planner.orders(step(request, 0)).loads
    assert (load.first, load.block_ids) == (2, tuple(range(52, 65)))
    assert load.block_hashes == tuple(request.block_hashes[2:15])


def test_what_could_not_be_loaded_is_no_hit(store: PrefixStore, planner: Planner) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    planner.add(request)
    asked(planner, request, device_tokens=64)
    planner.admit(request, list(range(20)), 896)
    planner.learn(StepReport(loaded={"engine-id": 3}))
    statement = attested(planner, request)
    assert (statement.hit_device_tokens, statement.hit_store_tokens) == (64, 192)


def test_a_load_that_is_not_reported_is_no_hit(store: PrefixStore, planner: Planner) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    planner.add(request)
    asked(planner, request)
    planner.admit(request, list(range(20)), 960)
    assert attested(planner, request).hit_tokens == 0


def test_blocks_found_again_after_a_preemption_are_no_hits(store: PrefixStore, planner: Planner) -> None:
    request = Request(list(range(1000)))
    planner.add(request)
    assert asked(planner, request) == 0
    planner.admit(request, list(range(20)), 0)
    keep(store, request.block_hashes)
    request.num_preemptions = 1
    assert asked(planner, request, device_tokens=64) == 896
    planner.admit(request, list(range(20)), 896)
    planner.learn(StepReport(loaded={"engine-id": 14}))
    assert attested(planner, request).hit_tokens == 0


def test_a_first_block_that_failed_is_not_asked_for_again(store: PrefixStore, planner: Planner) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    planner.add(request)
    asked(planner, request)
    planner.admit(request, list(range(20)), 960)
    planner.learn(StepReport(loaded={"engine-id": 0}))
    assert asked(planner, request) == 0


def test_each_block_is_ordered_saved_once_when_it_is_whole(planner: Planner) -> None:
    request = Request(list(range(1000)))
    planner.add(request)
    saved: list[int] = []
    for chunk in (500, 12, 448, 40):
        for save in planner.orders(step(request, chunk)).saves:
            saved.extend(range(save.first, save.first + len(save.block_hashes)))
            assert save.block_ids == tuple(
                100 + index for index in range(save.first, save.first + len(save.block_ids))
            )
        request.num_computed_tokens += chunk
    assert saved == list(range(15))


def test_tokens_that_are_only_drafts_complete_no_block(planner: Planner) -> None:
    request = Request(list(range(60)), stage="decode")
    request.num_computed_tokens = 60
    request.num_output_tokens = 1
    planner.add(request)
    assert planner.orders(step(request, 5)).saves == []


def test_a_refused_block_is_ordered_again(planner: Planner) -> None:
    request = Request(list(range(1000)))
    planner.add(request)
    planner.orders(step(request, 640))
    request.num_computed_tokens = 640
    planner.learn(StepReport(refused={"engine-id": 4}))
    (save,) = planner.orders(step(request, 64)).saves
    assert (save.first, len(save.block_ids)) == (4, 7)


def test_a_step_over_synchronous_loads_saves_nothing_and_says_so(
    planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    request = Request(list(range(1000)))
    planner.add(request)
    assert planner.orders(step(request, 640, sync=True)).saves == []
    assert SYNCHRONOUS in caplog.text
    request.num_computed_tokens = 640
    assert planner.orders(step(request, 64)).saves[0].first == 0


@pytest.mark.parametrize(
    "change", [{"cache_salt": None}, {"kv_transfer_params": None}, {"kv_transfer_params": {"a": 1}}]
)
def test_a_request_that_no_cluster_sent_touches_no_store(
    store: PrefixStore, planner: Planner, change: dict[str, Any]
) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    for name, value in change.items():
        setattr(request, name, value)
    planner.add(request)
    assert planner.match(request, 0) == 0
    planner.admit(request, list(range(20)), 0)
    orders = planner.orders(step(request, 640))
    assert (orders.loads, orders.saves) == ([], [])
    assert planner.finish(request) is None


def test_a_promise_covers_every_full_block_of_the_prompt(store: PrefixStore, planner: Planner) -> None:
    whole, holed = Request(list(range(200))), Request(list(range(500, 700)))
    keep(store, whole.block_hashes)
    keep(store, holed.block_hashes[:2])
    for request in (whole, holed):
        planner.add(request)
        planner.admit(request, list(range(20)), 0)
        promised = attested(planner, request).promised_until
        assert (promised is not None) == (request is whole)


def pins(store: PrefixStore) -> list[Path]:
    return list(store.root.glob("pins/*.pin"))


def until_unpinned(store: PrefixStore) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if not pins(store):
            return
        pause.wait(0.005)
    raise AssertionError("still pinned")


def test_a_broken_promise_is_attested_as_owed_behind_the_hit(store: PrefixStore, planner: Planner) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    for index in range(10, 15):
        break_promise(store, request.block_hashes[index])
    planner.add(request)
    assert asked(planner, request, device_tokens=64) == 576
    planner.admit(request, list(range(20)), 576)
    planner.learn(StepReport(loaded={"engine-id": 9}))
    statement = attested(planner, request)
    assert (statement.hit_tokens, statement.owed_tokens, statement.prompt_tokens) == (640, 320, 1000)


def test_a_prompt_that_is_owed_whole_still_computes_its_last_block_at_its_own_cost(
    store: PrefixStore, planner: Planner
) -> None:
    request = Request(list(range(640)))
    keep(store, request.block_hashes)
    for block_hash in request.block_hashes:
        break_promise(store, block_hash)
    planner.add(request)
    assert asked(planner, request) == 0
    planner.admit(request, list(range(20)), 0)
    statement = attested(planner, request)
    assert (statement.hit_tokens, statement.owed_tokens) == (0, 576)


def test_a_block_that_goes_between_look_up_and_load_is_owed_and_a_corrupt_one_is_not(
    store: PrefixStore, planner: Planner
) -> None:
    for first, owed in ((0, 640), (5000, 0)):
        request = Request(list(range(first, first + 1000)))
        keep(store, request.block_hashes)
        planner.add(request)
        assert asked(planner, request) == 960
        planner.admit(request, list(range(20)), 960)
        gone = request.block_hashes[5]
        if owed:
            until_lapsed(store)
            break_promise(store, gone)
        else:
            store.namespace(NAMESPACE, "ten_a").quarantine(gone)
        planner.learn(StepReport(loaded={"engine-id": 5}))
        statement = attested(planner, request)
        assert (statement.hit_tokens, statement.owed_tokens) == (320, owed)


def until_lapsed(store: PrefixStore) -> None:
    """Every pin has lapsed."""
    for pin in pins(store):
        os.utime(pin, (1, 1))


def test_what_was_found_is_pinned_until_it_is_loaded(store: PrefixStore, planner: Planner) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    planner.add(request)
    asked(planner, request)
    planner.admit(request, list(range(20)), 960)
    (pin,) = pins(store)
    assert len(pin.read_text().splitlines()) == 15
    planner.learn(StepReport(loaded={"engine-id": 15}))
    until_unpinned(store)


def test_a_request_that_ends_before_its_load_leaves_no_pin(store: PrefixStore, planner: Planner) -> None:
    for admitted in (True, False):
        request = Request(list(range(1000)))
        keep(store, request.block_hashes)
        planner.add(request)
        asked(planner, request)
        if admitted:
            planner.admit(request, list(range(20)), 960)
        assert pins(store)
        planner.finish(request)
        until_unpinned(store)


@settings(deadline=None, max_examples=40)
@given(
    prompt=st.integers(1, 500),
    states=st.lists(st.sampled_from(["there", "owed", "missing"]), min_size=8, max_size=8),
    device=st.integers(0, 7),
    lost=st.integers(0, 8),
)
def test_hit_and_owed_never_reach_the_prompt_and_owed_is_only_what_was_promised(
    tmp_path_factory: pytest.TempPathFactory, prompt: int, states: list[str], device: int, lost: int
) -> None:
    store = PrefixStore(tmp_path_factory.mktemp("store"), clock.now_s)
    planner = planner_of(store, tmp_path_factory.mktemp("journal"))
    request = Request(list(range(prompt)))
    for block_hash, state in zip(request.block_hashes, states, strict=False):
        if state != "missing":
            keep(store, [block_hash])
        if state == "owed":
            break_promise(store, block_hash)
    device_tokens = min(device, (prompt - 1) // 64) * 64
    planner.add(request)
    found = asked(planner, request, device_tokens)
    planner.admit(request, list(range(20)), found)
    loaded = max(0, found // 64 - lost)
    if found:
        planner.learn(StepReport(loaded={"engine-id": loaded}))
    statement = attested(planner, request)
    assert statement.hit_tokens == device_tokens + loaded * 64
    assert statement.hit_tokens + statement.owed_tokens <= prompt - 1
    first, end = statement.hit_tokens // 64, (statement.hit_tokens + statement.owed_tokens) // 64
    assert "missing" not in states[first:end]
    assert states[first:end][:1] in ([], ["owed"])
    planner.close()


class StuckBlocks:
    """A disk that answers when it is let go."""

    def __init__(self, blocks: TenantBlocks | None = None) -> None:
        self.release = threading.Event()
        self.held = threading.Event()
        self._blocks = blocks

    def hold(self, hashes: Sequence[bytes]) -> Match:
        self.release.wait(30)
        found = Match(len(hashes)) if self._blocks is None else self._blocks.hold(hashes)
        self.held.set()
        return found


class StuckStore:
    def __init__(self, blocks: TenantBlocks | None = None) -> None:
        self.blocks = StuckBlocks(blocks)

    def namespace(self, digest: str, tenant: str) -> StuckBlocks:
        return self.blocks


def test_a_disk_that_does_not_answer_holds_back_its_request_and_no_step(tmp_path: Path) -> None:
    store: Any = StuckStore()
    planner = planner_of(store, tmp_path)
    request = Request(list(range(1000)))
    planner.add(request)
    started_s = clock.monotonic_s()
    assert planner.match(request, 0) is None
    assert clock.monotonic_s() - started_s < 1
    store.blocks.release.set()
    assert asked(planner, request) == 960
    planner.close()


def test_what_a_waiting_request_will_not_compute_is_foreseen_without_waiting(
    store: PrefixStore, planner: Planner
) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes[:8])
    planner.add(request)
    while (foreseen := planner.foresee(request, 128)) == 128:
        pass
    assert foreseen == 512
    assert planner.foresee(request, 640) == 640, "the device has come to hold more"
    assert planner.match(request, 128) == 384, "no second question"


def test_of_a_disk_that_is_silent_nothing_is_foreseen(tmp_path: Path) -> None:
    store: Any = StuckStore()
    planner = planner_of(store, tmp_path)
    request = Request(list(range(1000)))
    planner.add(request)
    started_s = clock.monotonic_s()
    assert planner.foresee(request, 64) == 64
    assert clock.monotonic_s() - started_s < 1
    store.blocks.release.set()
    planner.close()


def test_of_a_request_of_nobody_only_the_device_is_foreseen(planner: Planner) -> None:
    request = Request(list(range(1000)), cache_salt=None)
    planner.add(request)
    assert planner.foresee(request, 64) == 64


def test_a_request_that_ends_while_it_is_looked_up_leaves_no_pin(store: PrefixStore, tmp_path: Path) -> None:
    slow: Any = StuckStore(store.namespace(NAMESPACE, "ten_a"))
    planner = planner_of(slow, tmp_path / "slow")
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    planner.add(request)
    assert planner.match(request, 0) is None
    planner.finish(request)
    slow.blocks.release.set()
    assert slow.blocks.held.wait(30)
    until_unpinned(store)
