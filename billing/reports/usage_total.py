"""Usage added up: what is asked for, and what is answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from billing.errors import ReportInvalid
from billing.interval import Interval, zone_of
from billing.money import Femto
from billing.reports.selection import ANY, Selection

Stretch = Literal["minute", "hour", "day", "week", "month"]
Dimension = Literal[
    "tenant", "project", "key", "model", "traffic_class", "price_row", "window", "tier", Stretch
]

STRETCHES: Final[tuple[Stretch, ...]] = get_args(Stretch)
# What columns of an event a group is of; stretches of time are of the instant that rated it. The project is
# its key's, which stays in it.
COLUMN_OF: Final[Mapping[Dimension, str]] = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model",
    "traffic_class": "traffic_class",
    "price_row": "price_row_id",
    "window": "price_window",
    "tier": "tier",
}
DIMENSIONS: Final[tuple[Dimension, ...]] = (*COLUMN_OF, *STRETCHES)
TOKENS: Final = ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output", "reasoning")


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    """``by`` are the dimensions of a group, none for one group a currency. ``zone`` is where days begin.

    More than ``groups_max`` groups are not told.

    Raises:
        IntervalInvalid: there is no such zone.
        ReportInvalid: a dimension that there is not.
    """

    interval: Interval
    by: tuple[Dimension, ...] = ()
    tenant_id: str | None = None
    zone: str = "UTC"
    only: Selection = ANY
    groups_max: int | None = None

    def __post_init__(self) -> None:
        zone_of(self.zone)
        for one in self.by:
            if one not in DIMENSIONS:
                raise ReportInvalid("by", f"{one!r} is not one of {', '.join(DIMENSIONS)}")

    @property
    def needs_events(self) -> bool:
        """Whether rollups cannot tell: their slots hold no minutes, and no status."""
        return "minute" in self.by or bool(self.only.statuses)


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """One group: by dimension an id, or the first instant of a stretch. Tenant, project, key have ``names``.

    Amounts of different currencies are never added: they are groups apart.
    """

    group: Mapping[Dimension, str | datetime]
    names: Mapping[Dimension, str]
    currency: str
    requests: int
    cache_hit: int
    cache_owed: int
    cache_write: int
    cache_miss: int
    output: int
    reasoning: int
    charge: Femto
