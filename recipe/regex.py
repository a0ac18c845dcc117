"""Regular expressions that a grammar backend can enforce without stalling its engine core.

xgrammar masks tokens step by step, between the steps of all requests. Where an expression can read one text
in many ways it follows them all: on two cores, with 49,152 tokens, one mask of ``(.{1,60} ?){3}`` took
longer than 25 s, and one of an expression that is always of one mind 0.3 to 11 ms. So what passes here is
of one mind: the next character says where in the expression it belongs, and whether a repetition goes on.
Two freedoms cost nothing and stay: words that begin alike (``cat|car``), and a few ``.*`` outside all
repetitions (``.+@.+``).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Final

CHARS_MAX: Final = 512
POSITIONS_MAX: Final = 256
COUNT_MAX: Final = 1000
DEPTH_MAX: Final = 16
# A free `.*` may stand before that many others of its kind, and before short counts alone.
_FREE_MAX: Final = 4
_FREE_COUNT_MAX: Final = 16
# What checking an expression may cost, some 60 ms.
_COMPARED_MAX: Final = 20_000
_LAST: Final = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]

_DIGIT: Final[Ranges] = ((48, 57),)
_WORD: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Final[Ranges] = ((9, 13), (32, 32), (160, 160))
_ESCAPED: Final[Ranges] = ((0, 31), (34, 34), (92, 92))
_CONTROL: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_HEX: Final = {"x": 2, "u": 4}
_LITERAL: Final = frozenset("^$\\.*+?()[]{}|/-\"'#&~@!%,:;<>=_` ")
_GROUP_OPENINGS: Final = {"?=": "lookahead", "?!": "lookahead", "?<=": "lookbehind", "?<!": "lookbehind"}


class RegexRefused(ValueError):
    """An expression that is not served; the message says what of it, and where."""


@dataclass(frozen=True, slots=True)
class RegexSize:
    """What an expression costs to compile: its characters with repetitions written out, its highest count."""

    expanded: int
    count_max: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an expression: whether it may be empty, and at which positions it begins and ends.

    ``plain``: it repeats nothing; ``expanded``: its length with repetitions written out.
    """

    nullable: bool
    first: frozenset[int]
    last: frozenset[int]
    plain: bool = True
    expanded: int = 0


_EMPTY: Final = _Part(nullable=True, first=frozenset(), last=frozenset())


def check(pattern: str, *, in_json: bool = False) -> RegexSize:
    """Check an expression, which is to match a whole text; raises RegexRefused.

    ``in_json``: the text is a JSON string, in which xgrammar lets no pattern match what has to be escaped.
    """
    if not pattern:
        raise RegexRefused("it is empty")
    if len(pattern) > CHARS_MAX:
        raise RegexRefused(f"it has more than {CHARS_MAX} characters")
    return _Reader(pattern, _ESCAPED if in_json else ()).read()


