"""What processes of a worker leave for its API server, on a real directory."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine.cost import CostLaw
from engine.proof.attestation import DECODE_KIND, PREFILL_KIND
from engine.wire import WorkerReport
from engine.worker import report
from engine.worker.journal import Journal, JournalReader
from engine.worker.metrics import WorkerMetrics
from engine.worker.report import Count, Counts, ReportFile, engine_says, rank_says
from engine.worker.reported import ReportedMixin

BUSY = WorkerReport(2, 1, 700, 300, draining=False, namespace="ab" * 32, law=(0.01, 6e-4, 4e-7))


class Clock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


def says(running: int) -> dict[str, Any]:
    return engine_says(WorkerReport(running, 0, 0, 0, draining=False, namespace=""), {})


def test_what_the_engine_core_leaves_is_read_and_counts_of_all_ranks_are_added(tmp_path: Path) -> None:
    ReportFile.of_engine(tmp_path).leave(lambda: engine_says(BUSY, {Count.POLICY_FAULTS: 1}), at_once=True)
    for rank in (0, 1):
        counts = {Count.LOADED_BLOCKS: 3 + rank}
        ReportFile.of_rank(tmp_path, rank).leave(lambda: rank_says(counts), at_once=True)  # noqa: B023 -- called at once
    left = report.read(tmp_path)
    assert left.report == BUSY
    assert left.counts == {"scheduler_policy_faults": 1, "store_loaded_blocks": 7}


def test_a_busy_engine_core_leaves_a_report_every_fifth_of_a_second_and_an_idle_one_at_once(
    tmp_path: Path,
) -> None:
    clock = Clock()
    folder = tmp_path / "not yet there"
    file = ReportFile(folder / "report.json", clock)

    def running() -> int:
        return report.read(folder).report.running

    file.leave(lambda: says(3), at_once=False)
    assert running() == 3
    clock.at_s += 0.19
    file.leave(lambda: says(2), at_once=False)
    assert running() == 3
    clock.at_s += 0.02
    file.leave(lambda: says(1), at_once=False)
    assert running() == 1
    file.leave(lambda: says(0), at_once=True)
    assert running() == 0


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    file = ReportFile.of_engine(tmp_path)
    file.leave(lambda: says(1), at_once=True)
    before = (tmp_path / "report.json").stat().st_ino
    file.leave(lambda: says(1), at_once=True)
    assert (tmp_path / "report.json").stat().st_ino == before
    file.leave(lambda: says(2), at_once=True)
    assert (tmp_path / "report.json").stat().st_ino != before


def test_a_report_that_cannot_be_left_is_left_when_the_disk_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    file = ReportFile.of_engine(folder)
    file.leave(lambda: says(4), at_once=True)
    folder.unlink()
    file.leave(lambda: says(4), at_once=True)
    assert report.read(folder).report.running == 4


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"counts": 1}', '{"counts": {}, "report": {}}', "\xff"]
)
def test_an_unreadable_report_is_an_idle_workers(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_bytes(text.encode("latin-1"))
    left = report.read(tmp_path)
    assert left.report == WorkerReport(0, 0, 0, 0, draining=False, namespace="")


def test_what_processes_before_have_left_is_gone_at_the_start(tmp_path: Path) -> None:
    ReportFile.of_engine(tmp_path).leave(lambda: engine_says(BUSY, {}), at_once=True)
    ReportFile.of_rank(tmp_path, 7).leave(lambda: rank_says({Count.LOADED_BLOCKS: 1}), at_once=True)
    report.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    report.clear(tmp_path)


class Request:
    def __init__(self, prompt: int, computed: int) -> None:
        self.num_prompt_tokens = prompt
        self.num_computed_tokens = computed


class BareScheduler:
    """As much of vLLM's scheduler as the mixin looks at."""

    def __init__(self, folder: Path) -> None:
        extra = {"journal_dir": str(folder)}
        transfer = SimpleNamespace(kv_connector_extra_config=extra)
        self.vllm_config = SimpleNamespace(kv_transfer_config=transfer)
        planner = SimpleNamespace(journal=Journal(folder), tracked_requests=1)
        self.connector = SimpleNamespace(namespace="cd" * 32, planner=planner)
        self._pacer: Any = None
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.policy_faults = 2
        pool = SimpleNamespace(num_gpu_blocks=101, get_usage=lambda: 0.25)
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.requests) - len(self.running)

    def schedule(self, throttle_prefills: bool = False) -> str:
        return "a step"

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> str:
        return "outputs"

    def make_spec_decoding_stats(self, stats: Any, num_draft_tokens: int, **named: Any) -> str:
        return "vLLM's own"

    def finish_requests(self, request_ids: Any, finished_status: Any) -> str:
        self.requests, self.running = {}, []
        return "finished"


class ReportedScheduler(ReportedMixin, BareScheduler):
    pass


