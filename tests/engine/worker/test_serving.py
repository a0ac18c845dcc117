"""One real worker behind its secret: what it serves beside vLLM, and how it stops. The last test stops it."""

import dataclasses
import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine import wire
from engine.proof.attestation import DecodeAttestation
from engine.wire import JournalLine, WorkerReport

from .conftest import Ask, Place, Worker, chunks, tokens_of, wait_a_little

Prose = Callable[[str, int], list[int]]


@pytest.fixture(scope="module")
def worker(place: Place) -> Iterator[Worker]:
    """It does both, and is paced, so that it learns its law."""
    worker = place.worker("both-0", "both")
    secret_file = place.folder / "call.secret"
    secret_file.write_text(secrets.token_hex(32))
    worker.spec = dataclasses.replace(worker.spec, call_secret_file=secret_file, step_budget_s=0.1)
    worker.start()
    try:
        yield worker.wait_ready()
    finally:
        worker.stop()


def report_of(worker: Worker) -> WorkerReport:
    return WorkerReport.from_json(json.loads(worker.get(wire.REPORT_PATH)[1]))


def reported(worker: Worker, holds: Callable[[WorkerReport], bool]) -> WorkerReport:
    """A report of which this holds, within ten seconds."""
    deadline = time.monotonic() + 10
    while not holds(report := report_of(worker)):
        assert time.monotonic() < deadline, report
        wait_a_little(worker.process)
    return report


def lines_of(worker: Worker, after: int = 0) -> list[JournalLine]:
    _, text = worker.get(f"{wire.JOURNAL_PATH}?after={after}&limit=100")
    return [JournalLine.from_json(line) for line in json.loads(text)["lines"]]


def drain(worker: Worker, draining: bool) -> None:
    assert worker.post(wire.DRAIN_PATH, {"draining": draining}).status == 200


def endless(ids: list[int], tokens: int) -> Ask:
    return Ask(ids, "both", tokens, sampling={"ignore_eos": True})


def test_an_idle_worker_says_that_it_is_and_names_its_blocks(worker: Worker, place: Place) -> None:
    namespaces = {file.parent.name for file in place.store_dir.glob("*/namespace.json")}
    report = report_of(worker)
    assert (report.running, report.waiting, report.kv_tokens, report.prefill_tokens) == (0, 0, 0, 0)
    assert {report.namespace} == namespaces


def test_only_who_knows_the_secret_may_call(worker: Worker, prose: Prose) -> None:
    stranger, ask = worker.stranger(), Ask(prose("with", 100), "both")
    for path in (wire.JOURNAL_PATH, wire.REPORT_PATH, "/v1/models"):
        assert stranger.get(path)[0] == 401
        assert worker.get(path)[0] == 200
    for path in (wire.GENERATE_PATH, wire.ABORT_PATH, wire.DRAIN_PATH):
        refused = stranger.post(path, ask.body(stream=False))
        assert (refused.status, json.loads(refused.read())["error"]["code"]) == (401, 401)
    assert stranger.get(wire.HEALTH_PATH)[0] == stranger.get("/metrics")[0] == 200
    assert worker.ask(ask).status == 200


def test_attestations_are_served_once_they_are_written_until_they_are_acknowledged(
    worker: Worker, prose: Prose
) -> None:
    ask = endless(prose("types", 200), 20)
    last = max((line.sequence for line in lines_of(worker)), default=0)
    stream = worker.stream(ask)
    path = f"{wire.ATTESTATIONS_PATH}?request_id={ask.request_id}&attempt=0&wait_s=5"
    found = [worker.get(f"{path}&kind={kind}") for kind in ("prefill", "decode")]
    assert [status for status, _ in found] == [200, 200]
    lines = lines_of(worker, last)
    assert [JournalLine.from_json(json.loads(text)) for _, text in found] == lines
    assert len(tokens_of(chunks(stream))) == 20
    assert worker.post(wire.ACKNOWLEDGE_PATH, {"through": lines[0].sequence}).status == 200
    assert lines_of(worker) == lines[1:]
    assert worker.post(wire.ACKNOWLEDGE_PATH, {"through": lines[1].sequence}).status == 200
    assert lines_of(worker) == []
    assert worker.get(f"{path}&kind=prefill") == found[0]


