"""Signs what this worker did: the prompts it had, the tokens it generated."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.proof import signed
from engine.proof.attestation import DecodeAttestation, Ended, PrefillAttestation, commitment
from engine.wire import RequestParams
from engine.worker import clock


@dataclass(frozen=True, slots=True)
class PrefillFacts:
    """What the scheduler saw of one prefill.

    ``prompt_ids`` is the client's prompt alone. Hits are whole blocks, from its start; owed ones follow them:
    computed again, but promised. ``output_to`` is 1 when the token it drew is the client's.
    """

    prompt_ids: Sequence[int]
    hit_device_tokens: int
    hit_store_tokens: int
    promised_until: int | None
    owed_tokens: int = 0
    computed: bool = True
    output_to: int = 0


@dataclass(frozen=True, slots=True)
class DecodeFacts:
    """What the scheduler saw of one decode; ``handoff_tokens`` are hits of prompt and carried output."""

    prompt_tokens: int
    handoff_tokens: int
    generated_tokens: int
    ended: Ended


@dataclass(frozen=True, slots=True)
class Attestor:
    """A worker's voice: its name, key and certificate, and the namespace it computes in ("": no store)."""

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

    def prefill(self, params: RequestParams, facts: PrefillFacts) -> str:
        """The signed attestation of one prefill; raises PayloadInvalid for impossible counts."""
        hit_tokens = facts.hit_device_tokens + facts.hit_store_tokens
        return PrefillAttestation(
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
            prompt_commitment=commitment(params.nonce, facts.prompt_ids, params.images),
            cached_prefix_commitment=commitment(params.nonce, facts.prompt_ids[:hit_tokens], params.images),
            memo=params.memo,
            attested_at_ns=clock.time_ns(),
            computed=facts.computed,
            output_to=facts.output_to,
        ).sign(self.key)

    def decode(self, params: RequestParams, facts: DecodeFacts) -> str:
        """The signed attestation of one decode; raises PayloadInvalid for impossible counts."""
        return DecodeAttestation(
            request_id=params.request_id,
            attempt=params.attempt,
            stage=cast('Literal["decode", "both"]', params.stage),
            worker=self.worker,
            namespace=self.namespace,
            prompt_tokens=facts.prompt_tokens,
            handoff_tokens=facts.handoff_tokens,
            output_from=params.output_from,
            output_to=params.output_from + facts.generated_tokens,
            ended=facts.ended,
            memo=params.memo,
            attested_at_ns=clock.time_ns(),
        ).sign(self.key)
