"""How long the steps of a worker with a budget take, as it logs them; beside one whose chunks are fixed."""

import asyncio
import re
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import Self

from rich.console import Console

from engine.worker.pacer import STEP_LOG
from tests.bench import workers
from tests.bench.row import Row
from tests.bench.timing import quantile
from tests.engine.worker.conftest import Ask, Worker

STEP_BUDGET_S = 0.1
# A budget that no chunk of so many tokens reaches: all chunks but the last of a prompt have that size.
UNREACHED_S, FIXED_TOKENS = 10.0, 128
PROMPT_TOKENS = (1500, 300, 2400, 700, 120)
PROMPTS = 40
AT_ONCE = 3
STREAMS = 4
WARM_UP_STEPS = 30
P95_MAX = 1.1
_LINE = re.compile(re.sub(r"%\.?\d*[df]", r"([\\d.]+)", STEP_LOG))


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step: seconds it took, by the law, and by the law with the smallest chunk that is worth a step."""

    seconds: float
    expected_s: float
    least_s: float

    @classmethod
    def all_of(cls, log: str) -> list[Self]:
        """Steps that a worker has logged, without the first ones, which are slow and teach the law."""
        found = [cls(*(float(number) for number in match.groups()[1:4])) for match in _LINE.finditer(log)]
        return found[WARM_UP_STEPS:]


def rows(name: str, steps: list[StepTime], budget_s: float) -> list[Row]:
    """The steps of one load against their bound."""
    bounds = [step.seconds / max(budget_s, step.least_s) for step in steps]
    took = [step.seconds for step in steps]
    seconds = f"{median(took):.3f} s, p95 {quantile(took, 0.95):.3f} s, p99 {quantile(took, 0.99):.3f} s"
    return [
        Row(
            f"steps of {name}, p95 : bound",
            quantile(bounds, 0.95),
            "ratio",
            P95_MAX,
            f"{len(steps)} steps, p50 {median(bounds):.3f}, p99 {quantile(bounds, 0.99):.3f}; {seconds}",
        )
    ]


def noise(steps: list[StepTime]) -> Row:
    """The machine's own: steps with fixed chunks against the law that was fitted to them."""
    off = [step.seconds / step.expected_s for step in steps]
    remark = (
        f"{len(steps)} steps of {FIXED_TOKENS} tokens, p50 {median(off):.3f}, p99 {quantile(off, 0.99):.3f}"
    )
    return Row("steps of fixed chunks, p95 : law", quantile(off, 0.95), "ratio", remark=remark)


async def _prompts(bench: workers.Bench, worker: Worker, prompts: int) -> None:
    lengths = islice(cycle(PROMPT_TOKENS), prompts)
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, tokens: int) -> None:
        async with places:
            await workers.ask(worker, Ask(bench.prompt_ids(tokens), tenant=f"ten_{number % 3}"))

    await asyncio.gather(*(one(number, tokens) for number, tokens in enumerate(lengths)))


async def _beside_streams(bench: workers.Bench, worker: Worker, prompts: int) -> None:
    async def stream() -> None:
        while True:
            await workers.ask(
                worker,
                Ask(bench.prompt_ids(200), stage="both", max_tokens=300, sampling={"ignore_eos": True}),
            )

    streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
    await _prompts(bench, worker, prompts)
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


def measure(prompts: int = PROMPTS) -> list[Row]:
    """A worker on the first core: prompts alone, prompts beside decoding, then fixed chunks."""
    core, found = workers.ALL_CORES[:1], []
    console = Console(stderr=True)
    with workers.bench() as bench:
        paced = bench.worker("paced", "both", core, step_budget_s=STEP_BUDGET_S, log_level="DEBUG")
        with workers.running(paced):
            asyncio.run(_prompts(bench, paced, prompts))
            alone = StepTime.all_of(paced.log.read_text())
            console.print(f"steps: {len(alone)} of prompts alone")
            asyncio.run(_beside_streams(bench, paced, prompts // 2))
            mixed = StepTime.all_of(paced.log.read_text())[len(alone) :]
            console.print(f"steps: {len(mixed)} beside {STREAMS} streams")
        found += rows("prompts", alone, STEP_BUDGET_S)
        found += rows(f"prompts beside {STREAMS} streams", mixed, STEP_BUDGET_S)
        fixed = bench.worker(
            "fixed",
            "both",
            core,
            step_budget_s=UNREACHED_S,
            batched_tokens_max=FIXED_TOKENS,
            log_level="DEBUG",
        )
        with workers.running(fixed):
            asyncio.run(_prompts(bench, fixed, prompts // 2))
        found.append(noise(StepTime.all_of(fixed.log.read_text())))
    return found
