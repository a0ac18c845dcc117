"""An export that was asked for, and how far it is."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from billing.reports.export.order import ExportOrder

Status = Literal["waiting", "running", "done", "failed", "expired", "deleted"]

UNFINISHED: Final[tuple[Status, ...]] = ("waiting", "running")


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """``attempt`` counts who has begun it. Of a file: its rows, size and digest, and until when it is kept.

    ``reason`` says why the last attempt failed; while ``status`` is waiting there will be another.
    """

    id: str
    order: ExportOrder
    created_at: datetime
    created_by: str
    status: Status
    attempt: int
    rows: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    reason: str | None = None

    @property
    def stored_name(self) -> str:
        """Its file's in the folder: each attempt has its own."""
        return f"{self.id}.{self.attempt}"
