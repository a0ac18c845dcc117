"""`python -m tests.scenarios` (`make chaos`): crash storms over two gateways, one seed after the other.

Exit status 1 when anything does not hold after one of them.
"""

import argparse
import asyncio
import secrets
import sys
from time import monotonic

from rich.console import Console
from rich.progress import Progress

from tests.e2e.stack import Stack, housed
from tests.scenarios import books, crash, verdict

SEEDS = 5


def main(words: list[str]) -> int:
    """Start a stack, storm it, judge, and stop it."""
    asked = _asked(words)
    first = secrets.randbelow(1000) if asked.seed is None else asked.seed
    console, found = Console(), 0
    with housed() as stack:
        stack.up(*crash.SHAPE)
        for seed in range(first, first + asked.seeds):
            found += storm(stack, seed, asked.seconds, console)
    console.print("nothing found" if not found else f"{found} findings; again with --seed {first}")
    return 1 if found else 0


def storm(stack: Stack, seed: int, lasts_s: float, console: Console) -> int:
    """One storm; returns how much was found, and prints it."""
    console.print(f"seed {seed}: {crash.CLIENTS} clients, {lasts_s:.0f} s")
    blown, begun_s = crash.prepare(stack, seed), monotonic()
    with Progress(console=console) as progress:
        task = progress.add_task("storm", total=lasts_s)

        def tell(now_s: float) -> None:
            progress.update(task, completed=min(now_s - begun_s, lasts_s))

        asyncio.run(crash.rage(stack, blown, lasts_s, tell))
    books.settle(stack, blown)
    read = books.read(stack, blown)
    found = verdict.findings(blown.errands, read)
    console.print(f"{blown.counted()}; {read.counted()}", highlight=False)
    for finding in found:
        console.print(f"[red]{finding}[/red]", highlight=False)
    return len(found)


def _asked(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first storm; another one each time, if not given")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many storms, each of the next seed")
    parser.add_argument("--seconds", type=float, default=crash.LASTS_S, help="how long each of them lasts")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
