"""Money: integer femto-units, 1e-15 of a currency unit.

One nano-unit per *million tokens* is one femto-unit per *token*, so a charge is ``tokens * rate``: nothing
divides and nothing rounds until an invoice is cut.
"""

import re
from typing import Final, NewType

from billing.errors import AmountInvalid, PriceInvalid

Femto = NewType("Femto", int)

ZERO: Final = Femto(0)

FEMTO_DECIMALS: Final = 15
FEMTO_PER_UNIT: Final = 10**FEMTO_DECIMALS
FEMTO_PER_CENT: Final = 10**13
RATE_DECIMALS: Final = 9
TOKENS_PER_RATE: Final = 1_000_000

_DECIMAL: Final = re.compile(r"([0-9]{1,20})(?:\.([0-9]+))?", re.ASCII)


def rate_of(text: str) -> int:
    """Read a price per 1M tokens, such as ``"0.003625"``, as femto-units per token.

    Raises:
        PriceInvalid: not a plain, non-negative decimal, or more than 9 decimals (a rate would not be whole).
    """
    rate = _scaled(text, RATE_DECIMALS)
    if rate is None:
        raise PriceInvalid(
            f"rate {text!r}", "a rate is a plain decimal per 1M tokens with at most 9 decimals"
        )
    return rate


def rate_text(rate: int) -> str:
    """Write femto-units per token as a price per 1M tokens; `rate_of` reads it back."""
    return decimal_of(Femto(rate * TOKENS_PER_RATE))


def femto_of(text: str) -> Femto:
    """Read an amount in currency units, such as ``"25"`` or ``"0.10"``, exactly.

    Raises:
        AmountInvalid: not a plain, non-negative decimal, or finer than a femto-unit.
    """
    amount = _scaled(text, FEMTO_DECIMALS)
    if amount is None:
        raise AmountInvalid(text)
    return Femto(amount)


def decimal_of(amount: Femto) -> str:
    """Write an amount in currency units: exact, plain notation, no exponent, no trailing zeros."""
    units, femto = divmod(abs(amount), FEMTO_PER_UNIT)
    fraction = f"{femto:0{FEMTO_DECIMALS}d}".rstrip("0")
    sign = "-" if amount < 0 else ""
    return f"{sign}{units}.{fraction}" if fraction else f"{sign}{units}"


def split_cents(total: Femto) -> tuple[int, Femto]:
    """Split into whole cents to invoice and a remainder to carry forward.

    Floor division: no cent of usage is invoiced that has not been fully earned.
    """
    cents, remainder = divmod(total, FEMTO_PER_CENT)
    return cents, Femto(remainder)


def _scaled(text: str, decimals: int) -> int | None:
    """``text`` times ``10**decimals`` when that is whole and the text has no more decimals than that."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    whole, fraction = match[1], match[2] or ""
    if len(fraction) > decimals:
        return None
    return int(whole + fraction.ljust(decimals, "0"))
