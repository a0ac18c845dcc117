"""The usage event: one for each request that is to be billed, under its request id."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from billing.errors import UsageInvalid
from billing.pricing.rating import Charge
from billing.receipts.receipt import Attested
from billing.settlement.idempotency import IdempotencyRecord
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt, CoverageBroken, output_tokens

Status = Literal["completed", "aborted", "failed"]


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """What a request used and cost.

    ``attempts`` are the accepted calls, with the output that the gateway received from each and bills; none
    when nothing is billed. ``attestations`` are those at hand; the others come with the workers' journals.
    ``answers`` is the idempotency key that this request is the answer to.

    Raises:
        UsageInvalid: more reasoning tokens than output, rated at another instant than its charge, or attempts
            that do not cover what is billed: its prompt once, its output without gap or overlap.
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
    attempts: tuple[Attempt, ...] = ()
    attestations: tuple[Attested, ...] = ()
    answers: IdempotencyRecord | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.reasoning_tokens <= self.usage.output:
            raise UsageInvalid(
                f"{self.reasoning_tokens} reasoning tokens in an output of {self.usage.output}"
            )
        if self.rated_at != self.charge.rated_at:
            raise UsageInvalid(f"rated at {self.rated_at}, charged at {self.charge.rated_at}")
        try:
            covered = output_tokens(self.attempts)
        except CoverageBroken as broken:
            raise UsageInvalid(str(broken)) from broken
        prompts = sum(attempt.stage != "decode" for attempt in self.attempts)
        if covered != self.usage.output or prompts != (self.usage.prompt > 0):
            raise UsageInvalid(
                f"attempts cover {covered} output tokens and {prompts} prompts;"
                f" billed are {self.usage.output} and a prompt of {self.usage.prompt}"
            )
