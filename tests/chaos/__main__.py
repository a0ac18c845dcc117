"""A storm over a stack of two and two workers (`make chaos`). Exit status 1 when it leaves anything wrong."""

import argparse
import asyncio
import secrets
import sys

from rich.console import Console
from rich.progress import Progress

from tests.chaos import storm, verdict
from tests.e2e.stack import housed, lives

REQUESTS = 200


def main(requests: int, seed: int) -> int:
    """Start, storm, judge, stop."""
    console = Console()
    with housed() as stack:
        stack.up("--prefill", "2", "--decode", "2", *storm.STEADY)
        console.print(f"a stack of four workers stands; storm of {requests} requests, seed {seed}")
        blown, texts = storm.prepare(stack, seed)
        asked = storm.questions(blown, texts, requests)
        with Progress(console=console) as progress:
            task = progress.add_task("requests", total=requests)
            asyncio.run(storm.rage(stack, blown, asked, lambda n: progress.update(task, completed=n)))
        verdict.settle(stack, blown)
        found = verdict.findings(stack, blown)
        processes = stack.processes()
        stack.down()
        found += [f"left behind: {process}" for process in processes if lives(process)]
    console.print(blown.counted())
    for finding in found:
        console.print(f"[red]{finding}[/red]", highlight=False)
    console.print("nothing found" if not found else f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="how many are asked")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(1000), help="if not given, another each time"
    )
    given = parser.parse_args()
    sys.exit(main(given.requests, given.seed))
