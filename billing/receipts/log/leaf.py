"""Leaves in the making: receipts of recorded events, salted, in an order that tells nothing."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from billing.receipts.document import ReceiptDocument
from billing.receipts.receipt import Kept, Receipt
from billing.receipts.sealed import NONCE_BYTES, leaf_of
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt

_shuffle: Final = secrets.SystemRandom().shuffle


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with what workers attest of it by now; ``event`` has its columns by their names."""

    event: Mapping[str, Any]
    attested: tuple[Kept, ...]

    @property
    def recorded_at(self) -> datetime:
        """When its transaction began."""
        at: datetime = self.event["recorded_at"]
        return at

    def receipt(self) -> ReceiptDocument:
        """Its receipt, graded; one that is contradicted has no grade, and a finding."""
        event = self.event
        usage = TokenUsage(
            *(event[name] for name in ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output"))
        )
        attempts = tuple(Attempt(*fields) for fields in sorted(event["attempts"]))
        attestations = tuple(kept.attestation for kept in self.attested)
        known = Receipt.of(event["request_id"], usage, attempts, attestations)
        return ReceiptDocument(
            request_id=event["request_id"],
            tenant_id=event["tenant_id"],
            key_id=event["key_id"],
            model=event["model"],
            traffic_class=event["traffic_class"],
            status=event["status"],
            admitted_at=event["admitted_at"],
            rated_at=event["rated_at"],
            usage=usage,
            reasoning_tokens=event["reasoning"],
            charge=event["charge"],
            currency=event["currency"],
            price_row_id=event["price_row_id"],
            window=event["price_window"],
            tier=event["tier"],
            attempts=attempts,
            grade=known.grade,
            finding=known.finding,
            attestations=tuple(kept.document for kept in self.attested),
        )


@dataclass(frozen=True, slots=True)
class Leaf:
    """A receipt's place to be; ``nonce`` and ``receipt`` are None when they are erased."""

    request_id: UUID
    tenant_id: str
    rated_at: datetime
    leaf: bytes
    nonce: bytes | None
    receipt: bytes | None

    @classmethod
    def of(cls, recorded: Recorded) -> "Leaf":
        """Salted anew each time."""
        nonce, event, receipt = (
            secrets.token_bytes(NONCE_BYTES),
            recorded.event,
            recorded.receipt().to_bytes(),
        )
        leaf = leaf_of(nonce, receipt)
        return cls(event["request_id"], event["tenant_id"], event["rated_at"], leaf, nonce, receipt)


def shuffled(recorded: Iterable[Recorded]) -> Sequence[Leaf]:
    """Their leaves; whose is where says nothing of when it was."""
    leaves = [Leaf.of(one) for one in recorded]
    _shuffle(leaves)
    return leaves
