"""Real vLLM where it hurts: corrupt blocks, drafts, preemption, aborts, bad disks. The last one kills.

Two workers share a store: ``small`` has room for 31 blocks, ``drafting`` speculates. Where the twenty
invariants of the engine are held (``c``: tests/engine/cluster, ``s``: tests/engine/store; others lie here):

 1 nothing is published from a step over a failed load: below, `test_a_corrupt_block_poisons_none_...`
 2 a block is visible whole or not at all: s/test_killed.py; below, `test_a_worker_killed_...`
 3 a bad file gives a right answer, goes into quarantine and is stored again by the same request:
   test_workers.py `test_a_flipped_bit_...`, `test_a_first_block_...`; s/test_disk.py; below, `test_garb...`
 4 drafts are never saved: below, `test_nothing_but_accepted_tokens_...`; test_planner.py
 5 namespaces share nothing: test_layout.py; below, `test_blocks_of_another_namespace_...`
 6 nor do salts: test_workers.py `test_another_salt_...`; tests/e2e/test_prefix.py; c/test_salt.py
 7 a hit was admitted and loaded: test_workers.py `test_a_flipped_bit_...` (320, where vLLM says 1,472)
 8 attested under our own id whatever the end: test_workers.py, test_serving.py, test_attest.py; below
 9 no abort, error or empty 200 is billed: c/test_real_workers.py `test_a_stopped_worker_...`;
   c/test_answer.py, c/test_generation.py, gateway/test_failures.py
10 one first token is sent and billed: test_carried.py; c/test_first_token.py, c/test_real_workers.py
11 decode finds what prefill answered for: c/test_real_workers.py `test_decode_finds_...`, under load
12 time between tokens beside prefills: tests/bench/mixed.py
13 contract with vLLM's scheduler: test_scheduler.py
14 budget, progress, floor, ageing: test_scheduler.py, test_pace.py, ../test_policy.py, tests/bench/steps.py
15 a fault in the policy falls back: test_scheduler.py `test_a_fault_anywhere_...`
16 SIGTERM ends well what is in flight: test_workers.py and c/test_real_workers.py `test_a_stopped_worker_...`
17 routing stops first: test_serving.py `test_a_draining_...`; c/test_calls.py; e2e/test_worker_restart.py
18 no orphans, status 0 is a death: test_workers.py `test_a_killed_server_...`; tests/admin/stack/test_part.py
19 greedy answers do not depend on the cache: test_workers.py, test_carried.py; tests/e2e/test_prefix.py
20 aborts leave nothing behind: below, `test_requests_aborted_at_any_moment_...`; c/test_real_workers.py
"""

import contextlib
import dataclasses
import itertools
import json
import random
import resource
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from engine import wire
from engine.proof.attestation import DecodeAttestation, PrefillAttestation
from engine.proof.prefix import block_hashes
from engine.store import block
from engine.store.directory import PrefixStore
from engine.worker import clock
from engine.worker.planner import SYNCHRONOUS

from .conftest import TENANT, Ask, Place, Worker, chunks, tokens_of, wait_a_little

Prose = Callable[[str, int], list[int]]

BLOCK_BYTES = 30 * 49_152
ROOM_BLOCKS = 31
# Chunks of other sizes round otherwise; what was computed over garbage is off by more than ten.
ROUNDING = 0.5
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
KINDS = {
    "prefill": [PrefillAttestation],
    "decode": [DecodeAttestation],
    "both": [PrefillAttestation, DecodeAttestation],
}
EVERY_ONE: dict[str, object] = {"ignore_eos": True}


@dataclass(frozen=True)
class Crew:
    small: Worker
    drafting: Worker
    store_dir: Path

    def files(self, ids: list[int], salt: str, tenant: str = TENANT) -> list[Path]:
        """Files of a prompt's full blocks, there or not."""
        (namespace,) = {file.parent for file in self.store_dir.glob("*/namespace.json")}
        names = [block_hash.hex() for block_hash in block_hashes(ids, salt)]
        return [namespace / tenant / name[:2] / f"{name}.kv" for name in names]

    def assert_clean(self) -> None:
        """Nothing in the store is half done or wrong."""
        assert list(self.store_dir.rglob("*.tmp")) == []
        assert PrefixStore(self.store_dir, clock.now_s).check_integrity() == []


