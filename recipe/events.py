"""What an output parser makes of a model's tokens."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]  # the engine's
EndReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of the reasoning before the answer, whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call begins: its place among the answer's calls, from 0 without gaps, and the tool's name.

    Its id is the surface's, made of the request's id and the place.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A piece of a call's arguments, never empty; those of one call concatenate to one JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Likely:
    """A token, by its bytes, and its natural log probability."""

    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token was drawn. Comes only where log probabilities were asked for; its text is in other events.

    ``top`` are the likeliest tokens at its place, the likeliest first.
    """

    drawn: Likely
    top: tuple[Likely, ...] = ()
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete; nothing follows. ``stop_sequence`` is the stop string that ended it."""

    reason: EndReason
    stop_sequence: str | None = None


Event = Text | Thinking | ToolCall | ToolArguments | Drawn | Finish