def test_a_scheduler_says_at_once_what_it_is_and_after_a_step_what_it_has_to_do(tmp_path: Path) -> None:
    scheduler = ReportedScheduler(tmp_path)
    assert report.read(tmp_path).report == WorkerReport(0, 0, 0, 0, draining=False, namespace="cd" * 32)
    long, short = Request(1000, 256), Request(30, 33)
    scheduler.requests = {"a": long, "b": short, "c": Request(200, 0)}
    scheduler.running = [long, short]
    scheduler._pacer = SimpleNamespace(law=CostLaw(0.02, 1e-3, 1e-6), counts=Counts(float))
    assert scheduler._report_file is not None
    scheduler._report_file._left_s = float("-inf")
    assert scheduler.schedule() == "a step"
    left = report.read(tmp_path)
    assert left.report == WorkerReport(2, 1, 289, 944, False, "cd" * 32, (0.02, 1e-3, 1e-6))
    assert left.counts["scheduler_policy_faults"] == 2
    assert left.counts["kv_blocks_in_use"] == 25
    assert left.counts["tracked_requests"] == 1
    assert scheduler.finish_requests(None, None) == "finished"
    assert report.read(tmp_path).report.running == 0


def test_drafts_and_those_accepted_are_said(tmp_path: Path) -> None:
    scheduler = ReportedScheduler(tmp_path)
    drafts = {"num_draft_tokens": 4, "num_accepted_tokens": 3, "request_id": "a"}
    assert scheduler.make_spec_decoding_stats(None, **drafts, num_invalid_spec_tokens=None) == "vLLM's own"
    scheduler.make_spec_decoding_stats(None, **drafts, num_invalid_spec_tokens={"a": 1, "b": 1})
    scheduler.update_from_output(None, None)
    left = report.read(tmp_path)
    assert (left.report.drafted, left.report.accepted) == (7, 6)
    assert (left.counts[Count.DRAFTED_TOKENS], left.counts[Count.ACCEPTED_TOKENS]) == (7, 6)


def test_a_law_that_was_never_measured_is_not_reported(tmp_path: Path) -> None:
    scheduler = ReportedScheduler(tmp_path)
    scheduler._pacer = SimpleNamespace(law=CostLaw(), counts=Counts(float))
    scheduler.update_from_output(None, None)
    assert report.read(tmp_path).report.law is None


def test_a_report_that_fails_is_counted_and_the_step_is_vllms_own(tmp_path: Path) -> None:
    scheduler = ReportedScheduler(tmp_path)
    scheduler.requests = {"a": None}  # type: ignore[dict-item]  # what no scheduler has
    scheduler._report_file._left_s = float("-inf")  # type: ignore[union-attr]  # it is open
    assert scheduler.schedule() == "a step"
    assert scheduler.update_from_output(None, None) == "outputs"
    scheduler.finish_requests(None, None)
    assert report.read(tmp_path).counts["scheduler_policy_faults"] >= 3


def attestation(device: int, store: int, owed: int, computed: bool = True) -> str:
    payload = {
        "kind": PREFILL_KIND,
        "request_id": "r",
        "attempt": 0,
        "prompt_tokens": 1000,
        "hit_device_tokens": device,
        "hit_store_tokens": store,
        "owed_tokens": owed,
        "computed": computed,
    }
    return json.dumps({"payload": payload})


def samples(folder: Path, reader: JournalReader, draining: bool = False) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(WorkerMetrics(folder, reader, lambda: draining))
    return {
        sample.name + "".join(sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_metrics_show_the_report_the_counts_and_what_was_attested_since_the_start(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(attestation(640, 0, 0), "of a worker before")
    reader = JournalReader(tmp_path)
    assert samples(tmp_path, reader)["kvitto_store_hit_tokens_totaldevice"] == 0
    journal.append(attestation(128, 256, 64), "c")
    journal.append(attestation(64, 0, 0, computed=False), "c")
    journal.append(json.dumps({"payload": {"kind": DECODE_KIND, "request_id": "r", "attempt": 0}}), "c")
    reader.acknowledge(2)
    counts = {Count.STEPS: 4, Count.STEP_SECONDS: 0.5, Count.PUBLISHED_BYTES: 1e9}
    ReportFile.of_engine(tmp_path).leave(lambda: engine_says(BUSY, counts), at_once=True)
    found = samples(tmp_path, reader, draining=True)
    assert found["kvitto_store_hit_tokens_totaldevice"] == 128
    assert found["kvitto_store_hit_tokens_totalstore"] == 256
    assert found["kvitto_store_owed_tokens_total"] == 64
    assert found["kvitto_store_miss_tokens_total"] == 1000 - 128 - 256 - 64
    assert found["kvitto_journal_lines_total"] == 3
    assert found["kvitto_journal_unacknowledged_lines"] == 2
    assert found["kvitto_scheduler_step_seconds_count"] == 4
    assert found["kvitto_scheduler_step_seconds_sum"] == 0.5
    assert found["kvitto_store_published_bytes_total"] == 1e9
    assert found["kvitto_scheduler_running_requests"] == 2
    assert found["kvitto_scheduler_prefill_left_tokens"] == 300
    assert found["kvitto_worker_draining"] == 1
    assert found["kvitto_scheduler_policy_faults_total"] == 0


def test_every_count_is_shown_and_no_metric_names_a_tenant(tmp_path: Path) -> None:
    counts = {count: index for index, count in enumerate(Count, 1)}
    ReportFile.of_engine(tmp_path).leave(lambda: engine_says(BUSY, counts), at_once=True)
    shown = set(samples(tmp_path, JournalReader(tmp_path)).values())
    assert set(counts.values()) <= shown
    registry = CollectorRegistry()
    registry.register(WorkerMetrics(tmp_path, JournalReader(tmp_path), lambda: False))
    labels = {name for family in registry.collect() for sample in family.samples for name in sample.labels}
    assert labels == {"tier"}
