"""Resident memory of the whole stack after it has served: the supervisor and all processes below it."""

import contextlib

import psutil

from tests.bench.row import Row
from tests.bench.stack import Stack

GIB = 1024**3
RESIDENT_GIB_MAX = 10.0


def rows(stack: Stack) -> list[Row]:
    """Sum shared pages once (PSS), and then once for each process that has them (RSS), which is bounded."""
    parts = stack.status()["parts"]
    family = _family([int(part["pid"]) for part in parts if part["pid"]])
    resident = proportional = 0
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            memory = process.memory_full_info()
            resident += memory.rss
            proportional += memory.pss
    shares = ", ".join(
        f"{part['name']} {part['memory_bytes'] / GIB:.2f}" for part in parts if part["memory_bytes"]
    )
    return [
        Row("memory, shared pages once", proportional / GIB, "GiB", remark=shares),
        Row("memory, resident", resident / GIB, "GiB", RESIDENT_GIB_MAX, f"{len(family)} processes"),
    ]


def _family(pids: list[int]) -> list[psutil.Process]:
    """Return every process of the stack once; the parts' common parent is the supervisor."""
    parts = [psutil.Process(pid) for pid in pids]
    (supervisor,) = {part.ppid() for part in parts}
    assert supervisor > 1, "the parts have lost their supervisor"
    top = psutil.Process(supervisor)
    return [top, *top.children(recursive=True)]
