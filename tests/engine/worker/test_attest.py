"""What the scheduler's half attests, however a request ends, against a double of vLLM's request."""

import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.proof.attestation import DecodeAttestation, PrefillAttestation, commitment
from engine.store.directory import PrefixStore
from engine.wire import AnswerParams
from engine.worker import clock
from engine.worker.messages import StepReport
from engine.worker.planner import Planner

from .vllm_double import (
    NAMESPACE,
    Request,
    asked,
    attested,
    break_promise,
    journalled,
    keep,
    planner_of,
    step,
)

Stage = Literal["prefill", "decode", "both"]


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return PrefixStore(tmp_path / "store", clock.now_s)


@pytest.fixture
def journal_dir(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def planner(store: PrefixStore, journal_dir: Path) -> Planner:
    return planner_of(store, journal_dir)


def ended(request: Request, how: str | None, generated: int = 0) -> Request:
    request.ended, request.num_output_tokens = how, generated
    return request


def admitted(planner: Planner, request: Request, device_tokens: int = 0) -> int:
    """Look a new request up and admit it; how many blocks it is to load."""
    planner.add(request)
    found = asked(planner, request, device_tokens)
    planner.admit(request, list(range(40)), found)
    return found // 64


def one_of_each(journal_dir: Path) -> tuple[PrefillAttestation, DecodeAttestation]:
    prefill, decode = journalled(journal_dir)
    assert isinstance(prefill, PrefillAttestation)
    assert isinstance(decode, DecodeAttestation)
    return prefill, decode


def test_a_finished_prefill_says_the_same_in_its_answer_and_in_the_journal(
    planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(200)))
    admitted(planner, request)
    statement = attested(planner, request)
    assert journalled(journal_dir) == [statement]
    assert (statement.request_id, statement.attempt, statement.computed) == ("ours", 3, True)


@pytest.mark.parametrize(
    ("until", "hits"), [("waiting", (0, 0)), ("loading", (64, 0)), ("prefilling", (64, 832))]
)
def test_a_prefill_cut_short_attests_what_was_really_loaded_and_that_it_computed_nothing(
    store: PrefixStore, planner: Planner, journal_dir: Path, until: str, hits: tuple[int, int]
) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    planner.add(request)
    asked(planner, request, device_tokens=64)
    if until != "waiting":
        planner.admit(request, list(range(20)), 896)
    if until == "prefilling":
        planner.learn(StepReport(loaded={"engine-id": 13}))
    planner.finish(ended(request, "abort"))
    (line,) = journalled(journal_dir)
    assert isinstance(line, PrefillAttestation)
    assert not line.computed
    assert (line.hit_device_tokens, line.hit_store_tokens) == hits
    assert (line.promised_until, line.owed_tokens, line.output_to) == (None, 0, 0)


@pytest.mark.parametrize(
    ("reason", "attested_as"),
    [
        ("stop", "stop"),
        ("repetition", "stop"),
        ("length", "length"),
        ("abort", "abort"),
        ("error", "error"),
        (None, "abort"),
    ],
)
def test_a_decode_attests_what_it_generated_and_how_it_ended(
    planner: Planner, journal_dir: Path, reason: str | None, attested_as: str
) -> None:
    request = Request(list(range(300)), stage="decode")
    admitted(planner, request, device_tokens=256)
    assert planner.finish(ended(request, reason, generated=7)) is None
    (line,) = journalled(journal_dir)
    assert isinstance(line, DecodeAttestation)
    assert (line.output_from, line.output_to, line.ended) == (0, 7, attested_as)
    assert (line.prompt_tokens, line.handoff_tokens, line.stage) == (300, 256, "decode")


def test_a_resumed_decode_speaks_of_the_clients_prompt_and_goes_on_where_the_last_one_stopped(
    store: PrefixStore, planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(200)), stage="decode", output_from=50)
    keep(store, request.block_hashes)
    assert admitted(planner, request) == 3
    planner.learn(StepReport(loaded={"engine-id": 3}))
    planner.finish(ended(request, "length", generated=10))
    (line,) = journalled(journal_dir)
    assert isinstance(line, DecodeAttestation)
    assert (line.prompt_tokens, line.output_from, line.output_to) == (150, 50, 60)
    assert line.handoff_tokens == 192, "what was carried is handed over like the prompt"


