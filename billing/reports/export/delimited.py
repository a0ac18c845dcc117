"""CSV by RFC 4180: UTF-8, lines end with CRLF, a header. No cell starts a formula in a spreadsheet."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from billing.reports.export.column import Column

Sink = Callable[[bytes], Awaitable[None]]

# What spreadsheets take for the beginning of a formula, in full width too (OWASP, CSV injection).
STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001  full width is meant
MARK: Final = "'"


def safe(text: str) -> str:
    """A text that somebody chose, as a cell: an apostrophe before what would be a formula."""
    return MARK + text if text.startswith(STARTS) else text


def header(columns: Sequence[Column], zone: str | None) -> bytes:
    """The names of the columns; those of instants say the zone as RFC 9557 does: ``rated_at[Asia/Tokyo]``."""
    names = (
        f"{column.name}[{zone}]" if zone and column.kind == "instant" else column.name for column in columns
    )
    return (",".join(names) + "\r\n").encode()


class Delimited:
    """Takes rows of CSV whose lines end with LF, in pieces of any length, and hands on those of the file.

    Args:
        head: of the file, before its rows.
        sink: takes the bytes of the file.
    """

    def __init__(self, head: bytes, sink: Sink) -> None:
        self._head = head
        self._sink = sink
        self._quoted = False
        self.rows = 0

    async def begin(self) -> None:
        """Write the header."""
        await self._sink(self._head)

    async def take(self, piece: bytes) -> None:
        """Hand rows on. A line break within quotes is a name's and stays what it is."""
        parts = piece.split(b'"')
        for place in range(1 if self._quoted else 0, len(parts), 2):
            part = parts[place]
            self.rows += part.count(b"\n")
            parts[place] = part.replace(b"\n", b"\r\n")
        self._quoted ^= len(parts) % 2 == 0
        await self._sink(b'"'.join(parts))

    async def end(self) -> None:
        """Nothing is kept back."""
        assert not self._quoted, "the last row is not whole"
