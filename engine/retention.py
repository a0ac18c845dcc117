"""Retention classes: how long a block that was published or loaded stays promised.

Loading or publishing a block renews its promise; looking it up does not. What a promise is worth when a block
goes early is in `engine.store.tombstone`.
"""

from collections.abc import Mapping
from typing import Final

_DAY_S: Final = 86_400

RETENTION_S: Final[Mapping[str, int]] = {"agent": 3 * _DAY_S, "chat": 7 * _DAY_S}
DEFAULT_CLASS: Final = "chat"


def promise_end_s(retention_class: str, at_s: int, classes: Mapping[str, int] = RETENTION_S) -> int:
    """Unix second at which a promise made at ``at_s`` ends; an unknown class promises as the default does."""
    return at_s + classes.get(retention_class, classes.get(DEFAULT_CLASS, RETENTION_S[DEFAULT_CLASS]))