@pytest.fixture(scope="module")
def crew(place: Place) -> Iterator[Crew]:
    small, drafting = place.worker("small-0", "prefill"), place.worker("drafting-0", "decode")
    small.spec = dataclasses.replace(
        small.spec,
        role="both",
        kv_cache_bytes=(ROOM_BLOCKS + 1) * BLOCK_BYTES,
        context_tokens=ROOM_BLOCKS * 64,
        sequences_max=8,
    )
    drafting.spec = dataclasses.replace(drafting.spec, role="both", speculative=DRAFTS)
    workers = [small.start(), drafting.start()]
    try:
        yield Crew(small.wait_ready(), drafting.wait_ready(), place.store_dir)
    finally:
        for worker in workers:
            worker.stop()


def salt() -> str:
    return f"salt-{secrets.token_hex(6)}"


def payload(file: Path) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    content = file.read_bytes()
    assert len(content) == block.HEADER_BYTES + BLOCK_BYTES
    return np.frombuffer(content[block.HEADER_BYTES :], dtype=np.float16).astype(np.float32)


def furthest_apart(files: list[Path], others: list[Path]) -> float:
    """The largest difference of any value in blocks that should be the same."""
    return max(float(np.abs(payload(a) - payload(b)).max()) for a, b in zip(files, others, strict=True))


def until(worker: Worker, holds: Callable[[], bool], within_s: float = 20) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, worker.log.read_text()[-3000:]
        wait_a_little(worker.process)


def assert_nothing_held(worker: Worker) -> None:
    """Nothing runs, waits, is tracked or holds a block of the cache, within some seconds."""
    names = (
        "kv_blocks_in_use",
        "scheduler_running_requests",
        "scheduler_waiting_requests",
        "tracked_requests",
    )
    until(worker, lambda: not any(worker.metric(f"kvitto_{name}") for name in names))
    assert worker.metric("vllm:num_requests_running") == worker.metric("vllm:num_requests_waiting") == 0


def test_a_corrupt_block_poisons_none_that_is_published_after_it(crew: Crew, prose: Prose) -> None:
    ids, flipped, undisturbed = prose("execmodel", 1500), salt(), salt()
    crew.drafting.ask(Ask(ids[:1000], salt=flipped))
    files = crew.files(ids, flipped)
    assert [file.exists() for file in files] == [True] * 15 + [False] * 8
    content = bytearray(files[5].read_bytes())
    content[700_000] ^= 4
    files[5].write_bytes(content)
    disturbed = crew.small.ask(Ask(ids, salt=flipped, max_tokens=8))
    gold = crew.small.ask(Ask(ids, salt=undisturbed, max_tokens=8))
    assert (disturbed.attested.hit_store_tokens, gold.attested.hit_tokens) == (320, 0)
    assert disturbed.ids == gold.ids
    assert furthest_apart(files, crew.files(ids, undisturbed)) < ROUNDING
    crew.assert_clean()
    for worker in (crew.small, crew.drafting):
        assert SYNCHRONOUS not in worker.log.read_text()


def test_nothing_but_accepted_tokens_is_stored_by_a_worker_that_speculates(crew: Crew, prose: Prose) -> None:
    ids, drafted, plain, tenant = prose("types", 150) * 2, salt(), salt(), "ten_drafting"
    ask = Ask(ids, "both", 211, drafted, tenant, sampling=EVERY_ONE)
    generated = tokens_of(chunks(crew.drafting.stream(ask)))
    drafts = crew.drafting.metric("vllm:spec_decode_num_draft_tokens_total")
    accepted = crew.drafting.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted < drafts, "some are accepted, some rejected"
    said = json.loads(crew.drafting.get(wire.REPORT_PATH)[1])
    assert (said["drafted"], said["accepted"]) == (drafts, accepted)
    assert crew.drafting.metric("kvitto_drafted_accepted_tokens_total") == accepted
    assert crew.drafting.decoded(ask).output_to == len(generated) == 211
    # The last token was never an input; drafts behind it would have filled the eighth block.
    files = crew.files([*ids, *generated], drafted, tenant)
    assert len(files) == 7
    assert set(files) == set(crew.store_dir.glob(f"*/{tenant}/*/*.kv"))

    next_turn = [*ids, *generated, *prose("class", 30)]
    back = crew.small.ask(Ask(next_turn, "both", 24, drafted, tenant))
    cold = crew.small.ask(Ask(next_turn, "both", 24, plain, tenant))
    assert (back.attested.hit_store_tokens, cold.attested.hit_tokens) == (448, 0)
    assert back.ids == cold.ids
    assert furthest_apart(files, crew.files([*ids, *generated], plain, tenant)) < ROUNDING


