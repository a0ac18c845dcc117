"""The text of an answer to events, where a model marks its reasoning and its tool calls in the text."""

from collections.abc import Sequence
from typing import Literal

from recipe.calls import CallReader
from recipe.detokenizer import Detokenizer
from recipe.events import Event, Finish, FinishReason, Text, Thinking
from recipe.marks import Marks
from recipe.parser import StopStrings, overlap
from recipe.prompt import Calls, Prompt
from recipe.tokenizer import Tokenizer

# Before anything but white space, in the reasoning, in the answer's text, in calls.
Place = Literal["start", "thinking", "text", "calls"]


class MarkupReader:
    """Reads one answer; its events concatenate to the same however the text is cut into pieces.

    White space around calls belongs to the markup, and so do line breaks around the reasoning. Held back is
    only what may be the beginning of markup or of a stop string. Stop strings are looked for in the answer's
    text alone.

    Args:
        place: where the answer begins.
        calls: how many calls it may hold; with ``none``, their marks are text.
        stop: stop strings.
        continues: the beginning is inside a message; line breaks there are no markup.
    """

    __slots__ = (
        "_blank",
        "_calls",
        "_gap",
        "_held",
        "_marks",
        "_reader",
        "_strip",
        "call_count",
        "place",
        "stops",
    )

    def __init__(
        self, marks: Marks, place: Place, calls: Calls, stop: Sequence[str], *, continues: bool = False
    ) -> None:
        self.place = place
        self.stops = StopStrings(stop)
        self.call_count = 0
        self._marks = marks
        self._calls = calls
        self._held = ""
        self._blank = True  # nothing but white space since the beginning or the last call
        self._gap = ""  # white space before the calls that are being read
        self._strip = place == "thinking" and not continues  # line breaks that come next are markup
        self._reader: CallReader | None = None

    @property
    def stopped(self) -> bool:
        """Nothing that follows would be shown: a stop string matched, or the one call is complete."""
        called = self._calls == "one" and self.call_count > 0 and self.place != "calls"
        return called or self.stops.matched is not None

    def feed(self, text: str) -> list[Event]:
        """Events that this text completes."""
        events: list[Event] = []
        rest: str | None = self._held + text
        self._held = ""
        while rest and not self.stopped:
            match self.place:
                case "start":
                    rest = self._start(rest)
                case "thinking":
                    rest = self._thinking(rest, events)
                case "text":
                    rest = self._text(rest, events)
                case "calls":
                    rest = self._in_calls(rest, events)
        return events

    def end(self, reason: FinishReason) -> list[Event]:
        """What was held back, when nothing follows."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if self.place == "thinking" and held:
            self._think(events, held)
        elif self._reader is not None:
            unread = self._reader.cut_off()
            self._leave_calls(self._reader)
            if unread and reason == "stop":
                self._say(events, self._gap + self._marks.call + unread)
        elif not (self.call_count and held.isspace()):
            self._say(events, held)
        if self.stops.matched is None and (rest := self.stops.flush()):
            events.append(Text(rest))
        return events

    def _start(self, text: str) -> str | None:
        """A model may begin with its reasoning, at once or behind white space."""
        begun = text.lstrip()
        if begun.startswith(self._marks.think):
            self.place, self._strip = "thinking", True
            return begun[len(self._marks.think) :]
        if self._marks.think.startswith(begun):
            self._held = text
            return None
        self.place = "text"
        return text

    def _thinking(self, text: str, events: list[Event]) -> str | None:
        if self._strip:
            text = text.lstrip("\n")
            self._strip = not text
        at = text.find(self._marks.think_end)
        if at >= 0:
            self._think(events, text[:at].rstrip("\n"))
            self.place, self._strip = "text", True
            return text[at + len(self._marks.think_end) :]
        whole = text[: len(text) - overlap(text, self._marks.think_end)].rstrip("\n")
        self._think(events, whole)
        self._held = text[len(whole) :]
        return None

    def _text(self, text: str, events: list[Event]) -> str | None:
        if self._strip:
            text = text.lstrip("\n")
            self._strip = not text
        if self._calls == "none":
            self._say(events, text)
            return None
        mark = self._marks.call
        at = text.find(mark)
        if at >= 0:
            before = text[:at]
            said = "" if self._blank and not before.strip() else before.removesuffix("\n")
            self._gap = before[len(said) :]
            self._say(events, said)
            if self.stops.matched is None and (rest := self.stops.flush()):
                events.append(Text(rest))
            self.place = "calls"
            self._reader = CallReader(self._marks, self.call_count, one=self._calls == "one")
            return text[at + len(mark) :]
        if self._blank and mark.startswith(text.lstrip()):
            self._held = text
            return None
        self._blank = False
        keep = max(overlap(text, mark), overlap(text, "\n" + mark))
        self._say(events, text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return None

    def _in_calls(self, text: str, events: list[Event]) -> str | None:
        reader = self._reader
        assert reader is not None
        events += reader.feed(text)
        if reader.rest is None:
            return None
        self._leave_calls(reader)
        if reader.unread:
            self._blank = False
            self._say(events, self._gap + self._marks.call + reader.unread)
        return reader.rest

    def _leave_calls(self, reader: CallReader) -> None:
        self.call_count = reader.next_index
        self.place, self._reader, self._blank = "text", None, True

    def _think(self, events: list[Event], text: str) -> None:
        if text:
            events.append(Thinking(self._marks.spelled(text)))

    def _say(self, events: list[Event], text: str) -> None:
        if text and (shown := self.stops.push(self._marks.spelled(text))):
            events.append(Text(shown))


class MarkupParser:
    """Answers with reasoning or tool calls in their text. See `recipe.parser.OutputParser`."""

    __slots__ = (
        "_control",
        "_detokenizer",
        "_ended",
        "_read_as",
        "_reader",
        "_stop_token_ids",
        "reasoning_tokens",
    )

    def __init__(self, tokenizer: Tokenizer, marks: Marks, prompt: Prompt, *, may_think: bool) -> None:
        self.reasoning_tokens = 0
        self._detokenizer = Detokenizer(tokenizer)
        self._control = tokenizer.added.control
        self._read_as = marks.tokens(tokenizer.added)
        self._stop_token_ids = frozenset(prompt.stop_token_ids)
        self._ended = False
        place: Place = "thinking" if prompt.starts_thinking else "text"
        if may_think and place == "text" and not prompt.continues:
            place = "start"
        self._reader = MarkupReader(marks, place, prompt.calls, prompt.stop, continues=prompt.continues)

    @property
    def stopped(self) -> bool:
        """See `OutputParser`."""
        return self._reader.stopped

    def push(self, token_ids: Sequence[int]) -> list[Event]:
        """See `OutputParser`. Control tokens that mark nothing stand for no text."""
        events: list[Event] = []
        reader = self._reader
        done = 0
        while reader.place in ("start", "thinking") and done < len(token_ids):
            # One by one, to know which of them are reasoning.
            thought = reader.place == "thinking"
            events += self._read(token_ids[done : done + 1])
            self.reasoning_tokens += thought or reader.place == "thinking"
            done += 1
        return events + self._read(token_ids[done:])

    def finish(self, reason: FinishReason) -> list[Event]:
        """See `OutputParser`."""
        reader = self._reader
        events = reader.feed(self._detokenizer.flush())
        if not reader.stopped:
            events += reader.end(reason)
        if reader.stopped:
            reason = "stop"
        calls = reader.call_count > 0 and reason == "stop"
        return [*events, Finish("tool_calls" if calls else reason, reader.stops.matched)]

    def _read(self, token_ids: Sequence[int]) -> list[Event]:
        if self._ended or self._reader.stopped:
            return []
        text = ""
        visible: list[int] = []
        for token_id in token_ids:
            if token_id in self._stop_token_ids:
                self._ended = True
                break
            mark = self._read_as.get(token_id)
            if mark is not None:
                text += self._detokenizer.push(visible) + self._detokenizer.flush() + mark
                visible = []
            elif token_id not in self._control:
                visible.append(token_id)
        return self._reader.feed(text + self._detokenizer.push(visible))
