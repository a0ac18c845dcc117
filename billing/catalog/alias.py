"""Names that clients use, and the served model that answers to each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from billing.errors import AliasInvalid

ANY_END: Final = "*"  # the last character of a pattern that is a prefix
_NAME: Final = re.compile(r"[!-)+-~]{1,200}")


@dataclass(frozen=True, slots=True)
class Alias:
    """A row of the catalogue.

    Args:
        pattern: a name as clients write it, or the beginning of names and one ``*`` behind it.
        model: name of the served model that answers; never an alias itself.
        set_at: when the row became what it is.
        set_by: who made it so.
    """

    pattern: str
    model: str
    set_at: datetime
    set_by: str

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.pattern.removesuffix(ANY_END)) is None:
            raise AliasInvalid(self.pattern, "a name is wanted, or a beginning of names and one *")
        if _NAME.fullmatch(self.model) is None:
            raise AliasInvalid(self.pattern, f"{self.model!r} is no name of a model")

    @property
    def exact(self) -> bool:
        """Whether it is one name, which can be shown as a model."""
        return not self.pattern.endswith(ANY_END)


class Aliases:
    """All rows, as one reading found them."""

    def __init__(self, rows: Iterable[Alias]) -> None:
        self.rows = tuple(rows)
        self._exact = {row.pattern: row.model for row in self.rows if row.exact}
        prefixes = ((row.pattern.removesuffix(ANY_END), row.model) for row in self.rows if not row.exact)
        self._prefixes = sorted(prefixes, key=lambda each: len(each[0]), reverse=True)

    def resolve(self, name: str) -> str | None:
        """The model that answers to a name: its own row's, else that of its longest beginning, else None."""
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        return next((model for prefix, model in self._prefixes if name.startswith(prefix)), None)
