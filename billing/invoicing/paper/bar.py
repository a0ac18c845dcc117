"""A bar of shares as SVG: the one picture of a document."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

WIDTH: Final = 1_000
HEIGHT: Final = 24
COLOURS: Final[Mapping[str, str]] = {
    "hit": "#2f7d5d",
    "owed": "#c98a1b",
    "write": "#6b7a99",
    "miss": "#c9ced6",
}


class Share(NamedTuple):
    """A part of the bar, its words, and its colour by kind."""

    name: str
    amount: int
    kind: str


def bar(shares: Sequence[Share]) -> str:
    """SVG of ``WIDTH`` by ``HEIGHT``; parts of nothing have none, and the parts fill it whole."""
    whole = sum(share.amount for share in shares)
    parts, done = [], 0
    for share in shares:
        start, done = done * WIDTH // whole, done + share.amount
        wide = done * WIDTH // whole - start
        parts.append(
            f'<rect x="{start}" width="{wide}" height="{HEIGHT}" fill="{COLOURS[share.kind]}">'
            f"<title>{share.name}</title></rect>"
        )
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'
