"""Which of several (worker, stage) pairs a call costs least on. Pure, and in whole numbers.

All scores are predicted nanoseconds, so that one comparison holds in Python and in `leases.lua`, and prompts
may be compared across stages. A prompt's score is the time to its first token: what is queued before it, and
its own uncached part by the worker's law of costs. An output's is the time of a decode step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.cost import CostLaw, Work
from engine.wire import Stage

NS_PER_MS: Final = 10**6
NS_PER_S: Final = 10**9

# A decode step takes 18 ms + 0.47 ms a request + 3.2 us a token of context (measured on the CPU build, shared
# notes A.4). The constant is everywhere the same, so these two are w1/slots and w2/capacity of the design.
DECODE_REQUEST_NS: Final = 470_000
DECODE_KV_TOKEN_NS: Final = 3_200
# A queued prefill delays the outputs beside it once, a crowded step delays every token: a typical output has
# this many.
OUTPUT_STEPS: Final = 128

# From one worker's answer to the other's first step, by way of the store (measured: p50 100-120 ms).
HANDOFF_S: Final = 0.1
LOAD_BLOCK_S: Final = 0.0015
# What vLLM computes of a prompt in one step, where no time budget says otherwise.
STEP_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Load:
    """What runs on a worker: requests, their tokens in the KV cache, milliseconds of prefill left."""

    running: int = 0
    kv_tokens: int = 0
    queued_ms: int = 0

    def __add__(self, other: "Load") -> "Load":
        return Load(
            self.running + other.running, self.kv_tokens + other.kv_tokens, self.queued_ms + other.queued_ms
        )

    def over(self, other: "Load") -> "Load":
        """What is in this and not in the other; nothing is less than 0."""
        return Load(
            max(0, self.running - other.running),
            max(0, self.kv_tokens - other.kv_tokens),
            max(0, self.queued_ms - other.queued_ms),
        )

    def at_least(self, other: "Load") -> "Load":
        """The greater of each number."""
        return Load(
            max(self.running, other.running),
            max(self.kv_tokens, other.kv_tokens),
            max(self.queued_ms, other.queued_ms),
        )


NOTHING: Final = Load()


@dataclass(frozen=True, slots=True)
class Weights:
    """Nanoseconds that a score rises by with each of a `Load`'s numbers."""

    running: int
    kv_tokens: int
    queued_ms: int


WEIGHTS: Final[dict[Stage, Weights]] = {
    "prefill": Weights(0, 0, NS_PER_MS),
    "both": Weights(DECODE_REQUEST_NS, DECODE_KV_TOKEN_NS, NS_PER_MS),
    "decode": Weights(DECODE_REQUEST_NS, DECODE_KV_TOKEN_NS, NS_PER_MS // OUTPUT_STEPS),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to place a call.

    Args:
        worker: its index.
        stage: what it would do.
        reason: why this is a way, for the metrics.
        own_ns: the call's own part of the score.
        load: what the call adds to the worker.
        running_below: the worker must have fewer requests than this.
        queued_ms_max: and not more than this queued.
    """

    worker: int
    stage: Stage
    reason: str
    own_ns: int
    load: Load
    running_below: int
    queued_ms_max: int

    def score_ns(self, load: Load) -> int:
        """The score on a worker that has this load; the least is best."""
        weights = WEIGHTS[self.stage]
        return (
            self.own_ns
            + weights.running * load.running
            + weights.kv_tokens * load.kv_tokens
            + weights.queued_ms * load.queued_ms
        )

    def fits(self, load: Load) -> bool:
        """Whether the worker has room beside this load."""
        return load.running < self.running_below and load.queued_ms <= self.queued_ms_max


def choose(candidates: Sequence[Candidate], loads: Sequence[Load]) -> int | None:
    """Index of the best candidate that fits, the first of equals; None when none does.

    `leases.lua` does the same over the loads of all gateways.

    Args:
        candidates: ways to place the call.
        loads: what runs on each worker, by its index.
    """
    scores = [
        (candidate.score_ns(loads[candidate.worker]), index)
        for index, candidate in enumerate(candidates)
        if candidate.fits(loads[candidate.worker])
    ]
    return min(scores)[1] if scores else None


def prefill_s(law: CostLaw, cached_tokens: int, prompt_tokens: int) -> float:
    """Seconds to compute a prompt behind its cached part (shorter than it), in steps of its own."""
    assert 0 <= cached_tokens < prompt_tokens
    uncached = prompt_tokens - cached_tokens
    steps = math.ceil(uncached / STEP_TOKENS)
    return steps * law.base_s + law.work_s(Work.chunk(cached_tokens, uncached))