def test_a_stop_among_accepted_drafts_is_attested_where_the_stream_ends(crew: Crew, prose: Prose) -> None:
    ids = prose("types", 150) * 2
    stop = crew.drafting.ask(Ask(ids, "both", 60, sampling=EVERY_ONE)).ids[47]
    ask = Ask(ids, "both", 200, sampling={"stop_token_ids": [stop]})
    streamed = tokens_of(chunks(crew.drafting.stream(ask)))
    decoded = crew.drafting.decoded(ask)
    assert streamed.index(stop) == len(streamed) - 1
    assert (decoded.output_to, decoded.ended) == (len(streamed), "stop")


def test_requests_that_preempt_each_other_end_whole_and_attest_their_first_admission(
    crew: Crew, prose: Prose
) -> None:
    shared, common = prose("with", 192), salt()
    crew.small.ask(Ask(shared, salt=common))
    chapters = ("class", "debugger", "typesseq", "import", "types", "exceptions")
    asks = [
        Ask([*shared, *prose(chapter, 110)], stage, 260, common, sampling=EVERY_ONE)
        for chapter, stage in zip(chapters, itertools.cycle(("both", "decode")), strict=False)
    ]
    before = crew.small.metric("vllm:num_preemptions_total")
    with ThreadPoolExecutor(len(asks)) as threads:
        answers = list(threads.map(lambda ask: tokens_of(chunks(crew.small.stream(ask))), asks))
    assert crew.small.metric("vllm:num_preemptions_total") > before
    for ask, answer in zip(asks, answers, strict=True):
        decoded, lines = crew.small.decoded(ask), crew.small.journalled(ask)
        assert [type(line) for line in lines] == KINDS[ask.stage]
        assert len(answer) == decoded.output_to == 260
        assert (decoded.output_from, decoded.ended) == (0, "length")
        # 256 of the 302 tokens are full blocks, which a preempted request finds again as its own.
        hits = [line.hit_tokens for line in lines if isinstance(line, PrefillAttestation)]
        assert (hits, decoded.handoff_tokens) == (([192], 0) if ask.stage == "both" else ([], 192))
    assert_nothing_held(crew.small)
    crew.assert_clean()


def test_requests_aborted_at_any_moment_leave_nothing_behind(crew: Crew, prose: Prose) -> None:
    """Queued, looking up, loading, prefilling, decoding; streamed or not; by a call or by going away."""
    chance = random.Random(20)  # noqa: S311 -- the same storm each time
    stored, tenant = prose("specialnames", 1200), "ten_storm"
    crew.drafting.ask(Ask(stored, salt="salt-of-the-storm", tenant=tenant))
    asks = []
    for number, stage in zip(range(14), itertools.cycle(("both", "decode", "prefill")), strict=False):
        ids = stored if number % 2 else prose("execmodel", chance.randrange(200, 1500))
        common = "salt-of-the-storm" if number % 2 else salt()
        asks.append(Ask(ids, stage, 400, common, tenant, sampling=EVERY_ONE))
    moments_s = [0.01, 0.03, *(chance.uniform(0.05, 4) for _ in range(12))]
    chance.shuffle(moments_s)

    def abandon(number: int) -> None:
        ask = asks[number]
        call = crew.small.send(wire.GENERATE_PATH, ask.body(stream=ask.stage != "prefill"))
        wait_a_little(crew.small.process, moments_s[number])
        if number % 4 < 2:
            crew.small.post(wire.ABORT_PATH, {"request_ids": [wire.ENGINE_ID_PREFIX + ask.request_id]})
        call.close()

    with ThreadPoolExecutor(len(asks)) as threads:
        list(threads.map(abandon, range(len(asks))))
    assert_nothing_held(crew.small)
    lines = [[type(line) for line in crew.small.journalled(ask)] for ask in asks]
    assert all(found in ([], KINDS[ask.stage]) for found, ask in zip(lines, asks, strict=True))
    assert sum(map(bool, lines)) >= 12, "all but those that left before the engine knew of them"
    assert list(crew.store_dir.glob("pins/*")) == []
    crew.assert_clean()
    assert crew.small.ask(Ask(stored, salt=salt(), max_tokens=2)).status == 200


@contextlib.contextmanager
def vanished(crew: Crew) -> Iterator[None]:
    gone = crew.store_dir.with_name("gone")
    crew.store_dir.rename(gone)
    shutil.rmtree(gone)
    yield


@contextlib.contextmanager
def a_file_in_its_place(crew: Crew) -> Iterator[None]:
    """What nobody can write to, root neither."""
    aside = crew.store_dir.with_name("aside")
    crew.store_dir.rename(aside)
    crew.store_dir.write_text("no folder")
    yield
    crew.store_dir.unlink()
    aside.rename(crew.store_dir)


