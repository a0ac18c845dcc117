"""One tenant sends fifty long prompts at once: by how much it delays another's short one."""

import asyncio
from dataclasses import dataclass
from statistics import median

from rich.console import Console

from engine.policy import stretched
from tests.bench import workers
from tests.bench.row import Row
from tests.bench.timing import Timed
from tests.engine.worker.conftest import Worker

BURST = 50
BURST_TOKENS = 1_500
SHORT_TOKENS = 300
OUTPUT_TOKENS = 4
STEP_BUDGET_S = 0.1
ROUNDS = 5
WEIGHTS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Delays:
    """Short prompts of a tenant of one weight: alone on the worker, and beside the burst of a tenant of 1."""

    weight: float
    alone: list[Timed]
    beside: list[Timed]

    @property
    def delay_s(self) -> float:
        """How much later the first token comes beside the burst; medians on both sides."""
        return _first_s(self.beside) - _first_s(self.alone)

    @property
    def bound_s(self) -> float:
        """The weighted share, which is the short prompt's own time over its weight, and one step.

        That step is the one that runs when the short prompt comes, while nothing decodes.
        """
        return _first_s(self.alone) / self.weight + stretched(STEP_BUDGET_S, 0.0, waited_for=False)


def rows(delays: list[Delays]) -> list[Row]:
    """One row a weight: the delay as a part of what it may be."""
    return [
        Row(
            f"short prompt beside {BURST} long ones, weight {each.weight:g}",
            each.delay_s / each.bound_s,
            "ratio",
            1.0,
            f"first token {_first_s(each.beside):.3f} s, alone {_first_s(each.alone):.3f} s, "
            f"delay {each.delay_s:.3f} of {each.bound_s:.3f} s, ITL p50 {_gap_s(each.beside):.3f} s, "
            f"alone {_gap_s(each.alone):.3f} s",
        )
        for each in delays
    ]


def _first_s(answers: list[Timed]) -> float:
    return median(answer.first_token_s for answer in answers)


def _gap_s(answers: list[Timed]) -> float:
    return median(gap for answer in answers for gap in answer.gaps_s)


def _question(bench: workers.Bench, tokens: int, tenant: str, weight: float = 1.0) -> workers.Weighed:
    return workers.Weighed(
        bench.prompt_ids(tokens),
        stage="both",
        max_tokens=OUTPUT_TOKENS,
        salt=f"salt-of-{tenant}",
        tenant=tenant,
        sampling={"ignore_eos": True},
        weight=weight,
    )


async def _shorts(bench: workers.Bench, worker: Worker, weight: float) -> list[Timed]:
    return [
        await workers.ask(worker, _question(bench, SHORT_TOKENS, "ten_short", weight)) for _ in range(ROUNDS)
    ]


async def _delays(bench: workers.Bench, worker: Worker, weight: float) -> Delays:
    before = await _shorts(bench, worker, weight)
    burst = [_question(bench, BURST_TOKENS, "ten_burst") for _ in range(BURST)]
    sent = [asyncio.create_task(workers.ask(worker, question)) for question in burst]
    first = asyncio.as_completed(sent)
    await next(iter(first))  # all have arrived, and the burst is being worked off
    beside = await _shorts(bench, worker, weight)
    assert sum(not task.done() for task in sent) > BURST // 2, "the burst is over"
    for task in sent:
        task.cancel()  # closes the connection: the worker aborts what is left
    await asyncio.gather(*sent, return_exceptions=True)
    while worker.running():
        await workers.ask(worker, _question(bench, 8, "ten_short"))  # the metrics move with the next step
    # The machine's speed drifts: what is alone is measured on both sides.
    return Delays(weight, before + await _shorts(bench, worker, weight), beside)


async def _weights(bench: workers.Bench, worker: Worker) -> list[Delays]:
    await workers.ask(worker, _question(bench, BURST_TOKENS, "ten_warm_up"))
    delays = []
    for weight in WEIGHTS:
        delays.append(await _delays(bench, worker, weight))
        Console(stderr=True).print(f"fairness: weight {weight:g}")
    return delays


def measure() -> list[Row]:
    """One worker on the first core."""
    with workers.bench() as bench:
        worker = bench.worker("fair", "both", workers.ALL_CORES[:1], step_budget_s=STEP_BUDGET_S)
        with workers.running(worker):
            return rows(asyncio.run(_weights(bench, worker)))