def test_a_prompt_behind_which_output_is_carried_is_attested_without_it(
    store: PrefixStore, planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(200)), stage="both", output_from=72)
    keep(store, request.block_hashes)
    assert admitted(planner, request) == 3
    planner.learn(StepReport(loaded={"engine-id": 3}))
    planner.finish(ended(request, "stop", generated=4))
    prefill, decode = one_of_each(journal_dir)
    assert (prefill.prompt_tokens, prefill.hit_tokens) == (128, 64)
    assert prefill.prompt_commitment == commitment(bytes(32), range(128))
    assert prefill.cached_prefix_commitment == commitment(bytes(32), range(64))
    assert (decode.output_from, decode.output_to) == (72, 76)


def test_output_that_leaves_no_prompt_is_nobodys_request(planner: Planner, journal_dir: Path) -> None:
    request = Request(list(range(50)), stage="decode", output_from=50)
    planner.add(request)
    assert planner.finish(ended(request, "stop", generated=1)) is None
    assert (journalled(journal_dir), planner.unattested) == ([], 0)


def test_a_worker_that_does_both_attests_the_prompt_once_when_its_first_token_is_drawn(
    store: PrefixStore, planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(200)), stage="both")
    keep(store, request.block_hashes)
    admitted(planner, request, device_tokens=64)
    planner.learn(StepReport(loaded={"engine-id": 2}))
    planner.attest_computed()
    assert journalled(journal_dir) == []
    request.num_output_tokens = 1
    planner.attest_computed()
    (line,) = journalled(journal_dir)
    assert isinstance(line, PrefillAttestation)
    assert (line.stage, line.hit_tokens, line.computed, line.output_to) == ("both", 192, True, 0)
    assert line.promised_until is not None
    request.num_output_tokens = 2
    planner.attest_computed()
    answer = AnswerParams.from_params(planner.finish(ended(request, "length", generated=3)))
    prefill, decode = one_of_each(journal_dir)
    assert prefill == line
    assert (decode.stage, decode.output_from, decode.output_to, decode.handoff_tokens) == ("both", 0, 3, 0)
    assert PrefillAttestation.KIND in answer.attestation


def test_a_worker_that_does_both_and_is_cut_short_attests_no_prompt_and_no_token(
    planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(200)), stage="both")
    admitted(planner, request)
    planner.finish(ended(request, "abort"))
    prefill, decode = one_of_each(journal_dir)
    assert not prefill.computed
    assert (decode.output_from, decode.output_to, decode.ended) == (0, 0, "abort")


@pytest.mark.parametrize(
    ("stage", "asked_for", "how", "output_to"),
    [
        ("prefill", True, "length", 1),
        ("prefill", True, "stop", 1),
        ("prefill", True, "error", 0),
        ("prefill", True, "abort", 0),
        ("prefill", False, "length", 0),
        ("both", True, "length", 0),
    ],
)
def test_a_prefill_attests_a_token_when_the_client_is_to_have_it(
    planner: Planner, journal_dir: Path, stage: Stage, asked_for: bool, how: str, output_to: int
) -> None:
    request = Request(list(range(200)), stage=stage, first_token=asked_for)
    admitted(planner, request)
    request.num_output_tokens = 1
    planner.attest_computed()
    planner.finish(ended(request, how, generated=1))
    line = journalled(journal_dir)[0]
    assert isinstance(line, PrefillAttestation)
    assert line.output_to == output_to


def test_what_is_in_flight_when_the_worker_ends_is_attested_as_aborted_once(
    planner: Planner, journal_dir: Path
) -> None:
    waiting = Request(list(range(200)), request_id="waiting")
    decoding = Request(list(range(200)), stage="decode", request_id="decoding")
    for request in (waiting, decoding):
        admitted(planner, request)
    decoding.num_output_tokens = 9
    planner.close()
    planner.close()
    assert planner.finish(ended(decoding, "stop", generated=9)) is None
    prefill, decode = one_of_each(journal_dir)
    assert not prefill.computed
    assert (decode.output_to, decode.ended) == (9, "abort")


