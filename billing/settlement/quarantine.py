"""Usage that cannot be, put aside: recorded for people to look at, never billed."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Quarantined:
    """``attestation`` is the text that a worker signed; None: it came with a journal, or there is none."""

    request_id: UUID
    tenant_id: str
    reason: str
    attestation: str | None
