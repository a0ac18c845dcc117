"""The columns of a file, in their order, which is part of the contract: new ones join at the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from billing.reports.usage_total import COLUMN_OF, STRETCHES, TOKENS, Dimension

Kind = Literal["id", "name", "integer", "amount", "quantity", "instant"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its name, and what it holds.

    ``id``: a text of ours, which is never taken for a formula. ``name``: a text that somebody chose.
    ``integer``: a count. ``amount``: money in units of the currency, up to 15 decimals, exact. ``quantity``:
    likewise of something else. ``instant``: with the offset of the file's zone.
    """

    name: str
    kind: Kind
    nullable: bool = False


# One row a request, the oldest first by the instant that rated it.
REQUESTS: Final = (
    Column("request_id", "id"),
    Column("tenant_id", "id"),
    Column("tenant", "name"),
    Column("project_id", "id"),
    Column("project", "name"),
    Column("key_id", "id"),
    Column("key", "name"),
    Column("model", "name"),
    Column("traffic_class", "id"),
    Column("status", "id"),
    Column("tier", "id"),
    Column("price_row_id", "name"),
    Column("price_window", "name"),
    Column("admitted_at", "instant"),
    Column("rated_at", "instant"),
    *(Column(name, "integer") for name in TOKENS),
    Column("charge", "amount"),
    Column("currency", "id"),
)

_NAMED: Final[frozenset[Dimension]] = frozenset({"tenant", "project", "key"})
_CHOSEN: Final[frozenset[Dimension]] = frozenset({"model", "price_row", "window"})


def totals_columns(by: Sequence[Dimension]) -> tuple[Column, ...]:
    """One row a group: its dimensions as they were asked for, ids before names, then the sums."""
    columns: list[Column] = []
    for one in by:
        if one in STRETCHES:
            columns.append(Column(one, "instant"))
        else:
            columns.append(Column(COLUMN_OF[one], "name" if one in _CHOSEN else "id"))
        if one in _NAMED:
            columns.append(Column(one, "name"))
    return (
        *columns,
        Column("requests", "integer"),
        *(Column(name, "integer") for name in TOKENS),
        Column("charge", "amount"),
        Column("currency", "id"),
    )
