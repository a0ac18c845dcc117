"""The price book: dated rows, appended and never edited."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Protocol, Self, TypeVar

from billing.errors import PriceInvalid, PriceMissing
from billing.pricing.rates import Rates
from billing.pricing.window import Window

Instant = Literal["admitted", "completed"]

STANDARD: Final = "standard"


@dataclass(frozen=True, slots=True)
class PriceRow:
    """Prices of a model in a currency from an instant on, until the next row of the same list begins.

    The list is the public one, that of a ``plan``, or that of one tenant, who then has a price of its own. In
    those two a row may end before (``effective_until``; at once: it only ends the row before it).
    The first of ``windows`` that is open rates; where none is, ``standard`` does, under ``standard_name``
    (a scheme that publishes peak hours calls all other hours off-peak). ``instant`` says which moment of a
    request rates it.
    """

    model: str
    currency: str
    effective_from: datetime
    instant: Instant
    standard: Rates
    windows: tuple[Window, ...] = ()
    standard_name: str = STANDARD
    plan: str | None = None
    tenant_id: str | None = None
    effective_until: datetime | None = None

    @property
    def id(self) -> str:
        """The natural key, readable: ``model/currency/effective_from``, and whose if not everybody's."""
        key = f"{self.model}/{self.currency}/{self.effective_from:%Y-%m-%dT%H:%M:%SZ}"
        if self.tenant_id is not None:
            return f"{key}/tenant/{self.tenant_id}"
        return key if self.plan is None else f"{key}/plan/{self.plan}"

    def holds(self, at: datetime) -> bool:
        """Whether it has not ended."""
        return self.effective_until is None or at < self.effective_until

    @property
    def named_rates(self) -> dict[str, Rates]:
        """Its rates by the name of their window; a name stands for one set of rates."""
        return {window.name: window.rates for window in self.windows} | {self.standard_name: self.standard}

    def rates_at(self, at: datetime) -> tuple[str, Rates]:
        """Name and rates of the window that rates this instant."""
        for window in self.windows:
            if window.contains(at):
                return window.name, window.rates
        return self.standard_name, self.standard


@dataclass(frozen=True, slots=True)
class Placement:
    """From an instant on, until its next placement, a tenant is on a plan, or on none."""

    tenant_id: str
    effective_from: datetime
    plan: str | None


# Whose list: a tenant's, a plan's, or with neither the public one.
_Owner = tuple[str | None, str | None]

_PUBLIC: Final[_Owner] = (None, None)


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All rows and placements, any order, as one tenant is charged by them, or as the public sees them.

    A price of the tenant's own comes before one of its plan, and that before the public one.

    Raises:
        PriceInvalid: two rows for the same list, model, currency and instant.
    """

    rows: tuple[PriceRow, ...]
    placements: tuple[Placement, ...] = ()
    tenant_id: str | None = None
    _rows: dict[tuple[_Owner, str, str], list[PriceRow]] = field(init=False, repr=False, compare=False)
    _placed: dict[str, list[Placement]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows: defaultdict[tuple[_Owner, str, str], list[PriceRow]] = defaultdict(list)
        for row in sorted(self.rows, key=_begins):
            earlier = rows[(row.tenant_id, row.plan), row.model, row.currency]
            if earlier and earlier[-1].effective_from == row.effective_from:
                raise PriceInvalid(row.id, "two rows take effect at the same instant")
            earlier.append(row)
        placed: defaultdict[str, list[Placement]] = defaultdict(list)
        for placement in sorted(self.placements, key=_begins):
            placed[placement.tenant_id].append(placement)
        object.__setattr__(self, "_rows", dict(rows))
        object.__setattr__(self, "_placed", dict(placed))

    def of(self, tenant_id: str) -> Self:
        """The same book as this tenant is charged by it. Cheap: nothing is sorted again."""
        seen = copy(self)
        object.__setattr__(seen, "tenant_id", tenant_id)
        return seen

    def row(self, model: str, currency: str, at: datetime) -> PriceRow:
        """The row in force.

        Raises:
            PriceMissing: none is, yet or at all.
        """
        for owner in self._owners(at):
            row = _latest(self._rows.get((owner, model, currency), ()), at)
            if row is not None and row.holds(at):
                return row
        raise PriceMissing(model, currency, at)

    def plan(self, at: datetime) -> str | None:
        """The plan that the tenant is on; None: on none."""
        placement = _latest(self._placed.get(self.tenant_id or "", ()), at)
        return None if placement is None else placement.plan

    def changes(self, model: str, currency: str, since: datetime, until: datetime) -> list[datetime]:
        """The instants of ``(since, until]`` at which another row may come into force, earliest first."""
        if since == until:
            return []
        placed = self._placed.get(self.tenant_id or "", ())
        instants = {placement.effective_from for placement in placed}
        for owner in {_PUBLIC, (self.tenant_id, None), *((None, placement.plan) for placement in placed)}:
            for row in self._rows.get((owner, model, currency), ()):
                instants |= {row.effective_from, row.effective_until or row.effective_from}
        return sorted(at for at in instants if since < at <= until)

    def _owners(self, at: datetime) -> Iterator[_Owner]:
        """Whose lists price for the tenant, the first that has a price being right."""
        if self.tenant_id is not None:
            yield self.tenant_id, None
            plan = self.plan(at)
            if plan is not None:
                yield None, plan
        yield _PUBLIC


class _Dated(Protocol):
    @property
    def effective_from(self) -> datetime: ...


_Begun = TypeVar("_Begun", bound=_Dated)


def _begins(dated: _Dated) -> datetime:
    return dated.effective_from


def _latest(dated: Sequence[_Begun], at: datetime) -> _Begun | None:
    """The last that has begun; ``dated`` is sorted."""
    position = bisect_right(dated, at, key=_begins)
    return dated[position - 1] if position else None
