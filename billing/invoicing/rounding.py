"""The few places where an invoice divides. Whole numbers in, whole numbers out."""

import re
from collections.abc import Sequence
from typing import Final

from billing.errors import TermsInvalid

MILLION: Final = 1_000_000  # parts of a whole: percents have at most four decimals
_PERCENT: Final = re.compile(r"(0|[1-9][0-9]{0,2})(?:\.([0-9]{0,3}[1-9]))?", re.ASCII)


def half_up(numerator: int, denominator: int) -> int:
    """The quotient rounded to the nearest whole number, a half away from zero."""
    assert denominator > 0, f"a division by {denominator}"
    rounded = (2 * abs(numerator) + denominator) // (2 * denominator)
    return rounded if numerator >= 0 else -rounded


def share(amount: int, parts: int) -> int:
    """So many millionths of an amount, half up."""
    return half_up(amount * parts, MILLION)


def allot(amounts: Sequence[int], unit: int, total: int) -> list[int]:
    """Whole units for each amount that add up to exactly ``total``, by the largest remainder.

    Each amount gets its floor; the units that are left go, one each, to those with the most left over, the
    first of equals first. ``total`` is what the amounts come to in whole units, with less than one more.
    """
    floors = [amount // unit for amount in amounts]
    left = total - sum(floors)
    assert 0 <= left <= len(amounts), f"{left} units are left for {len(amounts)} amounts"
    order = sorted(range(len(amounts)), key=lambda place: (-(amounts[place] % unit), place))
    for place in order[:left]:
        floors[place] += 1
    return floors


def proportional(amounts: Sequence[int], total: int) -> list[int]:
    """Divide ``total`` in proportion to amounts by the largest remainder: it adds up, none exceeds its own.

    ``total`` is at most their sum; amounts are not below zero.
    """
    whole = sum(amounts)
    assert 0 <= total <= whole, f"{total} is to be divided by {whole}"
    return allot([amount * total for amount in amounts], whole, total) if whole else [0 for _ in amounts]


def percent_of(text: str, field: str = "percent") -> int:
    """Read a percentage such as ``"24"`` or ``"8.875"`` as millionths.

    Raises:
        TermsInvalid: not a plain percentage from 0 to 100 with at most four decimals, written the short way.
    """
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise TermsInvalid(field, f"{text!r} is no percentage such as 24 or 8.875")
    parts = int(match[1]) * 10_000 + int((match[2] or "").ljust(4, "0"))
    if parts > MILLION:
        raise TermsInvalid(field, f"{text} % is more than the whole")
    return parts
