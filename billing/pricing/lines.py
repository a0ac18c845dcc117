"""On which line of a TOML text a table or a key stands: `tomllib` does not say."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final, Self

Path = tuple[str | int, ...]

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([\w-]+(?:\s*\.\s*[\w-]+)*)\s*\]\]?\s*(?:#.*)?", re.ASCII)
_KEY: Final = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lines:
    """Line numbers by path, as ``("price", 3, "window", 1, "zone")``: tables of an array count from 1."""

    known: dict[Path, int]

    @classmethod
    def of(cls, text: str) -> Self:
        """Find headers and keys, one a line, as people write them."""
        known: dict[Path, int] = {}
        tables: Counter[Path] = Counter()
        here: Path = ()
        for number, line in enumerate(text.splitlines(), start=1):
            header, key = _HEADER.fullmatch(line), _KEY.match(line)
            if header is not None:
                here = _open(header[2], tables, another=header[1] == "[[")
                known[here] = number
                known.setdefault(here[:-1], number)
            elif key is not None:
                known.setdefault((*here, key[1]), number)
        return cls(known)

    def line(self, path: Path) -> int:
        """The line of a path, else of the table that it is in, else the first."""
        while path and path not in self.known:
            path = path[:-1]
        return self.known.get(path, 1)


def _open(name: str, tables: Counter[Path], *, another: bool) -> Path:
    """The path of the table with this header; ``another`` table of its array, if need be."""
    here: Path = ()
    parts = [part.strip() for part in name.split(".")]
    for depth, part in enumerate(parts, start=1):
        here = (*here, part)
        tables[here] += another and depth == len(parts)
        if tables[here]:
            here = (*here, tables[here])
    return here
