"""The kinds of notices."""

from typing import Final, Literal, get_args

Kind = Literal[
    "balance.low",
    "budget.reached",
    "invoice.finalised",
    "payment.failed",
    "payment.overdue",
    "key.expiring",
    "price.changing",
    "promise.broken",
    "webhook.test",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
