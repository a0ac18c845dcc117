"""What a step of the model costs: seconds ≈ base + token · tokens + pair · Σ chunk·(context + chunk/2).

The law is fitted to measured steps while a worker runs. A machine is noisy, so a step far from the law is
given little weight, and steps are kept by kind: a thousand chunks of one size do not wash out what other
sizes have taught. Pure but for `CostLaw.read` and `CostLaw.write`, one small file per hardware and model.
"""

import dataclasses
import json
import math
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

CHUNK_STEP_TOKENS: Final = 32
CHUNK_FLOOR_TOKENS: Final = 64

_KEPT_PER_KIND: Final = 8
_NO_WORK: Final = (0, 0)
_STEPS_AT_START: Final = 8
_STEPS_PER_FIT: Final = 8
_PASSES_AT_START: Final = 20
_PASSES: Final = 4
_RECENT: Final = 9
_ERRORS: Final = 64
_ERRORS_MIN: Final = 20
_LATE_SHARE: Final = 0.05
_LATE_BY: Final = 1.1
_MARGIN_MAX: Final = 1.5
_PRIOR_WEIGHT: Final = 0.05
_TOLERANCE_MIN: Final = 0.02
_HUBER: Final = 1.345
_MEDIAN_TO_SIGMA: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens that a step computes, and how many (token, earlier token) pairs its attention covers."""

    tokens: int = 0
    pairs: float = 0.0

    @classmethod
    def chunk(cls, context_tokens: int, tokens: int) -> Self:
        """``tokens`` new tokens behind ``context_tokens`` computed ones."""
        return cls(tokens, tokens * (context_tokens + tokens / 2))

    def __add__(self, other: "Work") -> "Work":
        return Work(self.tokens + other.tokens, self.pairs + other.pairs)


@dataclass(frozen=True, slots=True)
class CostLaw:
    """Seconds of a step: a constant (not 0), per token (not 0), per pair; none is negative.

    The defaults were measured on one core with a model of 135 million parameters; a worker soon knows better.
    """

    base_s: float = 0.011
    token_s: float = 5.9e-4
    pair_s: float = 3.7e-7

    def __post_init__(self) -> None:
        terms = (self.base_s, self.token_s, self.pair_s)
        if not all(math.isfinite(term) and term >= 0 for term in terms) or not self.base_s * self.token_s:
            raise ValueError(f"no law of costs: {terms}")

    def work_s(self, work: Work) -> float:
        """Seconds that work adds to a step that runs anyway."""
        return self.token_s * work.tokens + self.pair_s * work.pairs

    def times(self, factor: float) -> "CostLaw":
        """The law of a machine that takes ``factor`` times as long."""
        return CostLaw(self.base_s * factor, self.token_s * factor, self.pair_s * factor)

    def step_s(self, work: Work) -> float:
        """Seconds of a step that computes this work."""
        return self.base_s + self.work_s(work)

    def tokens_within(self, time_s: float, context_tokens: int) -> int:
        """How many tokens behind ``context_tokens`` computed ones take ``time_s``; 0 without time."""
        if time_s <= 0:
            return 0
        linear = self.token_s + self.pair_s * context_tokens
        root = 2 * time_s / (linear + math.sqrt(linear * linear + 2 * self.pair_s * time_s))
        return int(min(root, 2.0**53))

    def chunk(self, time_s: float, context_tokens: int, wanted_tokens: int, floor_tokens: int) -> int:
        """The chunk for what is left of a step.

        Args:
            time_s: seconds left, base and everything already scheduled taken off; may be negative.
            context_tokens: tokens computed before the chunk.
            wanted_tokens: tokens that could be computed.
            floor_tokens: fewer are not worth a step (0: a chunk may be empty).

        Returns:
            All that is wanted if it fits, else a multiple of 32; ``floor_tokens`` at least, if wanted.
        """
        fitting = self.tokens_within(time_s, context_tokens)
        if fitting < wanted_tokens:
            fitting = fitting // CHUNK_STEP_TOKENS * CHUNK_STEP_TOKENS
        return min(wanted_tokens, max(fitting, floor_tokens))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The law that a worker has left in a file; the default where there is none that can be used."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{field.name: float(fields[field.name]) for field in dataclasses.fields(cls)})
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            return cls()

    def write(self, path: Path) -> None:
        """Replace the file in one step; workers may share it, the last one wins. Raises OSError."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(dataclasses.asdict(self)) + "\n", encoding="utf-8")
        temporary.replace(path)


@dataclass(frozen=True, slots=True)
class _Step:
    work: Work
    seconds: float

    @property
    def kind(self) -> tuple[int, int]:
        """Sizes and contexts within a factor of two are one kind."""
        context = self.work.pairs / self.work.tokens
        return self.work.tokens.bit_length(), int(context).bit_length()