class _Reader:
    """Reads an expression from left to right and refuses it where it stands."""

    def __init__(self, pattern: str, absent: Ranges) -> None:
        self._absent = absent
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._loops = 0
        self._chars: list[Ranges] = []
        self._follow: list[set[int]] = []
        self._free: set[int] = set()
        self._free_positions: set[int] = set()
        self._count_max = 1
        self._compared = 0

    def read(self) -> RegexSize:
        self._skip("^")
        whole = self._text.removesuffix("$")
        if (len(whole) - len(whole.rstrip("\\"))) % 2 == 0:  # else that $ is escaped
            self._text = whole
        part = self._alternatives()
        if self._at < len(self._text):
            raise self._refused("an unmatched )")
        if self._free and (len(self._free) > _FREE_MAX or self._count_max > _FREE_COUNT_MAX):
            raise RegexRefused(
                f"what ends its repetition at position {max(self._free)} may also belong to it: beside counts"
                f" above {_FREE_COUNT_MAX}, or more than {_FREE_MAX} times, that is not served"
            )
        return RegexSize(part.expanded, self._count_max)

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._skip("|"):
            part = self._sequence()
            if self._loops or not (part.plain and all(other.plain for other in parts)):
                for other in parts:
                    self._apart(other.first, part.first, "two alternatives begin alike")
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        return _Part(
            any(part.nullable for part in parts),
            frozenset().union(*(part.first for part in parts)),
            frozenset().union(*(part.last for part in parts)),
            all(part.plain for part in parts),
            sum(part.expanded for part in parts),
        )

    def _sequence(self) -> _Part:
        before = _EMPTY
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            begun = self._at
            part = self._repeated(self._atom(), begun)
            if before.nullable and not before.plain:
                self._goes_on(before.first, part.first, begun)
            for end in before.last:
                if not (before.plain and part.plain):
                    self._goes_on(self._follow[end], part.first, begun)
                self._follow[end] |= part.first
            before = _Part(
                before.nullable and part.nullable,
                before.first | part.first if before.nullable else before.first,
                before.last | part.last if part.nullable else part.last,
                before.plain and part.plain,
                before.expanded + part.expanded,
            )
            if before.expanded > COUNT_MAX * 10:
                raise self._refused("its repetitions are too long")
        return before

    def _goes_on(self, others: Iterable[int], first: frozenset[int], at: int) -> None:
        """Refuse a follower that may as well belong to what is before it, unless that is free to repeat."""
        rivals = {other for other in others if self._overlap((other,), first)}
        if not rivals:
            return
        self._free.add(at)
        if self._loops or not rivals <= self._free_positions:
            raise self._refused("what follows may also belong to what is before it", at)

    def _repeated(self, part: _Part, begun: int) -> _Part:
        bounds = self._quantifier()
        if bounds is None:
            return part
        least, most = bounds
        if part.nullable:
            raise self._refused("what is repeated may be empty", begun)
        if most is None or most > 1:
            for end in part.last:
                if self._overlap(self._follow[end], part.first):
                    raise self._refused("a repetition may also belong to the one around it", begun)
                if least != most:  # else it is known when it ends
                    self._follow[end] |= part.first
        if most is None or most == 1:
            self._free_positions |= part.first
        counted = most or least
        if most is not None:
            self._count_max = max(self._count_max, counted)
        elif least > 1:
            self._count_max = max(self._count_max, least)
        return _Part(least == 0, part.first, part.last, plain=False, expanded=part.expanded * max(counted, 1))

    def _quantifier(self) -> tuple[int, int | None] | None:
        """What follows an atom: least and most repetitions, most None for any number."""
        begun = self._at
        bounds: tuple[int, int | None]
        match self._text[self._at : self._at + 1]:
            case "*":
                bounds = (0, None)
            case "+":
                bounds = (1, None)
            case "?":
                bounds = (0, 1)
            case "{":
                end = self._text.find("}", self._at)
                least, comma, most = self._text[self._at + 1 : end].partition(",")
                if end < 0 or not _is_count(least) or not (_is_count(most) or not most):
                    raise self._refused("a { that counts nothing; write \\{ for the character")
                upper = int(most) if most else (None if comma else int(least))
                bounds, self._at = (int(least), upper), end
            case _:
                return None
        self._at += 1
        self._skip("?")  # a lazy repetition matches the same whole texts
        if self._text[self._at : self._at + 1] in ("*", "+", "?", "{"):
            raise self._refused("two repetitions in a row")
        least_count, most_count = bounds
        if max(least_count, most_count or 0) > COUNT_MAX:
            raise self._refused(f"a count above {COUNT_MAX}", begun)
        if most_count is not None and (most_count < least_count or most_count == 0):
            raise self._refused("a count that matches nothing", begun)
        return bounds

    def _atom(self) -> _Part:
        char = self._text[self._at]
        self._at += 1
        match char:
            case "(":
                return self._group()
            case "[":
                return self._position(self._set())
            case ".":
                return self._position(_inverted(((10, 10),)))
            case "\\":
                return self._position(self._escape())
            case "*" | "+" | "?" | "{":
                raise self._refused("a repetition of nothing", self._at - 1)
            case "^" | "$":
                raise self._refused(f"{char} in the middle", self._at - 1)
            case _:
                return self._position(((ord(char), ord(char)),))

    def _group(self) -> _Part:
        begun = self._at - 1
        if not self._skip("?:") and self._text.startswith("?", self._at):
            named = (name for form, name in _GROUP_OPENINGS.items() if self._text.startswith(form, self._at))
            raise self._refused(next(named, "a named group or a flag"), begun)
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._refused(f"groups nested deeper than {DEPTH_MAX}", begun)
        looped = self._is_looped(begun)
        self._loops += looped
        part = self._alternatives()
        self._loops -= looped
        if not self._skip(")"):
            raise self._refused("a ( without its )", begun)
        self._depth -= 1
        return part

    def _is_looped(self, begun: int) -> bool:
        """Whether the group that opens there is repeated, as far as its closing is in sight."""
        depth, at = 0, begun
        while at < len(self._text):
            char = self._text[at]
            if char == "\\":
                at += 1
            elif char == "[":
                at = max(at, self._text.find("]", at + 2))
            depth += (char == "(") - (char == ")")
            at += 1
            if depth == 0:
                return self._text[at : at + 1] in ("*", "+", "{")
        return False

    def _set(self) -> Ranges:
        """A character class, read behind its [."""
        begun = self._at - 1
        inverted = self._skip("^")
        ranges: list[tuple[int, int]] = []
        while True:
            if self._at >= len(self._text):
                raise self._refused("a [ without its ]", begun)
            if self._skip("]"):
                break
            if self._text.startswith("[:", self._at):
                raise self._refused("a class by its name")
            low = self._member()
            if (
                self._text[self._at : self._at + 1] == "-"
                and self._text[self._at + 1 : self._at + 2] not in ("", "]")
                and _is_one(low)
            ):
                self._at += 1
                high = self._member()
                if not _is_one(high) or high[0][0] < low[0][0]:
                    raise self._refused("a range that runs backwards, or ends in no character", begun)
                low = ((low[0][0], high[0][1]),)
            ranges.extend(low)
        if not ranges:
            raise self._refused("an empty class", begun)
        return _inverted(ranges) if inverted else tuple(ranges)

    def _member(self) -> Ranges:
        char = self._text[self._at]
        self._at += 1
        return self._escape() if char == "\\" else ((ord(char), ord(char)),)

    def _escape(self) -> Ranges:
        """What an escape stands for, read behind its backslash."""
        begun = self._at - 1
        char = self._text[self._at : self._at + 1]
        self._at += 1
        classes: dict[str, Callable[[], Ranges]] = {
            "d": lambda: _DIGIT,
            "w": lambda: _WORD,
            "s": lambda: _SPACE,
            "D": lambda: _inverted(_DIGIT),
            "W": lambda: _inverted(_WORD),
            "S": lambda: _inverted(_SPACE),
        }
        if char in classes:
            return classes[char]()
        if char in _CONTROL:
            return ((_CONTROL[char], _CONTROL[char]),)
        if char in _LITERAL and char:
            return ((ord(char), ord(char)),)
        if char in _HEX:
            digits = self._text[self._at : self._at + _HEX[char]]
            if len(digits) == _HEX[char] and all(digit in "0123456789abcdefABCDEF" for digit in digits):
                self._at += len(digits)
                if int(digits, 16):
                    return ((int(digits, 16), int(digits, 16)),)
        meaning = {
            "b": "a word boundary",
            "B": "a word boundary",
            "p": "a Unicode class",
            "P": "a Unicode class",
        }
        named = "a reference to a group" if char.isdigit() or char == "k" else "an unknown escape"
        raise self._refused(meaning.get(char, named), begun)

    def _position(self, chars: Ranges) -> _Part:
        if len(self._chars) == POSITIONS_MAX:
            raise RegexRefused(f"it has more than {POSITIONS_MAX} characters and classes")
        if self._absent and all(any(low >= a and high <= b for a, b in self._absent) for low, high in chars):
            raise self._refused("a character that JSON escapes", self._at - 1)
        self._chars.append(chars)
        self._follow.append(set())
        here = frozenset({len(self._chars) - 1})
        return _Part(nullable=False, first=here, last=here, expanded=1)

    def _apart(self, some: Iterable[int], others: Iterable[int], why: str) -> None:
        if self._overlap(some, others):
            raise self._refused(why)

    def _overlap(self, some: Iterable[int], others: Iterable[int]) -> bool:
        """Whether a character can be at a position of both."""
        some, others = tuple(some), tuple(others)
        self._compared += len(some) * len(others)
        if self._compared > _COMPARED_MAX:
            raise self._refused("too many characters that may follow each other")
        return any(
            low <= other_high and other_low <= high
            for one, other in product(some, others)
            for (low, high), (other_low, other_high) in product(self._chars[one], self._chars[other])
        )

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _refused(self, what: str, at: int | None = None) -> RegexRefused:
        return RegexRefused(f"{what}, at position {self._at if at is None else at}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _inverted(ranges: Iterable[tuple[int, int]]) -> Ranges:
    left, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            left.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _LAST:
        left.append((start, _LAST))
    return tuple(left)
