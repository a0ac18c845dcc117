"""One line of the table that `make bench` prints."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "ms", "us", "GiB", "ratio", "/s", ""]
FORMATS: dict[Unit, str] = {
    "s": "{:.3f} s",
    "ms": "{:.3f} ms",
    "us": "{:.1f} µs",
    "GiB": "{:.2f} GiB",
    "ratio": "{:.3f}",
    "/s": "{:,.0f}/s",
    "": "{:,.0f}",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value and, where the house promises one, the most (limit) or the least (floor) it may be."""

    name: str
    value: float
    unit: Unit
    limit: float | None = None
    remark: str = ""
    floor: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the promise holds; true where there is none."""
        return (self.limit is None or self.value <= self.limit) and (
            self.floor is None or self.value >= self.floor
        )

    @property
    def promise(self) -> str:
        """The limit, or the floor, as people read it; empty where there is none."""
        if self.limit is not None:
            return f"≤ {self.written(self.limit)}"
        return "" if self.floor is None else f"≥ {self.written(self.floor)}"

    def written(self, value: float) -> str:
        """Write a value in this row's unit."""
        return FORMATS[self.unit].format(value)
