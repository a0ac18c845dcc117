"""Parquet, the one module that knows pyarrow.

Amounts are ``decimal128(38, 15)`` in units of the currency: the very digits of `NUMERIC(38,0)` femto-units,
with the point set. They are exact, they add up in any engine that reads the file, and nobody has to know what
a femto-unit is to divide by it. So there is no text beside them. Prices and quantities are alike. Instants
are ``timestamp[us]`` in the file's zone; the metadata says the zone again, with interval and content.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv, parquet

from billing.money import FEMTO_DECIMALS
from billing.reports.export.column import Column
from billing.reports.export.delimited import Sink

BLOCK_BYTES: Final = 8 << 20  # of CSV, a row group each

_DECIMAL: Final = pa.decimal128(38, FEMTO_DECIMALS)
_READ_AS: Final = {
    "id": pa.string(),
    "name": pa.string(),
    "integer": pa.int64(),
    "amount": _DECIMAL,
    "quantity": _DECIMAL,
    "instant": pa.timestamp("us"),
}


class Parquet:
    """Takes rows of CSV, instants as wall-clock times of UTC, and hands on the file piece by piece.

    Args:
        columns: of the rows and of the file.
        zone: that instants are shown in.
        metadata: of the file, by names that begin with ``kvitto.``.
        sink: takes the bytes of the file.
    """

    def __init__(self, columns: Sequence[Column], zone: str, metadata: Mapping[str, str], sink: Sink) -> None:
        fields = [
            pa.field(
                column.name,
                pa.timestamp("us", tz=zone) if column.kind == "instant" else _READ_AS[column.kind],
                nullable=column.nullable,
            )
            for column in columns
        ]
        self._schema = pa.schema(fields, metadata=dict(metadata))
        self._read = csv.ReadOptions(column_names=[column.name for column in columns], use_threads=False)
        self._parse = csv.ParseOptions(newlines_in_values=True)
        self._convert = csv.ConvertOptions(
            column_types={column.name: _READ_AS[column.kind] for column in columns},
            null_values=[""],
            strings_can_be_null=any(column.nullable for column in columns),
        )
        self._sink = sink
        self._pending = bytearray()
        self._file = BytesIO()
        self._writer: Any = None
        self.rows = 0

    async def begin(self) -> None:
        """Write the magic number."""
        self._writer = parquet.ParquetWriter(self._file, self._schema, compression="zstd")
        await self._drain()

    async def take(self, piece: bytes) -> None:
        """Keep rows until they are a row group."""
        self._pending += piece
        if len(self._pending) >= BLOCK_BYTES:
            end = _whole_rows(self._pending)
            block = bytes(memoryview(self._pending)[:end])
            del self._pending[:end]
            await self._write(block)

    async def end(self) -> None:
        """Write the last rows, and the footer."""
        if self._pending:
            await self._write(bytes(self._pending))
            self._pending.clear()
        self._writer.close()
        await self._drain()

    async def _write(self, block: bytes) -> None:
        if not block:
            return
        table = csv.read_csv(BytesIO(block), self._read, self._parse, self._convert).cast(self._schema)
        self.rows += table.num_rows
        self._writer.write_table(table)
        await self._drain()

    async def _drain(self) -> None:
        """Hand on what pyarrow has written, whose own count of bytes goes on."""
        await self._sink(self._file.getvalue())
        self._file.seek(0)
        self._file.truncate()


def _whole_rows(pending: bytearray) -> int:
    """Where the last row ends that is all there: behind a line break outside of quotes."""
    end = pending.rfind(b"\n")
    while end >= 0 and pending.count(b'"', 0, end) % 2:
        end = pending.rfind(b"\n", 0, end)
    return end + 1
