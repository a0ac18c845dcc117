"""Token ids of what was encoded before, by cache scope and content.

An agent sends its whole conversation with every turn. What lies between two control tokens encodes by itself,
so of the n-th turn only the new messages are left to encode.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

# What ids depend on beside the model: a text, or the texts that one is made of.
Segment = str | tuple[str, ...]
_Key = tuple[str, Segment]

BYTES_MAX: Final = 64 * 2**20
# What an entry takes beside its texts and ids: the tuples of its key, its places in an ordered dictionary.
_ENTRY_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class MemoCounts:
    """Bytes that a memo holds, and segments it found and missed since it was made."""

    bytes_held: int
    found: int
    missed: int


class EncodeMemo:
    """Ids by (scope, segment); what was used longest ago is forgotten first. Safe to share between threads.

    Nobody finds what another scope has left, so the time of an answer tells nobody what others have asked.
    No segment is too short to be kept: finding one takes half as long as encoding a single character.

    Args:
        bytes_max: of texts, ids and what keeping them takes; 0 keeps nothing. The numbers that ids are made
            of do not count: all entries share them, one for each id of the vocabulary.
    """

    __slots__ = ("_bytes_held", "_entries", "_found", "_lock", "_missed", "_numbers", "bytes_max")

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max: Final = bytes_max
        self._bytes_held = self._found = self._missed = 0
        self._entries: OrderedDict[_Key, tuple[int, ...]] = OrderedDict()
        self._numbers: dict[int, int] = {}
        self._lock = Lock()

    @property
    def counts(self) -> MemoCounts:
        """As they are now."""
        with self._lock:
            return MemoCounts(self._bytes_held, self._found, self._missed)

    def ids(
        self, scope: str, segments: Sequence[Segment], encode: Callable[[int], Sequence[int]]
    ) -> list[tuple[int, ...]]:
        """The ids of each segment: those kept for this scope, else ``encode`` of its place, kept from now on.

        Raises as ``encode`` does; what it made before is kept.
        """
        keys = [(scope, segment) for segment in segments]
        return [
            self._keep(keys[place], encode(place)) if known is None else known
            for place, known in enumerate(self._find(keys))
        ]

    def _find(self, keys: Sequence[_Key]) -> list[tuple[int, ...] | None]:
        entries = self._entries
        with self._lock:
            known = list(map(entries.get, keys))
            for key, token_ids in zip(keys, known, strict=True):
                if token_ids is not None:
                    entries.move_to_end(key)
            missed = known.count(None)
            self._missed += missed
            self._found += len(known) - missed
        return known

    def _keep(self, key: _Key, encoded: Sequence[int]) -> tuple[int, ...]:
        token_ids = tuple(map(self._numbers.setdefault, encoded, encoded))
        size = _size(key, token_ids)
        if size > self.bytes_max:
            return token_ids
        with self._lock:
            if key not in self._entries:  # else another thread was faster
                self._entries[key] = token_ids
                self._bytes_held += size
            while self._bytes_held > self.bytes_max:
                self._bytes_held -= _size(*self._entries.popitem(last=False))
        return token_ids


def _size(key: _Key, token_ids: tuple[int, ...]) -> int:
    """Bytes that an entry takes."""
    scope, segment = key
    texts = (segment,) if isinstance(segment, str) else segment
    return _ENTRY_BYTES + sum(map(sys.getsizeof, (scope, *texts, token_ids)))
