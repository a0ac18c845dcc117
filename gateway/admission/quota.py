"""What is left of a request's tightest limits, as OpenAI's headers tell it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Left:
    """``remaining`` of ``limit``; after ``reset_ms`` without a request all of it is there again."""

    limit: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True)
class Quota:
    """The tightest limit of requests and the tightest of tokens; None where there is none."""

    requests: Left | None = None
    tokens: Left | None = None

    @property
    def headers(self) -> dict[str, str]:
        """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``."""
        return dict(self._headers())

    def _headers(self) -> Iterator[tuple[str, str]]:
        for name, left in (("requests", self.requests), ("tokens", self.tokens)):
            if left is not None:
                yield f"x-ratelimit-limit-{name}", str(left.limit)
                yield f"x-ratelimit-remaining-{name}", str(max(0, left.remaining))
                yield f"x-ratelimit-reset-{name}", duration(left.reset_ms)


NO_QUOTA: Final = Quota()


def duration(ms: int) -> str:
    """Write a duration as OpenAI does: ``12ms``, ``1.5s``, ``6m0s``, ``23h59m1.25s``."""
    if ms < 1000:
        return f"{ms}ms"
    seconds, rest_ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{rest_ms:03d}".rstrip("0") if rest_ms else ""
    longer = (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "")
    return f"{longer}{seconds}{fraction}s"
