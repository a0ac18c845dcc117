"""One line of the table that `make bench` prints."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "ms", "us", "GiB", "ratio"]
FORMATS: dict[Unit, str] = {
    "s": "{:.3f} s",
    "ms": "{:.3f} ms",
    "us": "{:.1f} µs",
    "GiB": "{:.2f} GiB",
    "ratio": "{:.3f}",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value and, where the house promises one, the most it may be."""

    name: str
    value: float
    unit: Unit
    limit: float | None = None
    remark: str = ""

    @property
    def kept(self) -> bool:
        """Whether the limit holds; true where there is none."""
        return self.limit is None or self.value <= self.limit

    def written(self, value: float) -> str:
        """Write a value in this row's unit."""
        return FORMATS[self.unit].format(value)
