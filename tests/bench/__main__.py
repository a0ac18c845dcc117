"""`python -m tests.bench`: starts a stack of its own twice, prints what it does beside what is promised.

`python -m tests.bench store` measures the prefix store alone, without a stack. Exit status 1 when a limit is
broken. Seconds of a busy machine say little; trust the ratio.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import first_token, memory, start, store
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


def main() -> int:
    """Measure what the arguments name, a whole stack without any; print."""
    rows = store.main() if sys.argv[1:] == ["store"] else of_a_stack()
    Console(width=max(Console().width, 150)).print(table_of(rows))
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
