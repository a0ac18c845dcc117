"""What the store costs prompts that it does not have: prefill with it and without it, on the same core.

Both workers are asked the same new prompts, round after round, one of them idle at a time.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import psutil
from rich.console import Console

from engine.worker.report import Count
from tests.bench import workers
from tests.bench.row import Row
from tests.engine.worker.conftest import Ask, Worker

# Short rounds and many: the two of a pair meet nearly the same machine.
PROMPT_TOKENS = (1_500, 500, 1_000)
ROUNDS = 24
TIME_RATIO_MAX = 1.05
_PUBLISH_SECONDS = f"kvitto_{Count.PUBLISH_SECONDS}_total"


@dataclass(frozen=True, slots=True)
class Round:
    """All prompts on one worker, in seconds: wall clock, processor time, steps waiting for publications."""

    wall_s: float
    cpu_s: float
    publish_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s (processor {self.cpu_s:.2f} s, publishing {self.publish_s:.2f} s)"


def rows(with_store: Sequence[Round], without: Sequence[Round]) -> list[Row]:
    """Throughput of both, and the median of the rounds' own ratios."""
    pairs = list(zip(with_store, without, strict=True))
    wall = [ours.wall_s / theirs.wall_s for ours, theirs in pairs]
    cpu = [ours.cpu_s / theirs.cpu_s for ours, theirs in pairs]
    return [
        _row("with a store", with_store),
        _row("without", without),
        Row(
            "new prompts, with a store : without, time",
            median(wall),
            "ratio",
            TIME_RATIO_MAX,
            f"{len(pairs)} rounds, {min(wall):.3f} to {max(wall):.3f}",
        ),
        Row(
            "new prompts, with a store : without, processor time",
            median(cpu),
            "ratio",
            remark=f"{min(cpu):.3f} to {max(cpu):.3f}",
        ),
        Row(
            "of the time with a store, publishing",
            median(each.publish_s / each.wall_s for each in with_store),
            "ratio",
            remark="measured in the worker, not against the other one",
        ),
    ]


def _row(name: str, rounds: Sequence[Round]) -> Row:
    wall_s = median(each.wall_s for each in rounds)
    speed = sum(PROMPT_TOKENS) / wall_s
    return Row(
        f"{len(PROMPT_TOKENS)} new prompts, {name}", wall_s, "s", remark=f"{speed:,.0f} prompt tokens/s"
    )


def _cpu_s(worker: Worker) -> float:
    """Processor time of a worker's processes so far."""
    times = [process.cpu_times() for process in (psutil.Process(worker.process.pid), *worker.family())]
    return sum(each.user + each.system for each in times)


def _publish_s(worker: Worker) -> float:
    """How long the worker's steps have waited for publications so far."""
    text = worker.get("/metrics")[1].decode()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(_PUBLISH_SECONDS)
    )


async def _round(worker: Worker, prompts: Sequence[list[int]]) -> Round:
    before_publish_s, before_cpu_s, started_s = _publish_s(worker), _cpu_s(worker), time.perf_counter()
    await asyncio.gather(*(workers.ask(worker, Ask(prompt_ids, stage="both")) for prompt_ids in prompts))
    wall_s = time.perf_counter() - started_s
    return Round(wall_s, _cpu_s(worker) - before_cpu_s, _publish_s(worker) - before_publish_s)


async def _rounds(bench: workers.Bench, ours: Worker, theirs: Worker, rounds: int) -> list[Row]:
    with_store: list[Round] = []
    without: list[Round] = []
    for number in range(rounds + 1):
        prompts = [bench.prompt_ids(tokens) for tokens in PROMPT_TOKENS]
        turns = [(ours, with_store), (theirs, without)]
        for worker, done in turns if number % 2 else reversed(turns):
            done.append(await _round(worker, prompts))
        Console(stderr=True).print(
            f"overhead: round {number} of {rounds}, with a store {with_store[-1]}, without {without[-1]}"
        )
    # The first round paid for what is loaded lazily.
    return rows(with_store[1:], without[1:])


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Two workers on the first core."""
    with workers.bench() as bench:
        core = workers.ALL_CORES[:1]
        ours = bench.worker("with-store", "both", core)
        theirs = bench.worker("without", "both", core, store_dir=None)
        with workers.running(ours, theirs):
            return asyncio.run(_rounds(bench, ours, theirs, rounds))
