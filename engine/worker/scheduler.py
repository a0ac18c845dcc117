"""vLLM's scheduler with two changes, both on the hook it asks for the size of every chunk.

*The tail.* What is behind a prompt's last full block is a step of its own. A warm prompt loads its full
blocks and computes the tail. A cold one would compute the tail in the middle of a larger chunk, whose matrix
products round differently, and greedy answers could part at a near tie. Split here, cold, warm and handed-off
prompts run the same last step over the same bytes. It costs a cold prompt one small step. Output that another
worker has generated is behind the prompt's end in steps of its own: a single token runs as decode runs it.

*The pace*, where the worker's spec has a step budget. Once a step the queues are put in the policy's order,
and chunks are cut to the time that is left (`engine.worker.pacer`). A waiting prompt counts as what it will
have to compute once its blocks are loaded. What fails in it is counted and logged, and the step is vLLM's
own: an exception here would end the engine for every request.
"""

import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import PauseState, Scheduler
from vllm.v1.request import RequestStatus

from engine.cost import Work
from engine.policy import Prompt
from engine.wire import OUTPUT_FROM, TENANT, WEIGHT
from engine.worker import clock, grammar
from engine.worker.pacer import PACE_CONFIG, Pacer, Step, StepPlan
from engine.worker.reported import ReportedMixin

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as _Base
else:
    _Base = object

_LOG: Final = logging.getLogger("vllm.kvitto.scheduler")
_MEASURES_MAX: Final = 64
Result = TypeVar("Result")


