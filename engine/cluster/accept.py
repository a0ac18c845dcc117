"""Whether a prefill's attestation answers the question: who signed it, and of which request it speaks."""

from collections.abc import Mapping
from typing import Any

from engine.cluster.request import GenerateRequest
from engine.errors import WorkerAnswerInvalid
from engine.proof import signed
from engine.proof.attestation import PrefillAttestation, commitment
from engine.proof.certificate import WorkerCertificate, worker_ring
from engine.proof.signed import ProofInvalid
from engine.wire import AnswerParams, WireInvalid


class Acceptance:
    """Accepts attestations signed by certified workers about the request that was really sent.

    Certificates come with the answers, so a worker may change its key when it restarts; each is verified
    once.

    Raises:
        ProofInvalid: the deployment's key is no Ed25519 public key.
    """

    def __init__(self, deployment_public_key: bytes) -> None:
        self._deployment = signed.public_key(deployment_public_key)
        self._known: dict[str, tuple[str, Mapping[str, WorkerCertificate]]] = {}

    def accept(
        self, worker: str, request: GenerateRequest, attempt: int, returned: Mapping[str, Any]
    ) -> tuple[PrefillAttestation, str]:
        """Return the attestation and its signed text.

        Args:
            worker: whom the request was sent to.
            request: what was sent.
            attempt: which try it was, from 0.
            returned: the `kv_transfer_params` of the answer.

        Raises:
            WorkerAnswerInvalid: no attestation, a signature that does not hold, or a statement about another
                worker, request, try or prompt.
        """
        try:
            answer = AnswerParams.from_params(returned)
            attestation = PrefillAttestation.verify(
                answer.attestation, self._ring(worker, answer.certificate)
            )
        except (WireInvalid, ProofInvalid) as error:
            raise WorkerAnswerInvalid(worker, f"an attestation that does not hold: {error}") from error
        asked = {
            "worker": worker,
            "request_id": request.request_id,
            "attempt": attempt,
            "stage": "prefill",
            "prompt_tokens": len(request.prompt_ids),
            "retention_class": request.retention_class,
            "memo": request.memo,
            "prompt_commitment": commitment(request.nonce, request.prompt_ids),
            "cached_prefix_commitment": commitment(
                request.nonce, request.prompt_ids[: attestation.hit_tokens]
            ),
        }
        # Values stay out of the message: a memo and a commitment are the tenant's.
        wrong = [name for name, value in asked.items() if getattr(attestation, name) != value]
        if wrong:
            raise WorkerAnswerInvalid(
                worker, f"an attestation with another {', '.join(wrong)} than asked for"
            )
        return attestation, answer.attestation

    def _ring(self, worker: str, certificate: str) -> Mapping[str, WorkerCertificate]:
        """Return the ring of a worker's latest certificate; one is kept a worker, however many it shows."""
        known = self._known.get(worker)
        if known is None or known[0] != certificate:
            known = self._known[worker] = (certificate, worker_ring([certificate], self._deployment))
        return known[1]
