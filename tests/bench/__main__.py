"""`python -m tests.bench [NAME...]` prints what the house does beside what is promised.

Without a name all are measured but `curve`, which says what else could be had. Exit status 1 when a limit is
broken. Seconds of a busy machine say little; trust the ratio.
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from tests.bench import (
    admission,
    burst,
    encode,
    export,
    fairness,
    first_token,
    invoice,
    log,
    mixed,
    overhead,
    settlement,
    start,
    steps,
    store,
    verify,
)
from tests.bench.row import Row


def table_of(rows: list[Row]) -> Table:
    """Lay the rows out for people."""
    table = Table(title=f"Kvitto on {os.cpu_count()} cores", title_justify="left")
    for heading in ("what", "measured", "promised", "kept", "remark"):
        table.add_column(heading, justify="right" if heading in {"measured", "promised"} else "left")
    for row in rows:
        kept = "" if not row.promise else "yes" if row.kept else "NO"
        table.add_row(row.name, row.written(row.value), row.promise, kept, row.remark)
    return table


BENCHES: dict[str, Callable[[], list[Row]]] = {
    "stack": start.measure,
    "first_token": first_token.measure,
    "store": store.main,
    "admission": admission.measure,
    "overhead": overhead.measure,
    "steps": steps.measure,
    "burst": burst.measure,
    "fairness": fairness.measure,
    "mixed": mixed.measure,
    "settlement": settlement.measure,
    "encode": encode.measure,
    "verify": verify.measure,
    "log": log.measure,
    "invoice": invoice.measure,
    "export": export.measure,
    "curve": mixed.curve,
}


def main() -> int:
    """Measure what is named, print it when each is done."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--events", type=int, default=invoice.EVENTS, help="of the invoice")
    asked = parser.parse_args()
    BENCHES["invoice"] = partial(invoice.measure, asked.events)
    names: list[str] = asked.names or [name for name in BENCHES if name != "curve"]
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