def test_what_a_preempted_decode_finds_again_was_not_handed_over(
    store: PrefixStore, planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(300)), stage="decode")
    keep(store, request.block_hashes[:2])
    assert admitted(planner, request) == 2
    planner.learn(StepReport(loaded={"engine-id": 2}))
    keep(store, request.block_hashes)
    request.num_output_tokens, request.num_preemptions = 5, 1
    found = asked(planner, request, device_tokens=64)
    planner.admit(request, list(range(20)), found)
    planner.learn(StepReport(loaded={"engine-id": found // 64}))
    planner.finish(ended(request, "length", generated=8))
    (line,) = journalled(journal_dir)
    assert isinstance(line, DecodeAttestation)
    assert (found, line.handoff_tokens, line.output_to) == (192, 128, 8)


def test_a_preempted_prompt_is_still_attested_once_and_with_its_first_admission(
    store: PrefixStore, planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(300)), stage="both")
    admitted(planner, request, device_tokens=64)
    keep(store, request.block_hashes)
    request.num_preemptions = 1
    planner.admit(request, list(range(20)), asked(planner, request))
    planner.learn(StepReport(loaded={"engine-id": 4}))
    request.num_output_tokens = 1
    planner.attest_computed()
    request.num_preemptions = 2
    planner.attest_computed()
    planner.finish(ended(request, "stop", generated=2))
    prefill, _ = one_of_each(journal_dir)
    assert (prefill.hit_device_tokens, prefill.hit_store_tokens) == (64, 0)


def test_a_load_that_ends_after_its_request_was_aborted_changes_nothing(
    store: PrefixStore, planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(1000)))
    keep(store, request.block_hashes)
    blocks = admitted(planner, request)
    planner.finish(ended(request, "abort"))
    before = journalled(journal_dir)
    planner.learn(StepReport(loaded={"engine-id": blocks}, refused={"engine-id": 0}))
    planner.attest_computed()
    assert journalled(journal_dir) == before
    assert len(before) == 1


def test_a_refused_block_leaves_the_prompt_attested_without_a_promise(
    store: PrefixStore, planner: Planner
) -> None:
    request = Request(list(range(300)))
    admitted(planner, request)
    planner.orders(step(request, 300))
    keep(store, request.block_hashes[:2])
    planner.learn(StepReport(refused={"engine-id": 2}))
    statement = attested(planner, request)
    assert (statement.computed, statement.hit_tokens, statement.promised_until) == (True, 0, None)


def test_a_worker_that_does_both_attests_no_hit_from_a_corrupt_block_on(
    store: PrefixStore, planner: Planner, journal_dir: Path
) -> None:
    request = Request(list(range(1500)), stage="both")
    keep(store, request.block_hashes)
    assert admitted(planner, request) == 23
    store.namespace(NAMESPACE, "ten_a").quarantine(request.block_hashes[5])
    planner.learn(StepReport(loaded={"engine-id": 5}))
    request.num_output_tokens = 1
    planner.attest_computed()
    (line,) = journalled(journal_dir)
    assert isinstance(line, PrefillAttestation)
    assert (line.hit_store_tokens, line.hit_tokens, line.owed_tokens) == (320, 320, 0)


def test_a_journal_that_cannot_be_written_loses_lines_and_fails_no_request(
    planner: Planner, journal_dir: Path
) -> None:
    shutil.rmtree(journal_dir)
    journal_dir.write_text("a file where the folder was")
    request = Request(list(range(200)), stage="both")
    admitted(planner, request)
    assert planner.finish(ended(request, "length", generated=1)) is not None
    assert (planner.journal.lost, planner.unattested) == (2, 0)


def test_what_cannot_be_signed_is_counted_and_the_rest_is_attested(
    planner: Planner, journal_dir: Path
) -> None:
    request = Request([2**32, *range(199)], stage="both")
    admitted(planner, request)
    assert planner.finish(ended(request, "stop", generated=1)) is None
    (line,) = journalled(journal_dir)
    assert isinstance(line, DecodeAttestation)
    assert planner.unattested == 1


def test_without_a_store_only_the_device_is_attested_and_nothing_is_moved(journal_dir: Path) -> None:
    planner = planner_of(None, journal_dir)
    request = Request(list(range(300)), stage="both")
    assert admitted(planner, request, device_tokens=128) == 0
    orders = planner.orders(step(request, 172))
    assert (orders.loads, orders.saves) == ([], [])
    planner.finish(ended(request, "length", generated=2))
    prefill, decode = one_of_each(journal_dir)
    assert (prefill.hit_device_tokens, prefill.hit_store_tokens, prefill.namespace) == (128, 0, "")
    assert (prefill.promised_until, decode.namespace, decode.output_to) == (None, "", 2)


def test_without_promises_blocks_are_stored_and_hit_and_nothing_is_owed_when_they_go(
    tmp_path: Path, journal_dir: Path
) -> None:
    store = PrefixStore(tmp_path / "store", clock.now_s, promises=False)
    planner = planner_of(store, journal_dir)
    for gone, hit in ((False, 256), (True, 128)):
        request = Request(list(range(300)))
        keep(store, request.block_hashes)
        if gone:
            break_promise(store, request.block_hashes[2])
        blocks = admitted(planner, request)
        planner.learn(StepReport(loaded={"engine-id": blocks}))
        statement = attested(planner, request)
        assert (statement.hit_tokens, statement.owed_tokens, statement.promised_until) == (hit, 0, None)


def test_a_worker_without_promises_keeps_and_does_not_prolong_those_of_others(tmp_path: Path) -> None:
    at_s = clock.now_s()
    promising = PrefixStore(tmp_path, lambda: at_s)
    silent = PrefixStore(tmp_path, lambda: at_s + 1000, promises=False)
    request = Request(list(range(128)))
    keep(promising, request.block_hashes[:1])
    keep(silent, request.block_hashes)
    mine = promising.namespace(NAMESPACE, "ten_a")
    assert mine.promised_until(request.block_hashes[:1]) == promising.promise_end_s("chat")
    assert mine.promised_until(request.block_hashes) is None
    assert silent.namespace(NAMESPACE, "ten_a").keep(request.block_hashes[:1], "chat") is None


@settings(max_examples=60)
@given(
    stage=st.sampled_from(["prefill", "decode", "both"]),
    sent=st.integers(2, 400),
    carried=st.integers(0, 399),
    device=st.integers(0, 6),
    lost=st.integers(0, 6),
    stop_at=st.integers(0, 4),
    how=st.sampled_from(["stop", "length", "abort", "error", "repetition", None]),
)
def test_every_call_leaves_the_lines_of_its_stage_once_whatever_its_end(
    tmp_path_factory: pytest.TempPathFactory, **case: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    store, journal_dir = PrefixStore(folder / "store", clock.now_s), folder / "journal"
    planner = planner_of(store, journal_dir)
    carried = min(case["carried"], case["sent"] - 1)
    request = Request(list(range(case["sent"])), stage=case["stage"], output_from=carried, first_token=True)
    keep(store, request.block_hashes)
    planner.add(request)
    loaded = device_tokens = generated = 0
    if case["stop_at"] > 0:
        device_tokens = min(case["device"], (case["sent"] - 1) // 64) * 64
        found = asked(planner, request, device_tokens)
    if case["stop_at"] > 1:
        planner.admit(request, list(range(20)), found)
    if case["stop_at"] > 2:
        loaded = max(0, found // 64 - case["lost"])
        planner.learn(StepReport(loaded={"engine-id": loaded}))
    if case["stop_at"] > 3:
        generated = request.num_output_tokens = 2
        planner.attest_computed()
    planner.finish(ended(request, case["how"], generated))
    planner.close()
    lines = journalled(journal_dir)
    kinds = {"prefill": [PrefillAttestation], "decode": [DecodeAttestation]}
    assert [type(line) for line in lines] == kinds.get(case["stage"], [PrefillAttestation, DecodeAttestation])
    for line in lines:
        assert line.prompt_tokens == case["sent"] - carried
        if isinstance(line, PrefillAttestation):
            assert line.computed == (generated > 0)
            assert line.hit_tokens <= min(device_tokens + loaded * 64, line.prompt_tokens - 1)
        else:
            assert (line.output_from, line.output_to) == (carried, carried + generated)
            assert line.handoff_tokens <= device_tokens + loaded * 64