class CostFit:
    """Learns the law from measured steps.

    The law is the fit times the median of how much longer than it the last steps took: when neighbours come
    and go on a machine, all terms change together and at once. Terms are fitted as multiples of the prior's,
    by least squares of relative errors under Huber weights; the prior counts as a twentieth of a step, which
    decides only what the steps leave open.
    """

    def __init__(self, prior: CostLaw) -> None:
        pair_s = prior.pair_s or prior.token_s * 1e-6
        self._scale = (prior.base_s, prior.token_s, pair_s)
        self._steps: dict[tuple[int, int], deque[_Step]] = {}
        self._recent: deque[_Step] = deque(maxlen=_RECENT)
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._learned = 0
        self._fitted = prior
        self.law: CostLaw = prior

    def learn(self, work: Work, seconds: float) -> None:
        """Take in one measured step; what no clock can have measured is ignored."""
        if work.tokens < 1 or not math.isfinite(seconds) or seconds <= 0:
            return
        step = _Step(work, seconds)
        self._errors.append(seconds / self.law.step_s(work))
        self._steps.setdefault(step.kind, deque(maxlen=_KEPT_PER_KIND)).append(step)
        self._recent.append(step)
        self._learned += 1
        if self._learned <= _STEPS_AT_START:
            self._fit(_PASSES_AT_START)
        elif self._learned % _STEPS_PER_FIT == 0:
            self._fit(_PASSES)
        self.law = self._fitted
        if len(self._recent) == _RECENT:
            ratios = sorted(recent.seconds / self._fitted.step_s(recent.work) for recent in self._recent)
            self.law = self._fitted.times(ratios[_RECENT // 2])

    def learn_base(self, seconds: float) -> None:
        """Take in what a step was seen to cost without any work, which steps of one size cannot tell."""
        if math.isfinite(seconds) and seconds > 0:
            self._steps.setdefault(_NO_WORK, deque(maxlen=_KEPT_PER_KIND)).append(_Step(Work(), seconds))

    @property
    def margin(self) -> float:
        """What to divide a step's budget by, so that at most one step in twenty exceeds it by a tenth.

        1 on a quiet machine, whose steps are seldom that far from the law; up to 1.5 beside neighbours.
        """
        if len(self._errors) < _ERRORS_MIN:
            return 1.0
        late = sorted(self._errors)[int(len(self._errors) * (1 - _LATE_SHARE))]
        return min(max(late / _LATE_BY, 1.0), _MARGIN_MAX)

    def _fit(self, passes: int) -> None:
        steps = [step for kept in self._steps.values() for step in kept]
        law = self._fitted
        for _ in range(passes):
            before, law = _terms(law), self._improved(law, steps)
            if all(abs(new - old) <= 1e-4 * new for new, old in zip(_terms(law), before, strict=True)):
                break
        self._fitted = law

    def _improved(self, law: CostLaw, steps: list[_Step]) -> CostLaw:
        """One pass of least squares, each step weighted by how near it is to the present law."""
        expected = [law.step_s(step.work) for step in steps]
        errors = [abs(step.seconds / guess - 1) for step, guess in zip(steps, expected, strict=True)]
        sigma = max(_MEDIAN_TO_SIGMA * sorted(errors)[len(errors) // 2], _TOLERANCE_MIN)
        rows = _PRIOR_WEIGHT, _PRIOR_WEIGHT, _PRIOR_WEIGHT
        bb, tt, pp, bt, bp, tp = *rows, 0.0, 0.0, 0.0
        right_b, right_t, right_p = rows
        scale_b, scale_t, scale_p = self._scale
        for step, guess, error in zip(steps, expected, errors, strict=True):
            weight = min(1.0, _HUBER * sigma / error) if error else 1.0
            b, t, p = scale_b / guess, scale_t * step.work.tokens / guess, scale_p * step.work.pairs / guess
            bb, tt, pp = bb + weight * b * b, tt + weight * t * t, pp + weight * p * p
            bt, bp, tp = bt + weight * b * t, bp + weight * b * p, tp + weight * t * p
            target = weight * step.seconds / guess
            right_b, right_t, right_p = right_b + target * b, right_t + target * t, right_p + target * p
        matrix = [[bb, bt, bp], [bt, tt, tp], [bp, tp, pp]]
        solution = _solve(matrix, [right_b, right_t, right_p])
        base_s, token_s, pair_s = (scale * term for scale, term in zip(self._scale, solution, strict=True))
        return CostLaw(max(base_s, 1e-9), max(token_s, 1e-12), pair_s)


def _terms(law: CostLaw) -> tuple[float, float, float]:
    return law.base_s, law.token_s, law.pair_s


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Least squares without negative terms: what comes out below zero is left out, the rest solved again."""
    free = list(range(len(right)))
    while free:
        solution = _eliminate([[matrix[i][j] for j in free] for i in free], [right[i] for i in free])
        kept = [index for index, value in zip(free, solution, strict=True) if value > 0]
        if len(kept) == len(free):
            found = dict(zip(free, solution, strict=True))
            return [found.get(index, 0.0) for index in range(len(right))]
        free = kept
    return [0.0] * len(right)


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss's elimination of a symmetric positive definite system, which needs no pivots."""
    size = len(right)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            right[row] -= factor * right[pivot]
            for column in range(pivot, size):
                matrix[row][column] -= factor * matrix[pivot][column]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(matrix[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (right[row] - known) / matrix[row][row]
    return solution
