"""The scheduler's own word: how much it has to do, after every step and every request that ends.

A mixin before one of vLLM's schedulers. What fails in it is logged, and the step is vLLM's own.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.cost import CostLaw
from engine.wire import WorkerReport
from engine.worker.report import Count, ReportFile, engine_says

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as _Base
else:
    _Base = object

_LOG: Final = logging.getLogger("vllm.kvitto.report")


class ReportedMixin(_Base):  # type: ignore[misc]  # vllm is untyped here
    """Put before `engine.worker.scheduler.PacedMixin`, whose pacer and faults it reports."""

    _report_file: ReportFile | None = None
    _report_faults = 0
    _drafted = 0
    _accepted = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guarded_report(self._open_report)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """vLLM: decide a step."""
        output = super().schedule(throttle_prefills)
        self._guarded_report(self._leave_report)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """vLLM: a step has been computed."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._guarded_report(self._leave_report)
        return outputs

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        """vLLM: requests end from outside."""
        finished = super().finish_requests(request_ids, finished_status)
        self._guarded_report(self._leave_report)
        return finished

    def make_spec_decoding_stats(self, stats: Any, num_draft_tokens: int, **named: Any) -> Any:
        """vLLM: drafts of one request were looked at; ``stats`` is its own tally of the step."""
        self._guarded_report(lambda: self._tally(num_draft_tokens, **named))
        return super().make_spec_decoding_stats(stats, num_draft_tokens, **named)

    def _tally(
        self,
        drafted: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> None:
        # What a grammar had struck out before was never looked at.
        self._drafted += drafted - (num_invalid_spec_tokens or {}).get(request_id, 0)
        self._accepted += num_accepted_tokens

    def _open_report(self) -> None:
        transfer = self.vllm_config.kv_transfer_config
        folder = None if transfer is None else transfer.kv_connector_extra_config.get("journal_dir")
        if folder is not None:
            self._report_file = ReportFile.of_engine(Path(folder))
            self._leave_report()

    def _leave_report(self) -> None:
        if self._report_file is not None:
            running, waiting = self.get_request_counts()
            idle = not running and not waiting
            self._report_file.leave(functools.partial(self._say, running, waiting), idle)

    def _say(self, running: int, waiting: int) -> dict[str, Any]:
        pacer = self._pacer
        law = None if pacer is None or pacer.law == CostLaw() else dataclasses.astuple(pacer.law)
        report = WorkerReport(
            running=running,
            waiting=waiting,
            kv_tokens=sum(request.num_computed_tokens for request in self.running),
            prefill_tokens=sum(
                max(request.num_prompt_tokens - request.num_computed_tokens, 0)
                for request in self.requests.values()
            ),
            draining=False,
            namespace=self.connector.namespace,
            law=law,
            drafted=self._drafted,
            accepted=self._accepted,
        )
        counts = {} if pacer is None else dict(pacer.counts)
        counts[Count.DRAFTED_TOKENS] = self._drafted
        counts[Count.ACCEPTED_TOKENS] = self._accepted
        counts[Count.POLICY_FAULTS] = self.policy_faults + self._report_faults
        counts[Count.JOURNAL_LOST_LINES] = self.connector.planner.journal.lost
        counts[Count.TRACKED_REQUESTS] = self.connector.planner.tracked_requests
        pool = self.kv_cache_manager.block_pool
        counts[Count.KV_BLOCKS_IN_USE] = round(pool.get_usage() * (pool.num_gpu_blocks - 1))
        return engine_says(report, counts)

    def _guarded_report(self, leave: Callable[[], None]) -> None:
        try:
            leave()
        except Exception:
            self._report_faults += 1
            if self._report_faults.bit_count() == 1:
                _LOG.exception("the worker's report failed, %d times so far", self._report_faults)
