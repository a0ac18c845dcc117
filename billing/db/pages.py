"""Lists in pages: by key, not by offset, so that rows which come or go meanwhile shift nothing."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, Table, select, tuple_


@dataclass(frozen=True, slots=True)
class Page:
    """At most ``rows_max`` rows behind the row whose id is ``after``; None: all, from the first."""

    after: str | None = None
    rows_max: int | None = None


WHOLE = Page()


def paged(statement: Select[Any], table: Table, page: Page) -> Select[Any]:
    """Oldest first, by ``created_at`` and ``id``. Behind an id that is not there comes nothing."""
    statement = statement.order_by(table.c.created_at, table.c.id).limit(page.rows_max)
    if page.after is None:
        return statement
    cursor = select(table.c.created_at, table.c.id).where(table.c.id == page.after).scalar_subquery()
    return statement.where(tuple_(table.c.created_at, table.c.id) > cursor)
