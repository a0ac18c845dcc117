"""Tool calls that a model writes as JSON between two marks, to events while they are written."""

import re
from typing import Final, Literal

import msgspec

from recipe.events import Event, ToolArguments, ToolCall
from recipe.json_value import JsonValue
from recipe.marks import Marks
from recipe.parser import overlap

_BETWEEN: Final = re.compile(r"[\s,\[\]}]*")  # also a list of calls, and one brace too many
_WITHIN: Final = re.compile(r"[\s,]*")
_KEY: Final = re.compile(r'("(?:[^"\\]|\\.)*")\s*:\s*(?=\S)', re.DOTALL)
_KEY_BEGUN: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:\\?|"\s*|"\s*:\s*)', re.DOTALL)
_ARGUMENTS: Final = ("arguments", "parameters")

Phase = Literal["between", "object", "value", "spilling"]


class CallReader:
    """The calls between one pair of marks: JSON objects of a name and arguments, one behind the other.

    A name is told as soon as it is known, and arguments as they come, in the model's own text. What is no
    call is left in `unread`, to be shown as text. Where that comes out only behind a name that was told, the
    rest is told as arguments, for the client to find malformed: nothing is lost, or called by halves.

    Attributes:
        rest: what follows the calls; None while they go on.
        unread: what was no call and is in no event; `rest` follows it.
        next_index: the index of the next call.
    """

    __slots__ = (
        "_early",
        "_key",
        "_marks",
        "_name",
        "_one",
        "_pending",
        "_phase",
        "_said",
        "_seen",
        "_value",
        "_value_text",
        "_whole",
        "next_index",
        "rest",
        "unread",
    )

    def __init__(self, marks: Marks, next_index: int, *, one: bool) -> None:
        self.next_index = next_index
        self.rest: str | None = None
        self.unread = ""
        self._marks = marks
        self._one = one
        self._whole = False  # a call is complete
        self._expect_call("")

    def _expect_call(self, pending: str) -> None:
        self._phase: Phase = "between"
        self._pending = pending  # not understood yet
        self._seen = pending  # all of this call, until its name is told
        self._name: str | None = None
        self._key = ""
        self._value: JsonValue | None = None
        self._value_text = ""
        self._early: str | None = None  # arguments that came before the name
        self._said = False  # arguments were told

    def feed(self, text: str) -> list[Event]:
        """Events that this text completes."""
        if self._name is None:
            self._seen += text
        self._pending += text
        events: list[Event] = []
        steps = {
            "between": self._between,
            "object": self._in_object,
            "value": self._in_value,
            "spilling": self._spilling,
        }
        while self.rest is None and steps[self._phase](events):
            pass
        return events

    def cut_off(self) -> str:
        """What is in no event, when nothing follows."""
        if self._name is not None or (self._whole and self._phase == "between"):
            return ""
        return self._seen

    def _between(self, _: list[Event]) -> bool:
        """Before a call. False, here and below: more has to come first."""
        text = _BETWEEN.sub("", self._pending, count=1)
        if text.startswith("{"):
            self._phase, self._pending = "object", text[1:]
            return True
        if text.startswith(self._marks.call_end):
            self._end(text[len(self._marks.call_end) :])
        elif not self._marks.call_end.startswith(text):
            self._fail(text)
        return False

    def _in_object(self, events: list[Event]) -> bool:
        """Before a key, or the end of the object."""
        text = self._pending = _WITHIN.sub("", self._pending, count=1)
        if found := _KEY.match(text):
            key = _string(found[1])
            self._key = "" if self._said and key in _ARGUMENTS else key
            self._value, self._value_text = JsonValue(text[found.end()], self._marks.call_end), ""
            self._phase, self._pending = "value", text[found.end() :]
            return True
        if text.startswith(("}", self._marks.call_end)):
            self._object_ends(events, text.removeprefix("}"))
            return True
        if text and not _KEY_BEGUN.fullmatch(text) and not self._marks.call_end.startswith(text):
            self._fail(text)
            return True
        return False

    def _in_value(self, events: list[Event]) -> bool:
        assert self._value is not None
        text = self._pending
        end = self._value.take(text)
        taken, self._pending = text[:end], text[end:]
        if self._key in _ARGUMENTS and self._value.kind == "{" and self._name is not None:
            self._tell_arguments(events, taken)
        else:
            self._value_text += taken
            if self._value.done:
                self._understand(events)
        if self._value.done:
            self._phase = "object"
        elif self._value.broken:
            self._broken(events)
            return self._phase == "spilling"
        return self._value.done

    def _broken(self, events: list[Event]) -> None:
        """Outside a string, the beginning of the closing mark: the value was left unfinished, or is none."""
        mark = self._marks.call_end
        if self._pending.startswith(mark) and self._name is not None:
            if self._key in _ARGUMENTS:
                self._tell_arguments(events, self._value_text)
            self._end(self._pending[len(mark) :])
        elif self._pending == mark or not mark.startswith(self._pending):
            self._fail(self._value_text + self._pending)

    def _understand(self, events: list[Event]) -> None:
        """A value is complete that was not told while it came."""
        text = self._marks.spelled(self._value_text)
        if self._key == "name" and self._name is None:
            name = _string(text)
            if not name:
                self._fail(self._pending)
                return
            self._name, self._seen = name, ""
            events.append(ToolCall(self.next_index, name))
            self.next_index += 1
            if self._early is not None:
                self._tell_arguments(events, self._early)
        elif self._key in _ARGUMENTS and text != "null":
            arguments = _string(text) if text.startswith('"') else text
            if self._name is None:
                self._early = arguments
            else:
                self._tell_arguments(events, arguments)

    def _tell_arguments(self, events: list[Event], text: str) -> None:
        if text:
            events.append(ToolArguments(self.next_index - 1, self._marks.spelled(text)))
            self._said = True

    def _object_ends(self, events: list[Event], rest: str) -> None:
        if self._name is None:
            self._fail(rest)
            return
        if not self._said:
            self._tell_arguments(events, "{}")
        self._whole = True
        self._expect_call(rest)
        if self._one:
            self._end(rest)

    def _fail(self, text: str) -> None:
        """What has been read since the last call is none."""
        if self._name is not None:
            self._phase, self._pending = "spilling", text
        elif self._whole and self._phase == "between":
            self._end(text)  # the closing mark was left out
        else:
            self.unread = self._seen[: len(self._seen) - len(text)]
            self._end(text)

    def _spilling(self, events: list[Event]) -> bool:
        mark = self._marks.call_end
        before, found, rest = self._pending.partition(mark)
        if found:
            self._tell_arguments(events, before)
            self._end(rest)
        else:
            keep = overlap(before, mark)
            self._tell_arguments(events, before[: len(before) - keep])
            self._pending = before[len(before) - keep :]
        return False

    def _end(self, rest: str) -> None:
        self.rest = rest


def _string(text: str) -> str:
    """The string that a JSON text is; empty when it is none."""
    try:
        return msgspec.json.decode(text.encode(errors="surrogatepass"), type=str)
    except msgspec.DecodeError:
        return ""
