"""Signs what this worker's prefill did. The journal for streams and decode's attestations come later."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.proof import signed
from engine.proof.attestation import PrefillAttestation, commitment
from engine.wire import AnswerParams, RequestParams
from engine.worker import clock


@dataclass(frozen=True, slots=True)
class PrefillFacts:
    """What the scheduler saw of one prefill.

    Hits are whole blocks, from the start of the prompt; owed ones follow them: computed again, but promised.
    """

    prompt_ids: Sequence[int]
    hit_device_tokens: int
    hit_store_tokens: int
    promised_until: int | None
    owed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Attestor:
    """A worker's voice: its name, key and certificate, and the namespace it computes in."""

    worker: str
    key: Ed25519PrivateKey
    certificate: str
    namespace: str
    block_tokens: int

    @classmethod
    def of(
        cls, worker: str, key_file: Path, certificate_file: Path, namespace: str, block_tokens: int
    ) -> Self:
        """Read key and certificate; raises OSError or PayloadInvalid."""
        key = signed.private_key(key_file.read_bytes())
        return cls(worker, key, certificate_file.read_text(), namespace, block_tokens)

    def attest(self, params: RequestParams, facts: PrefillFacts) -> AnswerParams:
        """The signed attestation of one prefill; raises PayloadInvalid for impossible counts."""
        hit_tokens = facts.hit_device_tokens + facts.hit_store_tokens
        attestation = PrefillAttestation(
            request_id=params.request_id,
            attempt=params.attempt,
            stage=cast('Literal["prefill", "both"]', params.stage),
            worker=self.worker,
            namespace=self.namespace,
            prompt_tokens=len(facts.prompt_ids),
            hit_tokens=hit_tokens,
            owed_tokens=facts.owed_tokens,
            hit_device_tokens=facts.hit_device_tokens,
            hit_store_tokens=facts.hit_store_tokens,
            block_tokens=self.block_tokens,
            retention_class=params.retention_class,
            promised_until=facts.promised_until,
            prompt_commitment=commitment(params.nonce, facts.prompt_ids),
            cached_prefix_commitment=commitment(params.nonce, facts.prompt_ids[:hit_tokens]),
            memo=params.memo,
            attested_at_ns=clock.time_ns(),
        )
        return AnswerParams(attestation.sign(self.key), self.certificate)