def test_a_report_follows_the_load(worker: Worker, prose: Prose) -> None:
    stream = worker.stream(endless(prose("execmodel", 1500), 60))
    computing = reported(worker, lambda report: report.prefill_tokens > 0)
    assert computing.running + computing.waiting == 1
    decoding = reported(worker, lambda report: report.prefill_tokens == 0)
    assert decoding.running == 1
    assert decoding.kv_tokens >= 1500
    assert len(tokens_of(chunks(stream))) == 60
    after = report_of(worker)
    assert (after.running, after.waiting, after.kv_tokens, after.prefill_tokens) == (0, 0, 0, 0)
    assert after.law is not None


def test_vllms_metrics_show_ours(worker: Worker, prose: Prose) -> None:
    before = worker.metrics()
    ids = prose("execmodel", 1500)
    worker.ask(Ask(ids, "both"))
    cold = Ask(prose("import", 700), "both", salt="salt-of-another")
    worker.ask(cold)
    after = worker.metrics()
    rise = {name: after[name] - before.get(name, 0) for name in after}
    assert rise['kvitto_store_hit_tokens_total{tier="device"}'] == 1472
    assert rise["kvitto_store_miss_tokens_total"] == 28 + 700
    assert rise["kvitto_store_published_blocks_total"] == 10
    assert rise["kvitto_store_published_bytes_total"] == 10 * 30 * 49152
    assert rise["kvitto_journal_lines_total"] == 4
    assert rise["kvitto_scheduler_step_seconds_count"] > 1
    assert 0 < rise["kvitto_scheduler_step_seconds_sum"] < 60
    assert rise["kvitto_scheduler_step_expected_seconds_total"] > 0
    assert after["kvitto_scheduler_policy_faults_total"] == 0
    assert after["kvitto_journal_lost_lines_total"] == 0


def test_a_draining_worker_takes_nothing_new_and_ends_well_what_it_has(worker: Worker, prose: Prose) -> None:
    events = chunks(worker.stream(endless(prose("with", 200), 60)))
    first = next(events)
    drain(worker, draining=True)
    refused = worker.post(wire.GENERATE_PATH, Ask(prose("with", 100), "both").body(stream=False))
    assert refused.status == 503
    assert refused.headers["retry-after"]
    assert json.loads(refused.read())["error"]["type"] == "ServiceUnavailableError"
    assert worker.get(wire.HEALTH_PATH)[0] == 200
    assert report_of(worker).draining
    assert worker.metrics()["kvitto_worker_draining"] == 1
    assert len(tokens_of([first, *events])) == 60
    drain(worker, draining=False)
    assert worker.ask(Ask(prose("with", 100), "both")).status == 200


def test_a_drained_worker_that_is_told_to_stop_ends_all_streams_first_and_attests_them(
    worker: Worker, prose: Prose
) -> None:
    asks = [endless(prose(chapter, 150), 50) for chapter in ("with", "types", "import")]
    streams: list[Iterator[dict[str, Any]]] = [chunks(worker.stream(ask)) for ask in asks]
    begun = [next(stream) for stream in streams]
    drain(worker, draining=True)
    told_s = time.monotonic()
    worker.process.terminate()
    for first, stream in zip(begun, streams, strict=True):
        rest = list(stream)
        assert len(tokens_of([first, *rest])) == 50
        assert [c["finish_reason"] for event in rest for c in event["choices"]][-1] == "length"
    assert worker.process.wait(worker.spec.shutdown_timeout_s) == 0
    assert time.monotonic() - told_s < worker.spec.shutdown_timeout_s
    for ask in asks:
        decoded = worker.journalled(ask)[-1]
        assert isinstance(decoded, DecodeAttestation)
        assert (decoded.output_to, decoded.ended) == (50, "length")
