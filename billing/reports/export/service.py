"""Files of usage and charges, written piece by piece at flat memory."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from billing.db.access import reading
from billing.db.transaction import Connection, Database
from billing.interval import zone_of
from billing.pricing.service import Prices
from billing.reports import repository as reports
from billing.reports.export import repository
from billing.reports.export.charges import charge_groups
from billing.reports.export.delimited import Delimited, Sink, header
from billing.reports.export.focus import ChargeLines
from billing.reports.export.focus_column import FOCUS, VERSION
from billing.reports.export.lines import Lines
from billing.reports.export.order import ExportOrder
from billing.reports.export.rows import written

PRODUCER: Final = "Kvitto"

_GROUPS: Final = 500  # of charges that are rows of Python at a time


class _Form(Protocol):
    """Makes a file of rows."""

    rows: int

    async def begin(self) -> None: ...

    async def take(self, piece: bytes) -> None: ...

    async def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Written:
    """What a file came to; ``sha256`` is hexadecimal."""

    rows: int
    size_bytes: int
    sha256: str


class Exports:
    """Reads only.

    Args:
        producer: who serves and invoices, by name, for FOCUS.
    """

    def __init__(self, database: Database, producer: str = PRODUCER) -> None:
        self._database = database
        self._producer = producer

    async def write(
        self, order: ExportOrder, sink: Sink, on_rows: Callable[[int], None] | None = None
    ) -> Written:
        """Write the file of an order, all of it as it was at one instant.

        Args:
            order: what is wanted.
            sink: takes the bytes, and may take its time.
            on_rows: is told now and then how many rows are written.

        Raises:
            ChargeUnexplained: FOCUS alone: a charge is not what its price row says.
            StoreUnavailable: the file is not whole.
        """
        digest, size = hashlib.sha256(), 0

        async def pass_on(piece: bytes) -> None:
            nonlocal size
            digest.update(piece)
            size += len(piece)
            await sink(piece)
            if on_rows is not None:
                on_rows(form.rows)

        form = _form(order, pass_on)
        await form.begin()
        async with self._database.transaction(reading(order.tenant_id)) as connection:
            await repository.begin_export(connection, order.zone)
            rows = await self._rows(connection, order, form)
        await form.end()
        assert form.rows == rows, "a row was torn apart"
        return Written(rows, size, digest.hexdigest())

    async def expected_rows(self, order: ExportOrder) -> int | None:
        """How many rows there will be, as far as that can be told fast: of requests alone."""
        if order.content != "requests":
            return None
        async with self._database.transaction(reading(order.tenant_id)) as connection:
            totals = await reports.select_totals(connection, order.question)
        return sum(total.requests for total in totals)

    async def _rows(self, connection: Connection, order: ExportOrder, form: _Form) -> int:
        match order.content:
            case "requests":
                return await repository.copy_requests(connection, order, form.take)
            case "totals":
                return await repository.copy_totals(connection, order, form.take)
            case "focus":
                return await self._charge_lines(connection, order, form)

    async def _charge_lines(self, connection: Connection, order: ExportOrder, form: _Form) -> int:
        book = await Prices(self._database).book()
        lines, count = ChargeLines(book, self._producer), 0
        async for groups in charge_groups(connection, order, book):
            for first in range(0, len(groups), _GROUPS):
                rows = [row for group in groups[first : first + _GROUPS] for row in lines.rows(group, order)]
                count += len(rows)
                await form.take(written(FOCUS, order.form, rows))
        return count


def _form(order: ExportOrder, sink: Sink) -> _Form:
    match order.form:
        case "csv":
            zone = None if order.content == "focus" else order.zone
            return Delimited(header(order.columns, zone), sink)
        case "jsonl":
            return Lines(sink)
        case "parquet":
            from billing.reports.export.parquet import Parquet  # who writes none need not load Arrow

            zone = "UTC" if order.content == "focus" else order.zone
            return Parquet(order.columns, zone, _metadata(order), sink)


def _metadata(order: ExportOrder) -> dict[str, str]:
    zone = zone_of(order.zone)
    said = {
        "kvitto.content": order.content,
        "kvitto.since": order.interval.since.astimezone(zone).isoformat(),
        "kvitto.until": order.interval.until.astimezone(zone).isoformat(),
        "kvitto.zone": order.zone,
    }
    return said | ({"focus.version": VERSION} if order.content == "focus" else {})