@contextlib.contextmanager
def full(crew: Crew) -> Iterator[None]:
    """No file may become as large as a block."""
    engine = [process.pid for process in crew.small.family()]
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in engine}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (BLOCK_BYTES // 2, hard))
    yield
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize("broken", [full, a_file_in_its_place, vanished])
def test_a_store_that_is_lost_costs_its_hits_alone_and_heals(
    crew: Crew, prose: Prose, broken: Callable[[Crew], contextlib.AbstractContextManager[None]]
) -> None:
    ids = prose("comparisons", 600)
    sound = crew.small.ask(Ask(ids, salt=salt(), max_tokens=8))
    ask = Ask(ids, salt=salt(), max_tokens=8)
    with broken(crew):
        answer = crew.small.ask(ask)
        assert (answer.status, answer.attested.hit_tokens) == (200, 0)
        assert answer.ids == sound.ids
        assert broken is vanished or answer.attested.promised_until is None
    again = dataclasses.replace(ask, max_tokens=1)
    until(crew.small, lambda: crew.small.ask(again).attested.promised_until is not None)
    read = crew.drafting.ask(ask)
    assert (read.attested.hit_store_tokens, read.ids) == (576, sound.ids)
    crew.assert_clean()


def test_garbage_under_the_names_of_blocks_is_never_used_and_is_replaced(crew: Crew, prose: Prose) -> None:
    ids, common = prose("comparisons", 600), salt()
    sound = crew.drafting.ask(Ask(ids, salt=common, max_tokens=8))
    files = crew.files(ids, common)
    other = files[8].read_bytes()
    garbage: list[Callable[[bytes], bytes]] = [
        lambda sealed: (
            sealed[:8] + secrets.token_bytes(32) + sealed[40:]
        ),  # of another model, vLLM or block size
        lambda _: b"",
        lambda sealed: sealed[:1000],
        lambda _: other,
        lambda sealed: secrets.token_bytes(len(sealed)),
        lambda sealed: sealed + b"!",
        lambda _: b"SQLite format 3\0" + bytes(2000),
    ]
    for number, make in enumerate(garbage):
        files[number].write_bytes(make(files[number].read_bytes()))
    answer = crew.small.ask(Ask(ids, salt=common, max_tokens=8))
    assert (answer.status, answer.attested.hit_tokens, answer.ids) == (200, 0, sound.ids)
    assert answer.attested.promised_until is not None
    assert [file.stat().st_size for file in files] == [block.HEADER_BYTES + BLOCK_BYTES] * 9
    quarantined = {file.name.partition(".")[0] for file in files[0].parents[1].glob("quarantine/*")}
    assert {file.stem for file in files[: len(garbage)]} <= quarantined
    crew.assert_clean()


def test_blocks_of_another_namespace_are_not_ours(crew: Crew, prose: Prose) -> None:
    """Of another model, vLLM or block size, in the same directory."""
    ids, common, tenant = prose("comparisons", 600), salt(), "ten_upgraded"
    sound = crew.drafting.ask(Ask(ids, salt=common, tenant=tenant, max_tokens=8))
    folder = crew.files(ids, common, tenant)[0].parents[1]
    theirs = crew.store_dir / secrets.token_hex(32) / tenant
    theirs.parent.mkdir()
    folder.rename(theirs)
    answer = crew.small.ask(Ask(ids, salt=common, tenant=tenant, max_tokens=8))
    assert (answer.attested.hit_tokens, answer.ids) == (0, sound.ids)
    assert len(list(theirs.rglob("*.kv"))) == len(list(folder.rglob("*.kv"))) == 9
    shutil.rmtree(theirs.parent)


def test_a_worker_killed_while_it_publishes_leaves_whole_blocks_alone_and_ends(
    crew: Crew, prose: Prose
) -> None:
    ids, common, tenant = prose("specialnames", 1900), salt(), "ten_killed"
    family = crew.small.family()
    engine = max(family, key=lambda process: process.memory_info().rss)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(crew.small.ask, Ask(ids, salt=common, tenant=tenant))
        while len(list(crew.store_dir.glob(f"*/{tenant}/*/*.kv"))) < 3:
            assert not asked.done()
            wait_a_little(crew.small.process, 0.01)
        engine.kill()
        answer = asked.result()
    assert answer.status == 500 or "error" in answer.body
    crew.small.process.wait(20)
    assert psutil.wait_procs(family, timeout=5)[1] == []
    visible = [file.exists() for file in crew.files(ids, common, tenant)]
    assert 3 <= sum(visible) < 29
    assert PrefixStore(crew.store_dir, clock.now_s).check_integrity() == []
    read = crew.drafting.ask(Ask(ids, salt=common, tenant=tenant))
    assert read.attested.hit_store_tokens == visible.index(False) * 64
