"""Amounts in whole cents, as people read and write them."""

import re
from typing import Final

import typer

_CENTS: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,2}))?", re.ASCII)


def cents_of(text: str) -> int:
    """Read whole cents; typer.BadParameter for anything else."""
    match = _CENTS.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no amount in whole cents such as 25 or 0.10")
    return int(match[1]) * 100 + int((match[2] or "").ljust(2, "0"))


def decimal_cents(cents: int) -> str:
    """Write cents in currency units, with both decimals; `cents_of` reads what is not below zero back."""
    whole, part = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}{whole}.{part:02}"