def split_tail(
    computed_tokens: int, chunk_tokens: int, prompt_tokens: int, total_tokens: int, block_tokens: int
) -> int:
    """The chunk, cut where a step has to end: there may be one behind it; never cut to nothing.

    Args:
        computed_tokens: what is computed before the chunk.
        chunk_tokens: the chunk that was wanted.
        prompt_tokens: what the client sent; a step ends there, and at the last full block that leaves one.
        total_tokens: with what was generated since; a step ends at the last full block that leaves one.
        block_tokens: tokens of a block.
    """
    ends = [(tokens - 1) // block_tokens * block_tokens for tokens in (prompt_tokens, total_tokens)]
    cuts = [end - computed_tokens for end in (*ends, prompt_tokens) if end > computed_tokens]
    return min([chunk_tokens, *cuts])


class PacedMixin(_Base):  # type: ignore[misc]  # vllm is untyped here
    """Put before one of vLLM's schedulers. ``policy_faults`` counts what fell back to vLLM's own decision."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.policy_faults = 0
        self._plan: StepPlan | None = None
        self._held_back: list[Any] = []
        self._measures: dict[int, tuple[Step, float]] = {}
        self._ended_s = 0.0
        self._pacer: Pacer | None = self._guarded(self._make_pacer, None)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """vLLM: decide a step."""
        self._plan = None
        if self._pacer is None or self._pause_state != PauseState.UNPAUSED:
            return super().schedule(throttle_prefills)
        pacer, started_s = self._pacer, clock.monotonic_s()
        self._guarded(lambda: self._arrange(pacer), None)
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self.kv_holding_waiting.extend(self._held_back)
            self._held_back = []
        self._guarded(lambda: self._account(pacer, output, started_s), None)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """vLLM: a step has been computed."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        pacer = self._pacer
        if pacer is not None:
            self._guarded(lambda: self._measure(pacer, scheduler_output), None)
        return outputs

    def shutdown(self) -> None:
        """vLLM: the engine is ending."""
        if self._pacer is not None:
            self._guarded(self._pacer.close, None)
        super().shutdown()

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        chunk = num_new_tokens
        plan = self._plan if _is_prompt(request, num_computed_tokens) else None
        if plan is not None:
            name = request.request_id
            chunk = self._guarded(
                lambda: plan.chunk(name, num_computed_tokens, num_new_tokens), num_new_tokens
            )
        chunk = super()._reserve_prefill_lookahead(request, num_computed_tokens, chunk)
        prompt_tokens = request.num_prompt_tokens - _output_from(request)
        chunk = split_tail(num_computed_tokens, chunk, prompt_tokens, request.num_tokens, self.block_size)
        if plan is not None:
            self._guarded(lambda: plan.budget.spend(num_computed_tokens, chunk), None)
        return chunk

    def _make_pacer(self) -> Pacer | None:
        additional = self.vllm_config.additional_config
        config = additional.get(PACE_CONFIG) if isinstance(additional, dict) else None
        if config is None:
            return None
        queues = (self.waiting, self.kv_holding_waiting)
        fcfs = all(isinstance(queue, FCFSRequestQueue) for queue in queues)
        chunked = self.scheduler_config.enable_chunked_prefill and not self.need_mamba_block_aligned_split
        if not (fcfs and chunked):
            _LOG.warning("this model or policy cannot be paced; the scheduling is vLLM's own")
            return None
        return Pacer.of(config, current_platform.get_device_name())

    def _guarded(self, decide: Callable[[], Result], otherwise: Result) -> Result:
        try:
            return decide()
        except Exception:
            self._plan = None
            self.policy_faults += 1
            # The 1st, 2nd, 4th, ...: a fault of every step must not fill the disk.
            if self.policy_faults.bit_count() == 1:
                _LOG.exception("the prefill policy failed, %d times so far", self.policy_faults)
            return otherwise

    def _arrange(self, pacer: Pacer) -> None:
        """Plan the step and put the queues in its order; who must give way is held back for the step."""
        running = [request for request in self.running if _is_prompt(request, request.num_computed_tokens)]
        holding = self._ready(self.kv_holding_waiting)
        taken = len(self.running) + self.num_waiting_for_streaming_input
        waiting = self._ready(self.waiting) if taken < self.max_num_active_reqs else []
        decode = Work()
        for request in self.running:
            if not _is_prompt(request, request.num_computed_tokens):
                decode += Work.chunk(request.num_computed_tokens, 1)
        placed = [_prompt(request, request.num_computed_tokens) for request in (*running, *holding)]
        queued = [self._queued(request) for request in waiting]
        loading = len(holding) < len(self.kv_holding_waiting)
        plan = pacer.plan(placed, queued, decode, self.max_num_scheduled_tokens, loading=loading)
        held_back = [request for request in holding if plan.placed[request.request_id] == 0]
        ordered = _in_order(self.waiting, plan)
        kept = [
            request
            for request in _in_order(self.kv_holding_waiting, plan)
            if plan.placed.get(request.request_id) != 0
        ]
        self._plan, self._held_back = plan, held_back
        for queue, requests in ((self.waiting, ordered), (self.kv_holding_waiting, kept)):
            queue.clear()
            queue.extend(requests)

    def _queued(self, request: Any) -> Prompt:
        """A waiting prompt, less what device and store hold of it; the store answers a little later."""
        if request.num_computed_tokens:
            return _prompt(request, request.num_computed_tokens)
        device_tokens = self._get_local_prefix_cache_hit(request)[1]
        planner = getattr(self.connector, "planner", None)
        tokens = device_tokens if planner is None else planner.foresee(request, device_tokens)
        return _prompt(request, tokens, loads=tokens > device_tokens)

    def _ready(self, queue: Iterable[Any]) -> list[Any]:
        """Requests of a queue that vLLM would take now."""
        return [request for request in queue if self._is_ready(request)]

    def _is_ready(self, request: Any) -> bool:
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            return request.request_id in self.finished_recving_kv_req_ids
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return getattr(request.structured_output_request, "grammar", None) is not None
        return not self._is_blocked_waiting_status(request.status)

    def _account(self, pacer: Pacer, output: Any, started_s: float) -> None:
        work, chunks, decode, largest = {}, Work(), Work(), 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            context = request.num_computed_tokens - tokens
            work[request_id] = Work.chunk(context, tokens)
            if _is_prompt(request, context):
                chunks, largest = chunks + work[request_id], max(largest, tokens)
            else:
                decode += work[request_id]
        if self._plan is not None:
            pacer.scheduled(self._plan, work)
        if len(self._measures) >= _MEASURES_MAX:
            self._measures.clear()  # vLLM has dropped steps without an answer
        if work:
            least_s = 0.0 if self._plan is None else self._plan.least_s
            self._measures[id(output)] = Step(chunks, largest, decode, least_s), started_s

    def _measure(self, pacer: Pacer, output: Any) -> None:
        """A step runs from its decision, or from the end of the one before if that was still running then."""
        now_s, last_s = clock.monotonic_s(), self._ended_s
        self._ended_s = now_s
        measure = self._measures.pop(id(output), None)
        if measure is not None:
            step, started_s = measure
            pacer.measured(step, now_s - max(started_s, last_s))


class TailScheduler(ReportedMixin, PacedMixin, Scheduler):  # type: ignore[misc]  # vllm is untyped here
    """For platforms whose steps do not overlap (CPU)."""


class AsyncTailScheduler(ReportedMixin, PacedMixin, AsyncScheduler):  # type: ignore[misc]  # vllm is untyped here
    """For accelerators, where the next step is decided while one is running."""


def tail_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """The scheduler for vLLM's configuration, which turns overlapping steps off where there are none."""
    overlapping = vllm_config.scheduler_config.async_scheduling
    scheduler = (AsyncTailScheduler if overlapping else TailScheduler)(vllm_config, *args, **kwargs)
    grammar.refine(scheduler.structured_output_manager)
    return scheduler


def _is_prompt(request: Any, computed_tokens: int) -> bool:
    """Whether more than one known token is left: prefill. Images keep the chunks that vLLM cuts for them."""
    return bool(request.num_tokens - computed_tokens > 1) and not request.has_encoder_inputs


def _prompt(request: Any, computed_tokens: int, loads: bool = False) -> Prompt:
    return Prompt(
        request_id=request.request_id,
        tenant=_tenant(request),
        arrived_s=request.arrival_time,
        computed_tokens=min(computed_tokens, request.num_tokens - 1),
        total_tokens=request.num_tokens,
        weight=_weight(request),
        loads=loads,
    )


# Requests that are nobody's come here as well: what cannot be counts as not said.


def _params(request: Any) -> dict[str, Any]:
    return request.kv_transfer_params or {}


def _tenant(request: Any) -> str:
    """The tenant that the cluster names; a request of nobody's is of its salt's."""
    return str(_params(request).get(TENANT) or request.cache_salt or "")


def _weight(request: Any) -> float:
    weight = _params(request).get(WEIGHT)
    return float(weight) if isinstance(weight, int | float) and 0 < weight < math.inf else 1.0


def _output_from(request: Any) -> int:
    """How many of the tokens that were sent others have generated."""
    tokens = _params(request).get(OUTPUT_FROM)
    return tokens if isinstance(tokens, int) and 0 <= tokens < request.num_prompt_tokens else 0


def _in_order(queue: Iterable[Any], plan: StepPlan) -> list[Any]:
    """A queue in the plan's order; first what the plan leaves out, which vLLM looks at and mostly skips."""
    return sorted(queue, key=lambda request: plan.rank.get(request.request_id, -1))
