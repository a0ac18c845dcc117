"""Rates as people read them."""

from typing import Final

from billing.money import Femto, decimal_of

TOKENS_PER_RATE: Final = 1_000_000


def rate_text(femto_per_token: int) -> str:
    """A rate as the price book states it: currency units per 1M tokens, exact."""
    return decimal_of(Femto(femto_per_token * TOKENS_PER_RATE))
