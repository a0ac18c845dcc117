"""Where the log ends: as its sequencer keeps it, and as it was signed."""

from dataclasses import dataclass
from datetime import datetime

from billing.receipts.head import TreeHead


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The leaves ``[0, size)`` are the receipts of just the events that were recorded before an instant."""

    size: int
    sealed_before: datetime


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A signed head. Its leaves are the receipts of the events recorded before ``cut``."""

    head: TreeHead
    cut: datetime
    document: str
