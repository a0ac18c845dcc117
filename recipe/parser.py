"""Tokens of an answer to events: whole characters, nothing of a stop string or behind it."""

from collections.abc import Sequence
from typing import Protocol

from recipe.detokenizer import Detokenizer
from recipe.events import Event, Finish, FinishReason, Text
from recipe.tokenizer import Tokenizer


class OutputParser(Protocol):
    """Reads one answer. Events concatenate to the same text however the tokens are cut into pushes."""

    @property
    def stopped(self) -> bool:
        """A stop string matched: what precedes it was emitted, nothing follows; generation may end."""

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens pushed so far belong to the reasoning."""

    def push(self, token_ids: Sequence[int]) -> list[Event]:
        """Events that these tokens complete; none after the answer stopped."""

    def finish(self, reason: FinishReason) -> list[Event]:
        """What was held back, and `Finish`; call once. After a stop string the reason is ``stop``."""


class StopStrings:
    """Passes text on up to the first stop string, holding back only what may be the beginning of one.

    ``matched`` is the stop string that was found.
    """

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(filter(None, stops))
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that is certainly before any stop string. The stop that completes first wins."""
        if self.matched:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            return text[:at]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of ``stop`` that ``text`` ends with."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0


class PlainParser:
    """Answers without markup: text, stop strings and the model's own end."""

    __slots__ = ("_control", "_detokenizer", "_ended", "_stop_token_ids", "_stops")

    def __init__(self, tokenizer: Tokenizer, stop_token_ids: Sequence[int], stop: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._control = tokenizer.added.control
        self._stop_token_ids = frozenset(stop_token_ids)
        self._stops = StopStrings(stop)
        self._ended = False

    @property
    def stopped(self) -> bool:
        """See `OutputParser`."""
        return self._stops.matched is not None

    @property
    def reasoning_tokens(self) -> int:
        """None of them: the model answers without markup for reasoning."""
        return 0

    def push(self, token_ids: Sequence[int]) -> list[Event]:
        """See `OutputParser`. Control tokens stand for no text; what follows the model's end is dropped."""
        if self._ended or self.stopped:
            return []
        visible: list[int] = []
        for token_id in token_ids:
            if token_id in self._stop_token_ids:
                self._ended = True
                break
            if token_id not in self._control:
                visible.append(token_id)
        return _texts(self._stops.push(self._detokenizer.push(visible)))

    def finish(self, reason: FinishReason) -> list[Event]:
        """See `OutputParser`."""
        rest = self._stops.push(self._detokenizer.flush())
        if self.stopped:
            return [*_texts(rest), Finish("stop", self._stops.matched)]
        return [*_texts(rest + self._stops.flush()), Finish(reason)]


def _texts(text: str) -> list[Event]:
    return [Text(text)] if text else []
