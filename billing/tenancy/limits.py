"""What a tenant, its projects, keys and end users may use: definitions, without their state."""

from dataclasses import dataclass
from typing import Final, Literal

from billing.errors import LimitInvalid
from billing.money import Femto

AMOUNT_MAX: Final = 2**53 - 1  # Valkey's scripts count in doubles, and so does JSON

Level = Literal["tenant", "project", "key"]
Measure = Literal[
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "tokens_per_day",
    "concurrent",
]
Period = Literal["daily", "weekly", "monthly", "lifetime"]


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of something may be used at a time.

    It counts the requests of ``owner_id``, a tenant, project or key; of one public ``model`` only where that
    is named, and of each ``user_id`` apart where ``per_user``. ``amount`` 0 means none allowed; no limit at
    all is written by leaving it out.

    Raises:
        LimitInvalid: an amount that is negative or cannot be counted exactly, or cached tokens left out of
            something that is no input.
    """

    level: Level
    owner_id: str
    measure: Measure
    amount: int
    model: str | None = None
    per_user: bool = False
    cached_free: bool = False  # input tokens served from cache, or owed, are given back when prefill answers

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise LimitInvalid(f"{self.measure} of {self.amount}: 0 allows none, leave it out to allow all")
        if self.amount > AMOUNT_MAX:
            raise LimitInvalid(f"{self.measure} of {self.amount} is too much to count: leave it out")
        if self.cached_free and self.measure != "input_tokens_per_minute":
            raise LimitInvalid(f"cached tokens are not counted by {self.measure} in the first place")


@dataclass(frozen=True, slots=True)
class Budget:
    """How much money may be spent in a period that begins at midnight in the tenant's time zone ``tz``.

    Weeks begin on Monday. A hard budget refuses what might pass it; a soft one alerts when it is passed.

    Raises:
        LimitInvalid: a negative amount.
    """

    id: str
    level: Level
    owner_id: str
    amount: Femto
    period: Period
    tz: str
    hard: bool = True

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise LimitInvalid(f"a budget of {self.amount} femto-units: 0 allows none")
