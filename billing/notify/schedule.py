"""When a delivery is tried again, and when an endpoint is given up. Pure."""

from datetime import datetime, timedelta
from typing import Final

# Standard Webhooks' recommendation: ten attempts in a little more than three days.
PAUSES: Final = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=14),
    timedelta(hours=20),
    timedelta(hours=24),
)
JITTER_PARTS: Final = 100
FAILING_MAX: Final = timedelta(days=5)
GONE: Final = 410


def next_attempt(tries: int, at: datetime, jitter: int) -> datetime | None:
    """When to try again after so many attempts in vain, the last one ``at``; None: no more.

    Args:
        tries: 1 or more.
        at: now.
        jitter: hundredths of a tenth of the pause to add, up to 100, so that what failed together parts.
    """
    assert tries > 0
    if tries > len(PAUSES):
        return None
    pause = PAUSES[tries - 1]
    return at + pause + pause * jitter // (10 * JITTER_PARTS)


def disabling(status: int | None, failing_since: datetime, at: datetime) -> str | None:
    """Why an endpoint that has not taken an attempt gets no more; None: it does."""
    if status == GONE:
        return "it answered 410 Gone"
    if at - failing_since >= FAILING_MAX:
        return f"it has taken nothing since {failing_since:%Y-%m-%dT%H:%M:%SZ}"
    return None
