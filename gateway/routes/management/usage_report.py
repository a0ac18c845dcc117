"""What usage and cost reports share: buckets of time, pages of them, and parameters as clients repeat them.

Buckets stand on the grid of UTC. A range is half-open, and buckets at its edges hold no more than is in it.
A page is so many buckets; its cursor is the beginning of the next one, so that pages never overlap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from billing.errors import ReportInvalid
from billing.interval import Interval
from billing.reports.selection import Selection
from billing.reports.usage_total import Dimension, Stretch, UsageQuestion, UsageTotal
from billing.tenancy.api_key import KeyGrant
from gateway.desk import AnyRequest, desk_of

UNIX_S_MAX: Final = 4_102_444_800  # 2100
ROWS_MAX: Final = 10_000  # of a page; more is what exports are for

_CURSOR: Final = "page_"


@dataclass(frozen=True, slots=True)
class Width:
    """How wide a bucket is, and how many are on a page unless said, and at most."""

    stretch: Stretch
    seconds: int
    usual: int
    most: int


WIDTHS: Final[Mapping[str, Width]] = {
    "1m": Width("minute", 60, 60, 1_440),
    "1h": Width("hour", 3_600, 24, 168),
    "1d": Width("day", 86_400, 7, 31),
}


@dataclass(frozen=True, slots=True)
class Range:
    """``[since, until)`` in Unix seconds, in buckets of a width."""

    since: int
    until: int
    width: Width

    def page(self, cursor: str | None, buckets_max: int) -> tuple[list[tuple[int, int]], str | None]:
        """The buckets of a page, each ``[from, to)``, and the cursor of the next one if there is any.

        Raises:
            IntervalInvalid: the range ends before it begins.
            ReportInvalid: the cursor is none of this range.
        """
        in_order(self.since, self.until)
        at = self.since if cursor is None else self._place(cursor)
        buckets: list[tuple[int, int]] = []
        while at < self.until and len(buckets) < buckets_max:
            ends = min(at - at % self.width.seconds + self.width.seconds, self.until)
            buckets.append((at, ends))
            at = ends
        return buckets, f"{_CURSOR}{at}" if at < self.until else None

    def _place(self, cursor: str) -> int:
        digits = cursor.removeprefix(_CURSOR)
        if cursor.startswith(_CURSOR) and digits.isascii() and digits.isdecimal() and len(digits) <= 10:
            at = int(digits)
            if self.since < at < self.until and at % self.width.seconds == 0:
                return at
        raise ReportInvalid("page", "it is no cursor of this range: take next_page of the page before")


async def totals_by_bucket(
    request: AnyRequest,
    grant: KeyGrant,
    buckets: Sequence[tuple[int, int]],
    question: tuple[Width, tuple[Dimension, ...], Selection],
) -> dict[int, list[UsageTotal]]:
    """Totals of the key's organisation by the beginning of their bucket on the grid.

    Raises:
        ReportInvalid: there are more than are told at once.
    """
    if not buckets:
        return {}
    width, by, only = question
    totals = await desk_of(request).organization.reports.totals(
        UsageQuestion(
            Interval(_instant(buckets[0][0]), _instant(buckets[-1][1])),
            (width.stretch, *by),
            tenant_id=grant.tenant_id,
            only=only,
            groups_max=ROWS_MAX,
        )
    )
    found: dict[int, list[UsageTotal]] = {}
    for total in totals:
        begins = total.group[width.stretch]
        assert isinstance(begins, datetime)
        found.setdefault(int(begins.timestamp()), []).append(total)
    return found


def width_of(request: AnyRequest, offered: Sequence[str] = tuple(WIDTHS)) -> Width:
    """Of ``bucket_width``, a day unless said."""
    return WIDTHS[one_of(request, "bucket_width", offered) or "1d"]


def limit_of(request: AnyRequest, usual: int, most: int) -> int:
    """Of ``limit``: how many buckets a page has."""
    given = _one(request, "limit")
    if given is None:
        return usual
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and 1 <= int(given) <= most):
        raise ReportInvalid("limit", f"it is from 1 to {most}")
    return int(given)


def unix_of(request: AnyRequest, name: str) -> int | None:
    """An instant in Unix seconds."""
    given = _one(request, name)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) <= 10 and int(given) <= UNIX_S_MAX):
        raise ReportInvalid(name, "it is Unix time in whole seconds, up to the year 2100")
    return int(given)


def instant_of(request: AnyRequest, name: str) -> int | None:
    """An instant of RFC 3339 in Unix seconds, cut to whole ones."""
    given = _one(request, name)
    if given is None:
        return None
    try:
        at = datetime.fromisoformat(given).timestamp() if _has_zone(given) else -1
    except (ValueError, OverflowError):
        at = -1
    if not 0 <= at <= UNIX_S_MAX:
        raise ReportInvalid(name, "it is an instant such as 2026-12-01T00:00:00Z, from 1970 to 2100")
    return int(at)


def one_of(request: AnyRequest, name: str, offered: Sequence[str]) -> str | None:
    """A parameter that is one of some words."""
    given = _one(request, name)
    if given is not None and given not in offered:
        raise ReportInvalid(name, f"{given!r} is not one of {', '.join(offered)}")
    return given


def words_of(request: AnyRequest, name: str) -> tuple[str, ...]:
    """A parameter that is repeated, with brackets or without, as SDKs and people do."""
    named = (*request.query_params.getall(name, ()), *request.query_params.getall(f"{name}[]", ()))
    return tuple(dict.fromkeys(named))


def groups_of(request: AnyRequest, offered: Mapping[str, tuple[Dimension, ...]]) -> tuple[str, ...]:
    """What ``group_by`` names, each one of what is offered."""
    named = words_of(request, "group_by")
    for one in named:
        if one not in offered:
            raise ReportInvalid("group_by", f"{one!r} is not one of {', '.join(offered)}")
    return named


def refuse(request: AnyRequest, *names: str) -> None:
    """Filters by what is not recorded would filter nothing."""
    for name in names:
        if words_of(request, name):
            raise ReportInvalid(name, "requests are not recorded by this")


def cursor_of(request: AnyRequest) -> str | None:
    """Of ``page``."""
    return _one(request, "page")


def in_order(since: int, until: int) -> None:
    """Raises IntervalInvalid where a range ends before it begins."""
    Interval(_instant(since), _instant(until))


async def now_s(request: AnyRequest) -> int:
    """Valkey's time in whole seconds, and one: what was rated this very second is in it."""
    return int((await desk_of(request).organization.clock.now()).timestamp()) + 1


def rfc3339(at: int) -> str:
    """A Unix time as Anthropic writes it."""
    return f"{_instant(at):%Y-%m-%dT%H:%M:%SZ}"


def _one(request: AnyRequest, name: str) -> str | None:
    given = words_of(request, name)
    if len(given) > 1:
        raise ReportInvalid(name, "it is given more than once")
    return given[0] if given else None


def _has_zone(text: str) -> bool:
    return datetime.fromisoformat(text).tzinfo is not None


def _instant(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)
