"""Amounts as Stripe writes them: whole numbers of a currency's smallest unit.

https://docs.stripe.com/currencies: UGX and ISK have no minor unit, but are written with two decimals.
"""

from typing import Final

from billing.errors import AmountInvalid
from billing.money import FEMTO_DECIMALS, FEMTO_PER_CENT, Femto, decimal_of

_NO_DECIMALS: Final = frozenset(
    ("BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF")
)
_THREE_DECIMALS: Final = frozenset(("BHD", "JOD", "KWD", "OMR", "TND"))


def femto_per_minor(currency: str) -> int:
    """How many femto-units the smallest unit of a currency (ISO 4217, capitals) has."""
    decimals = 0 if currency in _NO_DECIMALS else 3 if currency in _THREE_DECIMALS else 2
    return int(10 ** (FEMTO_DECIMALS - decimals))


def from_minor(amount: int, currency: str) -> Femto:
    """An amount of Stripe's as femto-units."""
    return Femto(amount * femto_per_minor(currency))


def to_minor(amount: Femto, currency: str) -> int:
    """An amount as Stripe takes it.

    Raises:
        AmountInvalid: not a whole number of the currency's smallest unit, or not above zero.
    """
    if amount <= 0:
        raise AmountInvalid(decimal_of(amount))
    return _whole(amount, currency)


def cents_to_minor(cents: int, currency: str) -> int:
    """Hundredths of a currency, also below zero, as Stripe takes them.

    Raises:
        AmountInvalid: not a whole number of the currency's smallest unit.
    """
    return _whole(Femto(cents * FEMTO_PER_CENT), currency)


def _whole(amount: Femto, currency: str) -> int:
    minor, rest = divmod(amount, femto_per_minor(currency))
    if rest:
        raise AmountInvalid(decimal_of(amount))
    return minor
