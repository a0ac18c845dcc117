"""Limits as the scripts count them: which of a key's apply to a request, and under which names."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

from billing.tenancy.limits import Budget, Limit, Measure
from gateway.admission import budgets

# Exact in the scripts (bucket.lua); a limit beyond it is none.
AMOUNT_MAX: Final = 2**40 - 1
USER_DIGEST_BYTES: Final = 12
# Letters of bucket.lua; c is a slot.
SLOT: Final = "c"
DAY: Final = "d"
DAY_OF_USER: Final = "D"
LETTERS: Final[dict[Measure, str]] = {
    "requests_per_minute": "r",
    "input_tokens_per_minute": "i",
    "output_tokens_per_minute": "o",
    "tokens_per_day": DAY,
    "concurrent": SLOT,
}


@dataclass(frozen=True, slots=True)
class Counted:
    """A limit that counts a request: its letter and the end of its key in Valkey, behind the tenant's tag."""

    limit: Limit
    letter: str
    name: str

    @property
    def amount(self) -> int:
        """What the scripts are told."""
        return min(self.limit.amount, AMOUNT_MAX)

    @property
    def part(self) -> str:
        """How a hold names it (hold.lua)."""
        return f"|{self.letter}{self.name}"


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request takes beside its hold: tokens, of the limits that count it, and of budgets."""

    input_tokens: int = 0
    output_tokens: int = 0
    limits: tuple[Counted, ...] = ()
    budgets: tuple[Budget, ...] = ()

    @property
    def parts(self) -> str:
        """What a release names if no hold does (hold.lua): what Postgres knows, so that it is read again."""
        days = (one.part for one in self.limits if one.letter == DAY)
        return "".join((*days, *(f"|b{budgets.name_of(one)}" for one in self.budgets)))

    def cost(self, limit: Counted) -> int:
        """How much of a limit the request takes at first."""
        match limit.letter:
            case "r" | "c":
                return 1
            case "i" | "f":
                return self.input_tokens
            case "o":
                return self.output_tokens
        return self.input_tokens + self.output_tokens


def counted(limits: Iterable[Limit], model: str, user_id: str) -> tuple[Counted, ...]:
    """Choose the limits that count a request of a model and user.

    Args:
        user_id: as the client gave it; only a digest of it is kept. Empty is a user too: who leaves it out
            shares one with all who do.
    """
    applying = [limit for limit in limits if limit.model in (None, model)]
    users = ("*", blake2b(user_id.encode(), digest_size=USER_DIGEST_BYTES).hexdigest())
    names = {None: "*", model: quote(model, safe="")}
    return tuple(
        Counted(
            limit,
            letter := _letter(limit),
            f"limit:{limit.owner_id}/{limit.measure}.{letter}/{names[limit.model]}/{users[limit.per_user]}",
        )
        for limit in applying
    )


def _letter(limit: Limit) -> str:
    letter = LETTERS[limit.measure]
    if limit.cached_free:
        return "f"
    return DAY_OF_USER if limit.per_user and letter == DAY else letter
