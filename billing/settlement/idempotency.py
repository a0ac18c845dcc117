"""Which request has answered an idempotency key. The answer itself is not kept here."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

KEPT_FOR: Final = timedelta(hours=24)
# The constraint that a second answer under one key breaks: neither it nor its charge is stored.
ANSWERED: Final = "pk_idempotency_record"


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """``lost``: the request was charged, but its process died before anybody had the whole answer."""

    tenant_id: str
    key_digest: bytes
    body_digest: bytes
    request_id: UUID
    created_at: datetime
    status: Literal["completed", "lost"] = "completed"

    @property
    def expires_at(self) -> datetime:
        """When the key means nothing any more."""
        return self.created_at + KEPT_FOR
