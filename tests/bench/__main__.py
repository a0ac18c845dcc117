"""`python -m tests.bench [NAME...]` prints what the house does beside what is promised.

Without a name all are measured but `curve`, which says what else could be had. Exit status 1 when a limit is
broken. Seconds of a busy machine say little; trust the ratio.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import burst, fairness, first_token, memory, mixed, start, steps, store
from tests.bench.row import Row
from tests.bench.stack import Stack


def measure(stack: Stack) -> list[Row]:
    """Run the stack cold, stop it, run it again."""
    fresh_s = stack.up()
    cold = first_token.ask_all(stack)
    stack.down()
    warm_s = stack.up()
    stored = first_token.ask_all(stack)
    return [*start.rows(fresh_s, warm_s), *first_token.rows(cold, stored), *memory.rows(stack)]


def table_of(rows: list[Row]) -> Table:
    """Lay the rows out for people."""
    table = Table(title=f"Kvitto on {os.cpu_count()} cores", title_justify="left")
    for heading in ("what", "measured", "at most", "kept", "remark"):
        table.add_column(heading, justify="right" if heading in {"measured", "at most"} else "left")
    for row in rows:
        limit = "" if row.limit is None else row.written(row.limit)
        kept = "" if row.limit is None else "yes" if row.kept else "NO"
        table.add_row(row.name, row.written(row.value), limit, kept, row.remark)
    return table


def of_a_stack() -> list[Row]:
    """Measure in a temporary data directory; clean up."""
    place = Path(tempfile.mkdtemp(prefix="kv-bench-", dir="/tmp"))  # sockets need a short path
    place.chmod(0o711)  # as root, Postgres's own account has to pass through
    stack = Stack.fresh(place / "d")
    try:
        return measure(stack)
    finally:
        stack.down()
        shutil.rmtree(place, ignore_errors=True)


BENCHES: dict[str, Callable[[], list[Row]]] = {
    "stack": of_a_stack,
    "store": store.main,
    "steps": steps.measure,
    "burst": burst.measure,
    "fairness": fairness.measure,
    "mixed": mixed.measure,
    "curve": mixed.curve,
}


def main() -> int:
    """Measure what is named, print it when each is done."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    names: list[str] = parser.parse_args().names or [name for name in BENCHES if name != "curve"]
    if unknown := set(names) - set(BENCHES):
        parser.error(f"no bench of this name: {', '.join(sorted(unknown))}")
    kept = True
    for name in names:
        rows = BENCHES[name]()
        Console(width=max(Console().width, 150)).print(table_of(rows))
        kept = kept and all(row.kept for row in rows)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
