"""Short and long prompts that come at once: by cost against first come, first served, on one core each."""

import asyncio
from dataclasses import dataclass
from statistics import fmean, median

from rich.console import Console

from tests.bench import workers
from tests.bench.row import Row
from tests.bench.timing import Timed, quantile
from tests.engine.worker.conftest import Ask, Worker

# In the order of their arrival.
PROMPT_TOKENS = (900, 60, 1700, 120, 250, 80, 1300, 160, 60, 2000, 100, 200, 1100, 90)
LONG_TOKENS_MIN = 900
OUTPUT_TOKENS = 4
STEP_BUDGET_S = 0.1
ROUNDS = 3
MEAN_RATIO_MAX = 0.7
LATEST_LONG_RATIO_MAX = 1.1


@dataclass(frozen=True, slots=True)
class Burst:
    """One round on one worker: answers in the order of `PROMPT_TOKENS`."""

    answers: list[Timed]

    @property
    def mean_s(self) -> float:
        """Mean time to first token."""
        return fmean(answer.first_token_s for answer in self.answers)

    @property
    def latest_long_s(self) -> float:
        """When the last long prompt had its first token."""
        return max(
            answer.first_token_s
            for answer, tokens in zip(self.answers, PROMPT_TOKENS, strict=True)
            if tokens >= LONG_TOKENS_MIN
        )

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens, of all answers."""
        return [gap for answer in self.answers for gap in answer.gaps_s]


def rows(by_cost: list[Burst], in_turn: list[Burst]) -> list[Row]:
    """Compare round by round; the ratios are medians over the rounds."""
    pairs = list(zip(by_cost, in_turn, strict=True))
    means = [ours.mean_s / theirs.mean_s for ours, theirs in pairs]
    latest = [ours.latest_long_s / theirs.latest_long_s for ours, theirs in pairs]
    of_rounds = f"{len(pairs)} rounds, worst"
    return [
        _row("by cost", by_cost),
        _row("first come, first served", in_turn),
        Row(
            "burst, mean first token", median(means), "ratio", MEAN_RATIO_MAX, f"{of_rounds} {max(means):.3f}"
        ),
        Row(
            "burst, latest long prompt",
            median(latest),
            "ratio",
            LATEST_LONG_RATIO_MAX,
            f"{of_rounds} {max(latest):.3f}",
        ),
    ]


def _row(name: str, bursts: list[Burst]) -> Row:
    gaps_s = [gap for burst in bursts for gap in burst.gaps_s]
    remark = f"ITL p50 {quantile(gaps_s, 0.5):.3f} s, p99 {quantile(gaps_s, 0.99):.3f} s"
    return Row(
        f"burst of {len(PROMPT_TOKENS)}, {name}", median(burst.mean_s for burst in bursts), "s", remark=remark
    )


async def _burst(bench: workers.Bench, worker: Worker) -> Burst:
    questions = [
        Ask(
            bench.prompt_ids(tokens),
            stage="both",
            max_tokens=OUTPUT_TOKENS,
            sampling={"ignore_eos": True},
        )
        for tokens in PROMPT_TOKENS
    ]
    return Burst(await asyncio.gather(*(workers.ask(worker, question) for question in questions)))


async def _rounds(bench: workers.Bench, ours: Worker, theirs: Worker, rounds: int) -> list[Row]:
    for worker in (ours, theirs):  # the first requests of a process pay for what is loaded lazily
        await _burst(bench, worker)
    by_cost: list[Burst] = []
    in_turn: list[Burst] = []
    for number in range(rounds):
        turns = [(ours, by_cost), (theirs, in_turn)]
        for worker, bursts in turns if number % 2 else reversed(turns):
            bursts.append(await _burst(bench, worker))
        Console(stderr=True).print(
            f"burst: round {number + 1} of {rounds}, mean first token {by_cost[-1].mean_s:.2f} s by cost, "
            f"{in_turn[-1].mean_s:.2f} s in turn; latest long one {by_cost[-1].latest_long_s:.2f} s, "
            f"{in_turn[-1].latest_long_s:.2f} s"
        )
    return rows(by_cost, in_turn)


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Two workers on the first core, one of them idle at a time."""
    with workers.bench() as bench:
        core = workers.ALL_CORES[:1]
        ours = bench.worker("by-cost", "both", core, step_budget_s=STEP_BUDGET_S)
        theirs = bench.worker("in-turn", "both", core)
        with workers.running(ours, theirs):
            return asyncio.run(_rounds(bench, ours, theirs, rounds))
