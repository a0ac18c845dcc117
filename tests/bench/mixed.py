"""Streams that decode while long prompts come: time to first token and between tokens, by shape.

The load is that of the notes: eight streams of 96 to 128 tokens start together, and every 2.2 s there comes
a prompt of one to two thousand tokens that wants 64. Shapes are asked in turn, round after round, with
prompts that nobody has seen; the others idle meanwhile.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console

from tests.bench import shapes, workers
from tests.bench.row import Row
from tests.bench.shapes import Shape
from tests.bench.timing import Timed, quantile

STREAMS, STREAM_PROMPT_TOKENS, STREAM_TOKENS = 8, 60, (96, 128)
LONG_TOKENS = (1000, 1400, 1800, 1200, 2000, 1600)
LONG_OUTPUT_TOKENS = 64
LONG_EVERY_S = 2.2
LONG_FIRST_S = 0.6
ROUNDS = 5
STEP_BUDGETS_S = (0.05, 0.1, 0.25)
ITL_RATIO_MAX = 0.5
TTFT_RATIO_MAX = 1.5


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one shape."""

    streams: list[Timed]
    longs: list[Timed]

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens, of all answers."""
        return [gap for answer in (*self.streams, *self.longs) for gap in answer.gaps_s]

    @property
    def itl_p99_s(self) -> float:
        """What one gap in a hundred exceeds."""
        return quantile(self.gaps_s, 0.99)

    @property
    def ttft_p50_s(self) -> float:
        """Of the long prompts."""
        return median(answer.first_token_s for answer in self.longs)


@dataclass(frozen=True, slots=True)
class Measured:
    """All rounds of one shape."""

    name: str
    rounds: list[Round] = field(default_factory=list)

    def row(self) -> Row:
        """Its point: time to first token, and beside it what there is between tokens."""
        gaps_s = [gap for each in self.rounds for gap in each.gaps_s]
        short_s = median(answer.first_token_s for each in self.rounds for answer in each.streams)
        return Row(
            f"mixed, {self.name}: first token of long ones",
            median(each.ttft_p50_s for each in self.rounds),
            "s",
            remark=f"of short ones {short_s:.3f} s; ITL p50 {quantile(gaps_s, 0.5):.3f} s, "
            f"p99 {median(each.itl_p99_s for each in self.rounds):.3f} s, max {max(gaps_s):.3f} s",
        )


def rows(stock: Measured, ours: list[Measured]) -> list[Row]:
    """Every shape's point, then ratios to stock: medians of the rounds' own, for each of ours."""
    found = [measured.row() for measured in (stock, *ours)]
    for shape in ours:
        pairs = list(zip(shape.rounds, stock.rounds, strict=True))
        itl = [mine.itl_p99_s / theirs.itl_p99_s for mine, theirs in pairs]
        ttft = [mine.ttft_p50_s / theirs.ttft_p50_s for mine, theirs in pairs]
        found += [
            Row(
                f"mixed, {shape.name} : stock, {what}",
                median(ratios),
                "ratio",
                limit,
                f"{len(pairs)} rounds, {min(ratios):.3f} to {max(ratios):.3f}",
            )
            for what, ratios, limit in (
                ("ITL p99", itl, ITL_RATIO_MAX),
                ("first token", ttft, TTFT_RATIO_MAX),
            )
        ]
    return found


async def _round(bench: workers.Bench, shape: Shape) -> Round:
    least, most = STREAM_TOKENS
    streams = [
        shape.ask(bench.prompt_ids(STREAM_PROMPT_TOKENS), least + number * (most - least) // (STREAMS - 1))
        for number in range(STREAMS)
    ]

    async def long(number: int) -> Timed:
        prompt_ids = bench.prompt_ids(LONG_TOKENS[number])
        await asyncio.sleep(LONG_FIRST_S + number * LONG_EVERY_S)
        return await shape.ask(prompt_ids, LONG_OUTPUT_TOKENS)

    answers = await asyncio.gather(*streams, *(long(number) for number in range(len(LONG_TOKENS))))
    return Round(answers[:STREAMS], answers[STREAMS:])


async def _rounds(bench: workers.Bench, asked: list[Shape], rounds: int) -> list[Measured]:
    measured = [Measured(shape.name) for shape in asked]
    async with contextlib.AsyncExitStack() as stack:
        for shape in asked:
            await stack.enter_async_context(shape.opened())
        for shape in asked:  # first requests pay for what is loaded lazily, and teach the laws
            await asyncio.gather(*(shape.ask(bench.prompt_ids(tokens), 8) for tokens in (60, 700, 1500)))
        for number in range(rounds):
            order = list(zip(asked, measured, strict=True))
            for shape, into in order if number % 2 else reversed(order):
                done = await _round(bench, shape)
                into.rounds.append(done)
                Console(stderr=True).print(
                    f"mixed: round {number + 1} of {rounds}, {shape.name}: "
                    f"first token {done.ttft_p50_s:.2f} s, ITL p99 {done.itl_p99_s:.3f} s"
                )
    return measured


def _measure(bench: workers.Bench, ours: list[Shape], rounds: int) -> list[Row]:
    asked = [shapes.StockShape(bench), *ours]
    with workers.running(*dict.fromkeys(worker for shape in asked for worker in shape.workers)):
        stock, *measured = asyncio.run(_rounds(bench, asked, rounds))
    return rows(stock, measured)


def _monos(bench: workers.Bench, budgets_s: Sequence[float]) -> list[Shape]:
    return [shapes.mono(bench, f"one worker, {budget_s:g} s a step", budget_s) for budget_s in budgets_s]


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Stock vLLM, our pair, and one worker with a step budget."""
    with workers.bench() as bench:
        pair = shapes.pair(bench, "pair", shapes.split_workers(bench))
        return _measure(bench, [pair, *_monos(bench, STEP_BUDGETS_S[1:2])], rounds)


def curve(rounds: int = ROUNDS) -> list[Row]:
    """What can be had instead: budgets of one worker, and who draws a pair's first token. Needs 16 GiB."""
    with workers.bench() as bench:
        split = shapes.split_workers(bench)
        pairs: list[Shape] = [
            shapes.pair(bench, "pair", split),
            shapes.pair(bench, "pair, fixed roles, decode draws", split, first_token=False, elastic=False),
        ]
        return _measure(bench, [*pairs, *_monos(bench, STEP_BUDGETS_S)], rounds)
