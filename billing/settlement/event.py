"""The usage event: one for each request that is to be billed, under its request id."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from billing.errors import UsageInvalid
from billing.pricing.rating import Charge
from billing.usage import TokenUsage

Status = Literal["completed", "aborted", "failed"]


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """What a request used and cost. ``attestations`` are the accepted signed documents, as JSON text.

    Raises:
        UsageInvalid: more reasoning tokens than output, or rated at another instant than its charge.
    """

    request_id: UUID
    tenant_id: str
    key_id: str
    model: str
    status: Status
    admitted_at: datetime
    rated_at: datetime
    usage: TokenUsage
    reasoning_tokens: int
    charge: Charge
    traffic_class: str
    attestations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.reasoning_tokens <= self.usage.output:
            raise UsageInvalid(
                f"{self.reasoning_tokens} reasoning tokens in an output of {self.usage.output}"
            )
        if self.rated_at != self.charge.rated_at:
            raise UsageInvalid(f"rated at {self.rated_at}, charged at {self.charge.rated_at}")
