"""The price book: dated rows, appended and never edited."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from billing.errors import PriceInvalid, PriceMissing
from billing.pricing.rates import Rates
from billing.pricing.window import Window

Instant = Literal["admitted", "completed"]

STANDARD: Final = "standard"


@dataclass(frozen=True, slots=True)
class PriceRow:
    """Prices of a model in a currency from an instant on, until the next row of the same model and currency.

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

    @property
    def id(self) -> str:
        """The natural key, readable: ``model/currency/effective_from``."""
        return f"{self.model}/{self.currency}/{self.effective_from:%Y-%m-%dT%H:%M:%SZ}"

    def rates_at(self, at: datetime) -> tuple[str, Rates]:
        """Name and rates of the window that rates this instant."""
        for window in self.windows:
            if window.contains(at):
                return window.name, window.rates
        return self.standard_name, self.standard


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All rows, any order.

    Raises:
        PriceInvalid: two rows for the same model, currency and instant.
    """

    rows: tuple[PriceRow, ...]
    _by_model: dict[tuple[str, str], list[PriceRow]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_model: defaultdict[tuple[str, str], list[PriceRow]] = defaultdict(list)
        for row in sorted(self.rows, key=lambda row: row.effective_from):
            earlier = by_model[row.model, row.currency]
            if earlier and earlier[-1].effective_from == row.effective_from:
                raise PriceInvalid(row.id, "two rows take effect at the same instant")
            earlier.append(row)
        object.__setattr__(self, "_by_model", dict(by_model))

    def row(self, model: str, currency: str, at: datetime) -> PriceRow:
        """The row in force.

        Raises:
            PriceMissing: none is, yet or at all.
        """
        rows = self._by_model.get((model, currency), [])
        position = bisect_right(rows, at, key=lambda row: row.effective_from)
        if position == 0:
            raise PriceMissing(model, currency, at)
        return rows[position - 1]

    def rows_during(
        self, model: str, currency: str, since: datetime, until: datetime
    ) -> tuple[PriceRow, ...]:
        """The rows in force at some instant of ``[since, until]``, earliest first."""
        later = (
            row for row in self._by_model.get((model, currency), []) if since < row.effective_from <= until
        )
        return (self.row(model, currency, since), *later)
