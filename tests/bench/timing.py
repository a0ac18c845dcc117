"""When the tokens of an answer came."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer: seconds from the question to its first token, and from each token to the next."""

    first_token_s: float
    gaps_s: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """How many there were."""
        return len(self.gaps_s) + 1


async def timed(tokens: AsyncIterator[object], asked_s: float) -> Timed:
    """Take the times of a stream that yields once a token; ``asked_s`` is of `time.perf_counter`."""
    came_s = [time.perf_counter() async for _ in tokens]
    gaps_s = (after - before for before, after in pairwise(came_s))
    return Timed(came_s[0] - asked_s, tuple(gaps_s))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a share of all does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
