"""A receipt as far as it is known: the attempts that were billed, what workers attest, and how both agree."""

import logging
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self
from uuid import UUID

import msgspec

from billing.usage import TokenUsage
from engine.proof.attestation import DECODE_KIND, Attestation, DecodeAttestation, PrefillAttestation
from engine.proof.coverage import Attempt, CoverageBroken, Grade, grade
from engine.proof.signed import PayloadInvalid

Kind = Literal["prefill", "decode"]


class Attested(Protocol):
    """A signed document, verified, and what it says."""

    @property
    def document(self) -> str:
        """JSON text, as it was signed."""

    @property
    def attestation(self) -> Attestation:
        """What was read from it."""


class Journaled(Attested, Protocol):
    """One that came by a worker's journal, and so with the certificate of the key that signed it."""

    @property
    def certificate(self) -> str:
        """JSON text, as the deployment signed it."""


class _Signed(msgspec.Struct):
    key_id: str
    payload: dict[str, Any]


_SIGNED: Final = msgspec.json.Decoder(_Signed)
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """A document that was verified when it was kept, and the key that signed it."""

    document: str
    key_id: str
    attestation: Attestation

    @classmethod
    def read(cls, document: str) -> Self | None:
        """None for a kind of another version."""
        signed = _SIGNED.decode(document)
        kind = DecodeAttestation if signed.payload.get("kind") == DECODE_KIND else PrefillAttestation
        try:
            return cls(document, signed.key_id, kind.from_payload(signed.payload))
        except PayloadInvalid as invalid:
            _log.warning("attestation of another version", extra={"why": str(invalid)})
            return None


@dataclass(frozen=True, slots=True)
class Receipt:
    """``usage`` is None as long as the request has no event, and then it has no attempts.

    ``attestations`` are all there are, of attempts that were not accepted too. ``grade`` is None exactly when
    what was billed contradicts what is attested; ``finding`` says how.
    """

    request_id: UUID
    usage: TokenUsage | None
    attempts: tuple[Attempt, ...]
    attestations: tuple[Attestation, ...]
    grade: Grade | None
    finding: str | None

    @property
    def workers(self) -> tuple[str, ...]:
        """Who attests something of it."""
        return tuple(sorted({attestation.worker for attestation in self.attestations}))

    @classmethod
    def of(
        cls,
        request_id: UUID,
        usage: TokenUsage | None,
        attempts: tuple[Attempt, ...],
        attestations: tuple[Attestation, ...],
    ) -> "Receipt":
        """Grade what is known."""
        try:
            grading: Grade | None = grade(attempts, attestations)
            finding = None if usage is None else _contradiction(usage, attempts, attestations)
        except CoverageBroken as broken:
            finding = str(broken)
        if finding is not None:
            grading = None
        return cls(request_id, usage, attempts, attestations, grading, finding)


def kind_of(attestation: Attestation) -> Kind:
    """Prefill or decode: an attempt has at most one attestation of each."""
    return "prefill" if isinstance(attestation, PrefillAttestation) else "decode"


def _contradiction(
    usage: TokenUsage, attempts: tuple[Attempt, ...], attestations: tuple[Attestation, ...]
) -> str | None:
    """How the billed prompt differs from the one that the accepted prefill attests."""
    prefilled = {attempt.attempt for attempt in attempts if attempt.stage != "decode"}
    for attestation in attestations:
        if isinstance(attestation, PrefillAttestation) and attestation.attempt in prefilled:
            attested = TokenUsage.of(attestation, usage.output)
            if attested != usage:
                return f"billed is {usage}, attested {attested}"
    return None
