"""What an output parser makes of a model's tokens."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of the reasoning before the answer, whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete; nothing follows."""

    reason: FinishReason


Event = Text | Thinking | Finish
