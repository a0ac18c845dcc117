"""Whether what workers attest covers what a gateway accepted: the prompt once, the output without a gap.

The gateway says which attempts it accepted and how many tokens it had from each; workers say what they did.
A receipt is whole when each accepted attempt is attested; a killed worker attests nothing, and its range
has the gateway's count for a grade.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.proof.attestation import Attestation, DecodeAttestation, PrefillAttestation

Stage = Literal["prefill", "decode", "both"]
Grade = Literal["attested", "gateway-counted", "unattested"]


class CoverageBroken(Exception):
    """Accepted attempts that leave a gap or overlap, or an attestation of fewer tokens than were accepted."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One accepted call: its prompt, unless it only decodes, and its output ``[output_from, output_to)``."""

    attempt: int
    stage: Stage
    worker: str
    output_from: int
    output_to: int

    def __post_init__(self) -> None:
        if self.attempt < 0 or not 0 <= self.output_from <= self.output_to:
            raise CoverageBroken(f"attempt {self.attempt} with output {self.output_from} to {self.output_to}")


def output_tokens(attempts: Sequence[Attempt]) -> int:
    """Tokens that the attempts cover, from 0 on without a gap.

    Raises:
        CoverageBroken: a gap, an overlap, or no single prefill before the first output.
    """
    end = 0
    for attempt in sorted(attempts, key=lambda attempt: (attempt.output_from, attempt.attempt)):
        if attempt.output_from != end:
            raise CoverageBroken(f"attempt {attempt.attempt} begins at {attempt.output_from}, not at {end}")
        end = attempt.output_to
    prefills = [attempt for attempt in attempts if attempt.stage != "decode"]
    if len(prefills) > 1 or (end and not prefills):
        raise CoverageBroken(f"{len(prefills)} prefills for {end} output tokens")
    return end


def grade(attempts: Sequence[Attempt], attestations: Sequence[Attestation]) -> Grade:
    """How well the accepted attempts are attested.

    Raises:
        CoverageBroken: as `output_tokens`; or a worker attests an accepted attempt otherwise than the gateway
            had it: another worker or start, or fewer tokens than the gateway received.
    """
    output_tokens(attempts)
    if not attempts:
        return "unattested"
    prefills: Mapping[int, PrefillAttestation] = {
        a.attempt: a for a in attestations if isinstance(a, PrefillAttestation)
    }
    decodes: Mapping[int, DecodeAttestation] = {
        a.attempt: a for a in attestations if isinstance(a, DecodeAttestation)
    }
    proven = [
        _proven(attempt, prefills.get(attempt.attempt), decodes.get(attempt.attempt)) for attempt in attempts
    ]
    return "attested" if all(proven) else "gateway-counted"


def _proven(attempt: Attempt, prefill: PrefillAttestation | None, decode: DecodeAttestation | None) -> bool:
    for attestation in (prefill, decode):
        if attestation is not None and attestation.worker != attempt.worker:
            raise CoverageBroken(
                f"attempt {attempt.attempt} was of {attempt.worker}, not {attestation.worker}"
            )
    if attempt.stage == "prefill":
        if prefill is None:
            return False
        if not prefill.computed or prefill.output_to < attempt.output_to:
            raise CoverageBroken(f"attempt {attempt.attempt}: fewer tokens attested than accepted")
        return True
    if attempt.stage == "both" and prefill is None:
        return False
    if decode is None:
        return attempt.output_from == attempt.output_to
    if decode.output_from != attempt.output_from or decode.output_to < attempt.output_to:
        raise CoverageBroken(
            f"attempt {attempt.attempt}: output {decode.output_from} to {decode.output_to} attested,"
            f" {attempt.output_from} to {attempt.output_to} accepted"
        )
    return True
