"""The worker's own metrics, in the registry that vLLM's ``/metrics`` shows. No label names a tenant.

Counters start at 0 with the worker's process, as Prometheus expects; tokens are what was attested since.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from engine.worker import report
from engine.worker.journal import JournalReader
from engine.worker.report import Count

_COUNTERS: Final = {
    Count.LOADED_BLOCKS: "Blocks read from the prefix store into the KV cache.",
    Count.LOADED_BYTES: "Bytes of the blocks that were loaded.",
    Count.LOAD_SECONDS: "Seconds from the start to the end of loads, summed over requests.",
    Count.QUARANTINED_BLOCKS: "Blocks whose checksum was wrong when they were loaded; quarantined.",
    Count.PUBLISHED_BLOCKS: "Blocks written to the prefix store.",
    Count.PUBLISHED_BYTES: "Bytes of the blocks that were written.",
    Count.PUBLISH_SECONDS: "Seconds that steps waited for publications.",
    Count.REFUSED_PUBLICATIONS: "Publications that the disk did not take, each with all that follow.",
    Count.FULL_PUBLICATIONS: "Publications without room in the quota, each with all that follow.",
    Count.OWED_WITHOUT_ROOM: "Publications of owed blocks, which take no promise's place, without room.",
    Count.EVICTED_BLOCKS: "Blocks that went for want of room.",
    Count.EXPIRED_BLOCKS: "Blocks that went after the end of their promise.",
    Count.POLICY_FAULTS: "Faults of our scheduling; the step was vLLM's own.",
    Count.DRAFTED_TOKENS: "Tokens that were drafted, of any request.",
    Count.ACCEPTED_TOKENS: "Of them, those that the model drew as well.",
    Count.JOURNAL_LOST_LINES: "Attestations that no disk would take.",
    Count.STEP_EXPECTED_SECONDS: "What the law of costs expected of the measured steps.",
}


@dataclass(frozen=True, slots=True)
class WorkerMetrics(Collector):
    """Reads what the engine core has left, and what the journal holds, when it is asked.

    Args:
        folder: the journal's folder, where reports are left.
        journal: the reader of the journal.
        draining: whether the worker takes no more requests.
    """

    folder: Path
    journal: JournalReader
    draining: Callable[[], bool]

    def collect(self) -> Iterator[Metric]:
        """Prometheus: all metrics now."""
        left = report.read(self.folder)
        for name, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"kvitto_{name}", meaning, value=left.counts.get(name, 0))
        yield SummaryMetricFamily(
            "kvitto_scheduler_step_seconds",
            "Steps from which the law of costs has learned: those with a prompt in them.",
            count_value=int(left.counts.get(Count.STEPS, 0)),
            sum_value=left.counts.get(Count.STEP_SECONDS, 0),
        )
        yield from self._attested()
        gauges: dict[str, tuple[str, float]] = {
            "kvitto_scheduler_running_requests": ("Requests that run.", left.report.running),
            "kvitto_scheduler_waiting_requests": ("Requests that wait.", left.report.waiting),
            "kvitto_scheduler_kv_tokens": (
                "Tokens of running requests in the KV cache.",
                left.report.kv_tokens,
            ),
            "kvitto_kv_blocks_in_use": (
                "Blocks of the KV cache that are not free.",
                left.counts.get(Count.KV_BLOCKS_IN_USE, 0),
            ),
            "kvitto_tracked_requests": (
                "Requests that are still to be attested.",
                left.counts.get(Count.TRACKED_REQUESTS, 0),
            ),
            "kvitto_scheduler_prefill_left_tokens": (
                "Tokens of prompts that are left to compute.",
                left.report.prefill_tokens,
            ),
            "kvitto_worker_draining": ("1 while new requests are refused.", int(self.draining())),
        }
        for gauge, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(gauge, meaning, value=value)

    def _attested(self) -> Iterator[Metric]:
        tokens = self.journal.attested_tokens()
        hits = CounterMetricFamily(
            "kvitto_store_hit_tokens", "Prompt tokens from a cache, as attested.", labels=["tier"]
        )
        for tier in ("device", "store"):
            hits.add_metric([tier], tokens[f"hit_{tier}"])
        yield hits
        for kind, meaning in (
            ("owed", "Prompt tokens computed again because their promise was broken, as attested."),
            ("miss", "Prompt tokens computed, as attested."),
        ):
            yield CounterMetricFamily(f"kvitto_store_{kind}_tokens", meaning, value=tokens[kind])
        yield CounterMetricFamily(
            "kvitto_journal_lines", "Attestations written to the journal.", value=self.journal.read_lines
        )
        yield GaugeMetricFamily(
            "kvitto_journal_unacknowledged_lines",
            "Attestations that the control plane has not taken over.",
            value=self.journal.last - self.journal.acknowledged,
        )
