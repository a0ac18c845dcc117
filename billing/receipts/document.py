"""The receipt of a request as it is sealed, handed out and verified: canonical JSON (RFC 8785)."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self
from uuid import UUID

import msgspec

from billing.errors import BillingError, ReceiptInvalid
from billing.money import Femto
from billing.usage import Tier, TokenUsage
from engine.proof.coverage import Attempt, CoverageBroken, Grade
from engine.proof.signed import canonical

KIND: Final = "kvitto.receipt.v1"

Status = Literal["completed", "aborted", "failed"]


class _Attempt(msgspec.Struct, rename={"output_from": "from", "output_to": "to"}, forbid_unknown_fields=True):
    attempt: int
    stage: Literal["prefill", "decode", "both"]
    worker: str
    output_from: int
    output_to: int


class _Usage(msgspec.Struct, forbid_unknown_fields=True):
    cache_hit: int
    cache_owed: int
    cache_write: int
    cache_miss: int
    output: int
    reasoning: int


class _Written(msgspec.Struct, rename={"traffic_class": "class"}, forbid_unknown_fields=True):
    """The JSON. ``charge_femto`` is text, as RFC 8785 ends at 2^53; attestations are documents as signed."""

    kind: Literal["kvitto.receipt.v1"]
    request_id: UUID
    tenant: str
    key: str
    model: str
    traffic_class: str
    status: Status
    admitted_at: datetime
    rated_at: datetime
    usage: _Usage
    charge_femto: str
    currency: str
    price_row: str
    window: str
    tier: Tier
    attempts: list[_Attempt]
    grade: Grade | None
    finding: str | None
    attestations: list[msgspec.Raw]


_DECODER: Final = msgspec.json.Decoder(_Written)


@dataclass(frozen=True, slots=True)
class ReceiptDocument:
    """What was served, by whom, and what it cost.

    ``attestations`` are the workers' signed documents, of attempts that were not accepted too; whose are
    accepted is in ``attempts``. ``grade`` is None exactly when what was billed contradicts what is attested,
    and ``finding`` says how.
    """

    request_id: UUID
    tenant_id: str
    key_id: str
    model: str
    traffic_class: str
    status: Status
    admitted_at: datetime
    rated_at: datetime
    usage: TokenUsage
    reasoning_tokens: int
    charge: Femto
    currency: str
    price_row_id: str
    window: str
    tier: Tier
    attempts: tuple[Attempt, ...]
    grade: Grade | None
    finding: str | None
    attestations: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """The bytes that are sealed."""
        usage = self.usage
        return canonical(
            {
                "kind": KIND,
                "request_id": str(self.request_id),
                "tenant": self.tenant_id,
                "key": self.key_id,
                "model": self.model,
                "class": self.traffic_class,
                "status": self.status,
                "admitted_at": _instant(self.admitted_at),
                "rated_at": _instant(self.rated_at),
                "usage": {
                    "cache_hit": usage.cache_hit,
                    "cache_owed": usage.cache_owed,
                    "cache_write": usage.cache_write,
                    "cache_miss": usage.cache_miss,
                    "output": usage.output,
                    "reasoning": self.reasoning_tokens,
                },
                "charge_femto": str(self.charge),
                "currency": self.currency,
                "price_row": self.price_row_id,
                "window": self.window,
                "tier": self.tier,
                "attempts": [_attempt(attempt) for attempt in self.attempts],
                "grade": self.grade,
                "finding": self.finding,
                "attestations": [msgspec.json.decode(text) for text in self.attestations],
            }
        )

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Read what `to_bytes` wrote; nothing is verified but that the counts can be.

        Raises:
            ReceiptInvalid: anything else.
        """
        try:
            written = _DECODER.decode(raw)
            return cls._of(written)
        except (msgspec.MsgspecError, BillingError, CoverageBroken, ValueError) as error:
            raise ReceiptInvalid(str(error)) from error

    @classmethod
    def _of(cls, written: _Written) -> Self:
        used = written.usage
        if not (written.charge_femto.isascii() and written.charge_femto.isdigit()):
            raise ReceiptInvalid(f"charge_femto is {written.charge_femto!r}")
        if not 0 <= used.reasoning <= used.output:
            raise ReceiptInvalid(f"{used.reasoning} reasoning tokens in an output of {used.output}")
        if (written.grade is None) != (written.finding is not None):
            raise ReceiptInvalid("a receipt has a grade, or a finding")
        return cls(
            request_id=written.request_id,
            tenant_id=written.tenant,
            key_id=written.key,
            model=written.model,
            traffic_class=written.traffic_class,
            status=written.status,
            admitted_at=_aware(written.admitted_at),
            rated_at=_aware(written.rated_at),
            usage=TokenUsage(used.cache_hit, used.cache_owed, used.cache_write, used.cache_miss, used.output),
            reasoning_tokens=used.reasoning,
            charge=Femto(int(written.charge_femto)),
            currency=written.currency,
            price_row_id=written.price_row,
            window=written.window,
            tier=written.tier,
            attempts=tuple(
                Attempt(each.attempt, each.stage, each.worker, each.output_from, each.output_to)
                for each in written.attempts
            ),
            grade=written.grade,
            finding=written.finding,
            attestations=tuple(bytes(each).decode() for each in written.attestations),
        )


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "stage": attempt.stage,
        "worker": attempt.worker,
        "from": attempt.output_from,
        "to": attempt.output_to,
    }


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _aware(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ReceiptInvalid("an instant without a time zone")
    return at
