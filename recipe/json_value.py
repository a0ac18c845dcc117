"""Where a JSON value ends, found by its brackets and quotes alone, however it is cut."""

import re
from functools import cache
from typing import Final

_IN_STRING: Final = re.compile(r'["\\]')


@cache
def _structure(stop: str) -> re.Pattern[str]:
    return re.compile(rf'["{{}}\[\]{re.escape(stop)}]')


@cache
def _literal_end(stop: str) -> re.Pattern[str]:
    return re.compile(rf"[\s,{{}}\[\]{re.escape(stop)}]")


class JsonValue:
    """One value.

    Attributes:
        kind: its first character: ``{``, ``[`` or ``"``; anything else is a literal's.
        done: it is complete.
        broken: outside a string there is the first character of ``stop``, which no JSON has there.
    """

    __slots__ = ("_depth", "_escaped", "_in_string", "_stop", "broken", "done", "kind")

    def __init__(self, kind: str, stop: str) -> None:
        self.kind = kind
        self.done = False
        self.broken = False
        self._stop = stop[0]
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def take(self, text: str) -> int:
        """How much of ``text`` belongs to the value: all of it, unless it is then `done` or `broken`."""
        if self.kind not in '{["':
            found = _literal_end(self._stop).search(text)
            self.done = found is not None
            return found.start() if found else len(text)
        at = 0
        self.broken = False
        while at < len(text) and not self.done and not self.broken:
            at = self._string(text, at) if self._in_string else self._outside(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return len(text)
        self._escaped = found[0] == "\\"
        if not self._escaped:
            self._in_string = False
            self.done = self._depth == 0
        return found.end()

    def _outside(self, text: str, at: int) -> int:
        found = _structure(self._stop).search(text, at)
        if found is None:
            return len(text)
        match found[0]:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                self.done = self._depth <= 0
            case _:
                self.broken = True
                return found.start()
        return found.end()
