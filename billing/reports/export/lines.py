"""JSON Lines: an object a row, its keys in the order of the columns, amounts as exact decimal strings."""

from billing.reports.export.delimited import Sink


class Lines:
    """Hands on the lines as Postgres writes them; control characters are escaped in JSON, so a line is a row.

    Args:
        sink: takes the bytes of the file.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.rows = 0

    async def begin(self) -> None:
        """There is no header."""

    async def take(self, piece: bytes) -> None:
        """Hand rows on."""
        self.rows += piece.count(b"\n")
        await self._sink(piece)

    async def end(self) -> None:
        """Nothing is kept back."""
