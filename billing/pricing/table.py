"""A table of a TOML price book: its values, or what is wrong with them and on which line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from billing.errors import PriceInvalid
from billing.money import rate_of
from billing.pricing.lines import Lines, Path

RATE_MIN: Final = rate_of("0.001")  # less is a price per token, typed where one per 1M tokens was meant
RATE_MAX: Final = rate_of("100000")
YEARS: Final = range(2000, 2100)


@dataclass(frozen=True, slots=True)
class Source:
    """The file that a book is read from, by the name that errors call it."""

    file: str
    lines: Lines


@dataclass(frozen=True, slots=True)
class Table:
    """Values by key. Every reader raises PriceInvalid with the file and the line of the key that is wrong."""

    values: Mapping[str, Any]
    source: Source
    path: Path = ()

    def fault(self, reason: str, key: str | None = None) -> PriceInvalid:
        """The error to raise, about a key or the whole table."""
        place = "".join(f" {part}" if isinstance(part, int) else f", {part}" for part in self.path)[2:]
        path = self.path if key is None else (*self.path, key)
        named = ".".join(part for part in (place, key) if part) or "price book"
        return PriceInvalid(named, reason, self.source.file, self.source.lines.line(path))

    def only(self, known: set[str]) -> None:
        """Refuse keys that mean nothing here."""
        unknown = sorted(self.values.keys() - known)
        if unknown:
            raise self.fault("unknown key", unknown[0])

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        """A text that is there, not empty, and of this form."""
        text = self.values.get(key)
        if not isinstance(text, str) or not text:
            raise self.fault("missing" if text is None else "must be a text in quotes", key)
        if pattern is not None and pattern.fullmatch(text) is None:
            raise self.fault(f"{text!r} does not look like a {key}", key)
        return text

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """One of these texts."""
        text = self.text(key)
        if text not in choices:
            raise self.fault(f"{text!r} is none of {', '.join(choices)}", key)
        return text

    def texts(self, key: str) -> list[str]:
        """A list of texts that is there and not empty."""
        texts = self.values.get(key)
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise self.fault("must be a list of texts", key)
        return texts

    def instant(self, key: str) -> datetime:
        """An instant that is there, in UTC."""
        instant = self.values.get(key)
        if not isinstance(instant, datetime) or instant.tzinfo is None or instant.microsecond:
            raise self.fault("must be an instant with an offset, in whole seconds", key)
        if instant.year not in YEARS:
            raise self.fault("is long before or after any price", key)
        return instant.astimezone(UTC)

    def rate(self, key: str) -> int:
        """A price per 1M tokens that is there, within what is sane, as femto-units per token."""
        text = self.text(key)
        try:
            rate = rate_of(text)
        except PriceInvalid as error:
            raise self.fault(error.reason, key) from error
        if rate and not RATE_MIN <= rate <= RATE_MAX:
            raise self.fault(f"{text} is no price per 1M tokens (0, or 0.001 to 100000)", key)
        return rate

    def tables(self, key: str) -> Iterator["Table"]:
        """The tables of an array, which may be absent."""
        tables = self.values.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            raise self.fault(f"must be an array of tables, [[{key}]]", key)
        for number, each in enumerate(tables, start=1):
            yield Table(each, self.source, (*self.path, key, number))

    def table(self, key: str) -> "Table":
        """A table that is there."""
        table = self.values.get(key)
        if not isinstance(table, dict):
            raise self.fault(f"must be a table, [{key}]", key)
        return Table(table, self.source, (*self.path, key))
