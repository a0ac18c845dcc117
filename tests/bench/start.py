"""How long `kvitto up` takes until the stack answers, everything being installed, and its memory then."""

import asyncio

from rich.console import Console

from tests.bench import memory
from tests.bench.prompts import prompt
from tests.bench.row import Row
from tests.bench.stack import own_stack

UP_S_MAX = 90.0
# Asked before memory is measured: what is loaded lazily is there then.
PROMPT_TOKENS = (2_000, 1_000, 100)


def rows(fresh_s: float, warm_s: float) -> list[Row]:
    """Compare the first start of a data directory, which turns the model once, with one after it."""
    return [
        Row("kvitto up, fresh data directory", fresh_s, "s"),
        Row("kvitto up, warm", warm_s, "s", UP_S_MAX),
    ]


def measure() -> list[Row]:
    """Start a stack twice, and look at it after some answers."""
    console = Console(stderr=True)
    with own_stack() as stack:
        fresh_s = stack.up()
        console.print(f"stack: up after {fresh_s:.0f} s")
        stack.down()
        warm_s = stack.up()
        console.print(f"stack: up again after {warm_s:.0f} s")
        for number, tokens in enumerate(PROMPT_TOKENS):
            asyncio.run(stack.chat(prompt(number, tokens)))
        return [*rows(fresh_s, warm_s), *memory.rows(stack)]
