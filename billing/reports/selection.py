"""Which requests of an interval a report is of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from billing.errors import ReportInvalid
from billing.pricing.rates import TIERS
from billing.tenancy.api_key import TRAFFIC_CLASSES

STATUSES: Final = ("completed", "aborted", "failed")
NAMED_MAX: Final = 100  # of one kind
# By what is named, the column that is compared; a project is that of its keys.
COLUMN_OF: Final[Mapping[str, str]] = {
    "projects": "key_id",
    "keys": "key_id",
    "models": "model",
    "traffic_classes": "traffic_class",
    "price_rows": "price_row_id",
    "windows": "price_window",
    "tiers": "tier",
    "statuses": "status",
}

_KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "traffic_classes": tuple(sorted(TRAFFIC_CLASSES)),
    "tiers": TIERS,
    "statuses": STATUSES,
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Requests that are in every set that is not empty. Projects and keys by id, price rows too.

    Raises:
        ReportInvalid: a class, tier or status that there is not, or too many of one kind.
    """

    projects: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    traffic_classes: tuple[str, ...] = ()
    price_rows: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind, names in self.named():
            if len(names) > NAMED_MAX:
                raise ReportInvalid(kind, f"at most {NAMED_MAX} can be named")
            for name in names:
                if name not in _KNOWN.get(kind, (name,)):
                    raise ReportInvalid(kind, f"{name!r} is not one of {', '.join(_KNOWN[kind])}")

    def named(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The sets that are not empty, by their kind."""
        for kind in COLUMN_OF:
            names: tuple[str, ...] = getattr(self, kind)
            if names:
                yield kind, names


ANY: Final = Selection()
