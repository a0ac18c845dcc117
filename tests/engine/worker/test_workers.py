"""Real vLLM, the real model, a prefill and a decode worker. Tests run in order: the last stop workers."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine import wire
from engine.proof.attestation import DecodeAttestation, PrefillAttestation, commitment
from engine.proof.prefix import block_hashes
from engine.store.block import Term
from engine.store.directory import PrefixStore
from engine.store.places import Removed, Remover, places_of
from engine.store.tombstone import Reason
from engine.worker import clock

from .conftest import TENANT, Ask, Pair, chunks, tokens_of, wait_a_little

Prose = Callable[[str, int], list[int]]


def stored_file(pair: Pair, ids: list[int], salt: str, index: int) -> Path:
    digits = block_hashes(ids, salt)[index].hex()
    (file,) = pair.store_dir.glob(f"*/{TENANT}/{digits[:2]}/{digits}.kv")
    return file


def test_a_decode_worker_finds_every_full_block_that_the_prefill_answered_for(
    worker_pair: Pair, prose: Prose
) -> None:
    ids = prose("execmodel", 1500)
    prefilled = worker_pair.prefill.ask(Ask(ids))
    ask = Ask(ids, stage="decode", max_tokens=4)
    events = list(chunks(worker_pair.decode.stream(ask)))
    assert prefilled.attested.hit_tokens == 0
    assert prefilled.attested.prompt_tokens == 1500
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 1499 // 64 * 64
    assert events[0]["choices"][0]["token_ids"] == prefilled.ids
    attested = worker_pair.decode.decoded(ask)
    assert (attested.output_from, attested.output_to, attested.ended) == (0, len(tokens_of(events)), "length")
    assert (attested.prompt_tokens, attested.handoff_tokens) == (1500, 1499 // 64 * 64)


def test_an_attestation_speaks_of_the_request_it_answers(worker_pair: Pair, prose: Prose) -> None:
    ask = Ask(prose("types", 700))
    worker_pair.prefill.ask(ask)
    attested = worker_pair.prefill.ask(ask).attested
    assert (attested.request_id, attested.attempt, attested.stage) == (ask.request_id, 0, "prefill")
    assert (attested.memo, attested.retention_class, attested.worker) == ("a memo", "chat", "prefill-0")
    assert (attested.hit_device_tokens, attested.hit_store_tokens) == (640, 0)
    assert attested.prompt_commitment == commitment(ask.nonce, ask.ids)
    assert attested.cached_prefix_commitment == commitment(ask.nonce, ask.ids[:640])
    assert attested.promised_until is not None
    week_s = 7 * 86_400
    assert abs(attested.promised_until - clock.now_s() - week_s) < 60


def test_the_next_turn_hits_the_blocks_that_decode_generated(worker_pair: Pair, prose: Prose) -> None:
    ids = prose("import", 200)
    worker_pair.prefill.ask(Ask(ids))
    generated = worker_pair.decode.ask(
        Ask(ids, stage="decode", max_tokens=150, sampling={"ignore_eos": True})
    )
    second_turn = ids + generated.ids + prose("class", 30)
    attested = worker_pair.prefill.ask(Ask(second_turn)).attested
    assert len(generated.ids) == 150
    # 349 tokens have KV: the last one generated was never an input.
    assert attested.hit_tokens == 349 // 64 * 64
    assert attested.hit_store_tokens == attested.hit_tokens - 192


@pytest.mark.parametrize(
    "other", [{"salt": "salt-of-another"}, {"tenant": "ten_another", "salt": "salt-of-another"}]
)
def test_another_salt_sees_nothing(worker_pair: Pair, prose: Prose, other: dict[str, str]) -> None:
    salt = f"{other['salt']}-{secrets.token_hex(4)}"
    ids = prose("execmodel", 1500)
    worker_pair.prefill.ask(Ask(ids))
    stranger = Ask(ids, salt=salt, tenant=other.get("tenant", TENANT))
    assert worker_pair.prefill.ask(stranger).attested.hit_tokens == 0
    assert worker_pair.prefill.ask(stranger).attested.hit_tokens == 1472


def test_a_block_that_went_before_its_promise_ended_is_owed_and_no_miss(
    worker_pair: Pair, prose: Prose
) -> None:
    ask = Ask(prose("specialnames", 700))
    worker_pair.prefill.ask(ask)
    store = PrefixStore(worker_pair.store_dir, clock.now_s)
    (place,) = (place for place in places_of(worker_pair.store_dir) if place.tenant == TENANT)
    remover, owed_to = Remover(store.pins, clock.now_s, store.log), store.tombstones(place)
    assert ask.salt is not None
    for block_hash in reversed(block_hashes(ask.ids, ask.salt)[5:]):
        term = Term.of(place.path(block_hash).stat())
        assert remover.remove(place, block_hash, term, owed_to, Reason.OPERATOR) is Removed.REMOVED
    attested = worker_pair.decode.ask(ask).attested  # a worker that holds none of it itself
    assert (attested.hit_store_tokens, attested.owed_tokens) == (320, 320)
    again = worker_pair.prefill.ask(ask).attested
    assert (again.hit_tokens, again.owed_tokens) == (640, 0)  # its own cache still has them


@pytest.mark.parametrize("foreign", [{"with_params": False}, {"salt": None}])
def test_a_request_without_parameters_or_salt_leaves_nothing_and_attests_nothing(
    worker_pair: Pair, prose: Prose, foreign: dict[str, Any]
) -> None:
    before = len(list(worker_pair.store_dir.rglob("*.kv")))
    answer = worker_pair.prefill.ask(Ask(prose("exceptions", 300), **foreign))
    assert answer.status == 200
    assert answer.attestation is None
    assert len(list(worker_pair.store_dir.rglob("*.kv"))) == before


@pytest.mark.parametrize("stage", ["prefill", "both"])
def test_a_flipped_bit_is_recomputed_attested_as_a_miss_quarantined_and_healed(
    worker_pair: Pair, prose: Prose, stage: wire.Stage
) -> None:
    ids, salt = prose("execmodel", 1500), f"salt-of-the-flip-{stage}"
    clean = worker_pair.decode.ask(Ask(ids, stage="both", salt=salt, max_tokens=8))
    file = stored_file(worker_pair, ids, salt, 5)
    content = bytearray(file.read_bytes())
    content[700_000] ^= 4
    file.write_bytes(content)

    ask = Ask(ids, stage=stage, salt=salt, max_tokens=8)
    answer = worker_pair.prefill.ask(ask)

    assert answer.cached_by_vllm == 1472, "vLLM itself still says that all was cached"
    assert answer.attested.hit_tokens == answer.attested.hit_store_tokens == 320
    assert worker_pair.prefill.journalled(ask)[0] == answer.attested
    assert answer.ids == clean.ids
    quarantined = list(worker_pair.store_dir.glob(f"*/{TENANT}/quarantine/{file.stem}.*.kv"))
    assert len(quarantined) == 1
    assert file.read_bytes() != bytes(content)
    assert PrefixStore(worker_pair.store_dir, clock.now_s).check_integrity() == []


def test_a_first_block_that_cannot_be_loaded_leaves_no_hit(worker_pair: Pair, prose: Prose) -> None:
    ids, salt = prose("comparisons", 600), "salt-of-the-first"
    clean = worker_pair.decode.ask(Ask(ids, stage="both", salt=salt, max_tokens=8))
    file = stored_file(worker_pair, ids, salt, 0)
    file.write_bytes(file.read_bytes()[:1000])
    answer = worker_pair.prefill.ask(Ask(ids, salt=salt, max_tokens=8))
    assert answer.attested.hit_tokens == 0
    assert answer.ids == clean.ids
    assert worker_pair.prefill.ask(Ask(ids, salt=salt)).attested.hit_tokens == 576


@pytest.mark.parametrize(("chapter", "count"), [("execmodel", 1100), ("with", 260), ("typesmapping", 640)])
def test_greedy_answers_are_the_same_cold_warm_and_handed_off(
    worker_pair: Pair, prose: Prose, chapter: str, count: int
) -> None:
    ids = prose(chapter, count)
    cold_salt, handed_salt = f"cold-{chapter}", f"handed-{chapter}"
    cold = worker_pair.decode.ask(Ask(ids, stage="both", salt=cold_salt, max_tokens=24))
    from_store = worker_pair.prefill.ask(Ask(ids, stage="both", salt=cold_salt, max_tokens=24))
    from_device = worker_pair.decode.ask(Ask(ids, stage="both", salt=cold_salt, max_tokens=24))
    worker_pair.prefill.ask(Ask(ids, salt=handed_salt))
    handed = worker_pair.decode.ask(Ask(ids, stage="decode", salt=handed_salt, max_tokens=24))
    hit = (count - 1) // 64 * 64
    assert cold.attested.hit_tokens == 0
    assert from_store.attested.hit_store_tokens == hit
    assert from_device.attested.hit_device_tokens == hit
    assert handed.cached_by_vllm == hit
    assert cold.ids == from_store.ids == from_device.ids == handed.ids


def test_a_decode_that_stops_attests_the_tokens_that_were_streamed(worker_pair: Pair, prose: Prose) -> None:
    ids = prose("with", 200)
    stop = worker_pair.decode.ask(Ask(ids, stage="decode", max_tokens=6)).ids[3]
    ask = Ask(ids, stage="decode", max_tokens=6, sampling={"stop_token_ids": [stop]})
    streamed = tokens_of(chunks(worker_pair.decode.stream(ask)))
    attested = worker_pair.decode.decoded(ask)
    assert streamed[-1] == stop
    assert (attested.output_from, attested.output_to, attested.ended) == (0, len(streamed), "stop")


def test_a_decode_goes_on_from_the_token_that_prefill_drew(worker_pair: Pair, prose: Prose) -> None:
    ids, salt = prose("types", 300), "salt-of-the-first-token"
    first = worker_pair.prefill.ask(Ask(ids, salt=salt, first_token=True))
    carried = Ask([*ids, *first.ids], "decode", 5, salt, output_from=1)
    rest = tokens_of(chunks(worker_pair.decode.stream(carried)))
    attested = worker_pair.decode.decoded(carried)
    assert (first.attested.output_to, attested.output_from, attested.output_to) == (1, 1, 6)
    assert (attested.prompt_tokens, attested.handoff_tokens) == (300, 256)
    assert first.ids + rest == worker_pair.prefill.ask(Ask(ids, salt=salt, max_tokens=6)).ids


def test_a_worker_that_does_both_attests_the_prompt_before_its_first_token_leaves(
    worker_pair: Pair, prose: Prose
) -> None:
    ask = Ask(
        prose("typesmapping", 700), "both", 400, "salt-of-both", sampling={"ignore_eos": True, "seed": 1}
    )
    events = chunks(worker_pair.decode.stream(ask))
    received = tokens_of([next(events)])
    (prefilled,) = worker_pair.decode.journalled(ask)
    assert isinstance(prefilled, PrefillAttestation)
    assert (prefilled.stage, prefilled.computed, prefilled.hit_tokens) == ("both", True, 0)
    assert prefilled.promised_until is not None, "its blocks are published by then"
    received += tokens_of(events)
    assert [type(line) for line in worker_pair.decode.journalled(ask)] == [
        PrefillAttestation,
        DecodeAttestation,
    ]
    assert worker_pair.decode.decoded(ask).output_to == len(received) == 400


def test_a_client_that_goes_away_leaves_an_aborted_decode_with_all_that_it_received(
    worker_pair: Pair, prose: Prose
) -> None:
    ask = Ask(prose("types", 300), "decode", 2000, sampling={"ignore_eos": True})
    response = worker_pair.decode.stream(ask)
    events = chunks(response)
    received = tokens_of(next(events) for _ in range(5))
    response.close()
    attested = worker_pair.decode.decoded(ask)
    assert attested.ended == "abort"
    assert len(received) <= attested.output_to < 2000


def test_a_prompt_that_is_aborted_while_it_is_computed_is_attested_as_not_computed(
    worker_pair: Pair, prose: Prose
) -> None:
    worker = worker_pair.decode
    ask = Ask(prose("specialnames", 3000), "both", 5, f"salt-{secrets.token_hex(4)}")
    response = worker.stream(ask)
    while not worker.journalled(ask):
        aborted = {"request_ids": [wire.ENGINE_ID_PREFIX + ask.request_id]}
        assert worker.post(wire.ABORT_PATH, aborted).status == 200
        wait_a_little(worker.process)
    assert tokens_of(chunks(response)) == []
    prefilled, decoded = worker.journalled(ask)
    assert isinstance(prefilled, PrefillAttestation)
    assert isinstance(decoded, DecodeAttestation)
    assert (prefilled.computed, prefilled.promised_until) == (False, None)
    assert (decoded.output_to, decoded.ended) == (0, "abort")


def test_an_abort_ends_the_stream_and_leaves_nothing_running(worker_pair: Pair, prose: Prose) -> None:
    ask = Ask(prose("types", 300), stage="decode", max_tokens=2000, sampling={"ignore_eos": True})
    response = worker_pair.decode.stream(ask)
    events = chunks(response)
    next(events)
    aborted = {"request_ids": [wire.ENGINE_ID_PREFIX + ask.request_id]}
    assert worker_pair.decode.post(wire.ABORT_PATH, aborted).status == 200
    finishes = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert finishes[-1] == "abort"
    worker_pair.decode.ask(Ask(prose("with", 70)))  # the metrics move with the next step
    assert worker_pair.decode.running() == 0


def test_a_killed_server_leaves_no_process_and_its_successor_hits_what_it_stored(
    worker_pair: Pair, prose: Prose
) -> None:
    prefill = worker_pair.prefill
    ids = prose("execmodel", 1500)
    before = prefill.ask(Ask(ids, max_tokens=8))
    family = prefill.family()
    busy = prefill.stream(Ask(ids, max_tokens=3000, sampling={"ignore_eos": True}))
    assert busy.readline()
    prefill.process.kill()
    prefill.process.wait(5)
    _, alive = psutil.wait_procs(family, timeout=5)
    assert len(family) >= 2
    assert alive == []

    prefill.start().wait_ready()
    after = prefill.ask(Ask(ids, max_tokens=8))
    assert after.attested.hit_store_tokens == 1472
    assert after.ids == before.ids
    assert PrefixStore(worker_pair.store_dir, clock.now_s).check_integrity() == []


def test_a_stopped_worker_finishes_what_is_in_flight(worker_pair: Pair, prose: Prose) -> None:
    ask = Ask(prose("with", 200), stage="decode", max_tokens=40, sampling={"ignore_eos": True})
    events = chunks(worker_pair.decode.stream(ask))
    first = next(events)
    worker_pair.decode.process.terminate()
    rest = list(events)
    assert worker_pair.decode.process.wait(30) == 0
    assert len(tokens_of([first, *rest])) == 40
    assert [choice["finish_reason"] for event in rest for choice in event["choices"]][-1] == "length"
    attested = worker_pair.decode.decoded(ask)
    assert (attested.output_to, attested.ended) == (40, "length")
