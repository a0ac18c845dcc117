"""Events in one surface's bytes: as a stream of frames, or as one body at the end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gateway import sse
from recipe.events import Event
from recipe.usage import Usage

Chunk = Mapping[str, Any]


class Writer(Protocol):
    """Writes one answer. A whole answer (not streamed) is one frame, written by `finish`."""

    def prefilled(self, prompt: Usage) -> None:
        """Learn how the prompt was served; comes once, before all events. No output is counted in it."""

    def events(self, events: Sequence[Event]) -> bytes:
        """Write what can be shown now; may be empty."""

    def finish(self, events: Sequence[Event], billed: Usage) -> bytes:
        """Write the last events with the usage that was settled."""

    def error(self, error: Exception) -> bytes:
        """Write a failure after the answer has begun."""


class Stream(Protocol):
    """A surface's stream as objects (`recipe.protocols`), each to be framed."""

    def opening(self, prompt: Usage) -> Sequence[Chunk]:
        """What comes first, once."""

    def deltas(self, events: Sequence[Event]) -> Sequence[Chunk]:
        """What events become. `Finish` is kept for `closing`: usage is not known yet."""

    def closing(self, usage: Usage) -> Sequence[Chunk]:
        """What comes last, once, after `Finish`."""


class StreamWriter:
    """Events as frames. Nothing is opened before there is an event, so that early errors keep their status.

    Args:
        broken: frames a failure.
        end: follows the last chunk.
    """

    def __init__(self, stream: Stream, broken: Callable[[Exception], bytes], end: bytes = b"") -> None:
        self._stream = stream
        self._broken = broken
        self._end = end
        self._prompt: Usage | None = None
        self._opened = False

    def prefilled(self, prompt: Usage) -> None:
        """See `Writer`."""
        self._prompt = prompt

    def events(self, events: Sequence[Event]) -> bytes:
        """See `Writer`."""
        chunks = self._stream.deltas(events)
        return self._opening() + b"".join(map(sse.frame, chunks)) if chunks else b""

    def finish(self, events: Sequence[Event], billed: Usage) -> bytes:
        """See `Writer`."""
        chunks = [*self._stream.deltas(events), *self._stream.closing(billed)]
        return self._opening() + b"".join(map(sse.frame, chunks)) + self._end

    def error(self, error: Exception) -> bytes:
        """See `Writer`: an error frame, and nothing after it that could be taken for an end."""
        return self._broken(error)

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        assert self._prompt is not None, "prefill comes before events"
        self._opened = True
        return b"".join(map(sse.frame, self._stream.opening(self._prompt)))


class WholeWriter:
    """All events as one JSON body.

    Args:
        answer: makes the body of all events and the settled usage.
        broken: the body of a failure; never asked for, as nothing is sent before the end.
    """

    def __init__(
        self, answer: Callable[[Sequence[Event], Usage], Chunk], broken: Callable[[Exception], bytes]
    ) -> None:
        self._answer = answer
        self._broken = broken
        self._events: list[Event] = []

    def prefilled(self, prompt: Usage) -> None:
        """See `Writer`; the settled usage says it all."""

    def events(self, events: Sequence[Event]) -> bytes:
        """See `Writer`; nothing can be shown yet."""
        self._events += events
        return b""

    def finish(self, events: Sequence[Event], billed: Usage) -> bytes:
        """See `Writer`."""
        return msgspec.json.encode(self._answer([*self._events, *events], billed))

    def error(self, error: Exception) -> bytes:
        """See `Writer`."""
        return self._broken(error)
