"""The clock of vLLM's processes; the rest of the house has `admin.clock`."""

import time


def time_ns() -> int:
    """Wall clock, in nanoseconds since 1970."""
    return time.time_ns()


def now_s() -> int:
    """Wall clock, in Unix seconds."""
    return time.time_ns() // 10**9


def monotonic_s() -> float:
    """A clock for deadlines, in seconds."""
    return time.monotonic()
