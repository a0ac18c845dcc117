"""What the scheduler asks once a step: which prompts, how much of each. Knows nothing of vLLM.

It joins the policy, the fitted law and the law's file. A prompt that holds a place (it runs, or its blocks
are loaded) gets the chunk that the plan gives it, which is 0 when a better one waits, or shares the step with
none behind it. The waiting one may then not be admitted after all, for want of memory or because its blocks
must be loaded first; a step that gave way for nothing is followed by steps in which nobody gives way.
"""

import dataclasses
import hashlib
import json
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from engine.cost import CostFit, CostLaw, Work
from engine.policy import FairOrder, Prompt, StepBudget, share_step, stretched
from engine.worker.report import Count, Counts

PACE_CONFIG: Final = "kvitto_pace"

STEP_LOG: Final = "step of %d tokens: %.4f s, expected %.4f s, at least %.4f s, margin %.2f"

_LOG: Final = logging.getLogger("vllm.kvitto.pacer")
_STEPS_PER_WRITE: Final = 64
_STAND_MAX_STEPS: Final = 16
_TOKENS_WORTH_LEARNING: Final = 16


@dataclass(slots=True)
class StepPlan:
    """One step: its order, the chunks of those that hold a place, and a budget for what else is admitted.

    Only the first ``together`` of ``ordered`` may have chunks in it. ``least_s`` is what it takes with the
    smallest chunk that is worth a step.
    """

    ordered: list[Prompt]
    together: int
    placed: dict[str, int]
    budget: StepBudget
    gives_way: bool
    least_s: float
    rank: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.rank = {prompt.request_id: index for index, prompt in enumerate(self.ordered)}

    def chunk(self, request_id: str, context_tokens: int, wanted_tokens: int) -> int:
        """Tokens for a prompt in this step, of ``wanted_tokens``."""
        placed = self.placed.get(request_id)
        if placed is not None:
            return min(placed, wanted_tokens)
        if self.rank.get(request_id, -1) >= self.together:
            return 0
        return self.budget.offer(context_tokens, wanted_tokens)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was scheduled; ``least_s`` is the plan's, 0 without one."""

    chunks: Work
    largest_chunk_tokens: int
    decode: Work
    least_s: float


class Pacer:
    """The prefill policy of one worker.

    Decoding follows a law of its own: a token reads all of its context from memory. Steps that only decode
    teach it, and teach the law of chunks what a step costs before it computes one.

    Args:
        step_budget_s: seconds a step should take.
        law_file: where the fitted law of chunks is kept between starts; that of decoding beside it.
    """

    def __init__(self, step_budget_s: float, law_file: Path) -> None:
        self._step_budget_s = step_budget_s
        self._law_file = law_file
        self._fit = CostFit(CostLaw.read(law_file))
        self._decode_file = law_file.with_suffix(".decode.json")
        self._decoding = CostFit(CostLaw.read(self._decode_file))
        self._fair = FairOrder()
        self._learned = 0
        self.counts = Counts(float)
        self._stand_steps = 0
        self._stand_next = 1

    @classmethod
    def of(cls, config: Mapping[str, Any], device: str) -> Self:
        """From what `engine.worker.launch` passes on; ``device`` is vLLM's name of the hardware."""
        facts = [config["model"], device, platform.machine(), _cpu_model(), len(os.sched_getaffinity(0))]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return cls(float(config["step_budget_s"]), Path(config["law_dir"]) / f"{digest[:16]}.json")

    @property
    def law(self) -> CostLaw:
        """The law of chunks as known now."""
        return self._fit.law

    def fixed_s(self, decode: Work) -> float:
        """Seconds of a step that also decodes, before it computes a chunk."""
        return self.law.base_s + self._decoding.law.work_s(decode)

    def plan(
        self,
        placed: list[Prompt],
        waiting: list[Prompt],
        decode: Work,
        tokens_max: int,
        *,
        loading: bool = False,
    ) -> StepPlan:
        """Plan a step of at most ``tokens_max`` tokens.

        Args:
            placed: prompts that run or whose loaded blocks are in place.
            waiting: prompts that could be admitted; empty while no place is free.
            decode: what the decoding requests add to the step.
            loading: blocks of others are being loaded, who go on after the step.
        """
        fixed_s = self.fixed_s(decode)
        waited_for = decode.tokens > 0 or loading or any(prompt.loads for prompt in waiting)
        step_s = stretched(self._step_budget_s, fixed_s, waited_for=waited_for)
        budget = StepBudget(self.law, step_s / self._fit.margin - fixed_s, tokens_max - decode.tokens)
        order = self._fair.order([*placed, *waiting], self.law, budget.quantum_s)
        ordered, together = order.prompts, order.together
        names = {prompt.request_id for prompt in placed}
        if self._stand_steps and ordered:
            self._stand_steps -= 1
            ordered.sort(key=lambda prompt: prompt.request_id not in names)
            together = len(ordered)
        chunks = share_step(ordered[:together], dataclasses.replace(budget))
        admitted = [prompt.request_id not in names and prompt.request_id in chunks for prompt in ordered]
        first = admitted.index(True) if True in admitted else len(ordered)
        least = Work()
        if chunk := next((prompt for prompt in ordered if prompt.request_id in chunks), None):
            least = Work.chunk(chunk.computed_tokens, min(chunk.remaining.tokens, budget.floor_tokens))
        return StepPlan(
            ordered=ordered,
            together=together,
            placed={name: chunks.get(name, 0) for name in names},
            budget=budget,
            gives_way=any(
                index >= together or prompt.request_id in names
                for index, prompt in enumerate(ordered[first:], first)
            ),
            least_s=max(fixed_s + self.law.work_s(least), step_s),
        )

    def scheduled(self, plan: StepPlan, work: Mapping[str, Work]) -> None:
        """Charge the tenants for what a planned step really computes, by request id."""
        for prompt in plan.ordered:
            if prompt.request_id in work:
                self._fair.charge(prompt.tenant, self.law.work_s(work[prompt.request_id]))
        if not plan.gives_way:
            return
        if any(name in plan.rank and name not in plan.placed for name in work):
            self._stand_next = 1
        else:
            self._stand_steps = self._stand_next
            self._stand_next = min(self._stand_next * 2, _STAND_MAX_STEPS)

    def measured(self, step: Step, seconds: float) -> None:
        """Learn from a step what it is large enough to teach."""
        if not step.chunks.tokens:
            self._decoding.learn(step.decode, seconds)
            self._fit.learn_base(seconds - self._decoding.law.work_s(step.decode))
        if step.largest_chunk_tokens < _TOKENS_WORTH_LEARNING:
            return
        decode_s = self._decoding.law.work_s(step.decode)
        expected_s, tokens = self.law.step_s(step.chunks) + decode_s, step.chunks.tokens + step.decode.tokens
        _LOG.debug(STEP_LOG, tokens, seconds, expected_s, step.least_s, self._fit.margin)
        self.counts[Count.STEPS] += 1
        self.counts[Count.STEP_SECONDS] += seconds
        self.counts[Count.STEP_EXPECTED_SECONDS] += expected_s
        self._fit.learn(step.chunks, seconds - decode_s)
        self._learned += 1
        if self._learned % _STEPS_PER_WRITE == 0:
            self._keep()

    def close(self) -> None:
        """Keep what was learned."""
        if self._learned:
            self._keep()

    def _keep(self) -> None:
        try:
            self.law.write(self._law_file)
            self._decoding.law.write(self._decode_file)
        except OSError as error:
            _LOG.warning("the law of costs is not kept: %s", error)


def _cpu_model() -> str:
    """The processor's name as Linux tells it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
