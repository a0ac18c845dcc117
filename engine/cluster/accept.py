"""Whether a prefill's attestation answers the question: who signed it, and of which call it speaks."""

from collections.abc import Mapping

from engine.cluster.bodies import Call
from engine.errors import WorkerAnswerInvalid
from engine.proof.attestation import PrefillAttestation, commitment
from engine.proof.certificate import WorkerCertificate
from engine.proof.ring import DeploymentRing
from engine.proof.signed import ProofInvalid
from engine.wire import AnswerParams

Prefilled = tuple[PrefillAttestation, str]


class Rings:
    """The keys whose word counts, by the certificates that come with the answers.

    A worker may change its key when it restarts, so each certificate is verified when it is first shown; one
    is kept a worker, however many it shows. What it signed before the deployment's key was rotated comes with
    a certificate that the key before had issued in its time.
    """

    def __init__(self, deployment: DeploymentRing) -> None:
        self._deployment = deployment
        self._known: dict[str, tuple[str, Mapping[str, WorkerCertificate]]] = {}

    def of(self, worker: str, certificate: str) -> Mapping[str, WorkerCertificate]:
        """Return the ring of one certificate that a worker shows; raises ProofInvalid."""
        known = self._known.get(worker)
        if known is None or known[0] != certificate:
            verified = WorkerCertificate.verify_by_ring(certificate, self._deployment)
            known = self._known[worker] = (certificate, {verified.key_id: verified})
        return known[1]


class Acceptance:
    """Accepts attestations signed by certified workers about the call that was really sent."""

    def __init__(self, deployment: DeploymentRing) -> None:
        self._rings = Rings(deployment)

    def accept(self, worker: str, call: Call, answer: AnswerParams) -> Prefilled:
        """Return the attestation and its signed text.

        Args:
            worker: whom the call was sent to.
            call: what was sent.
            answer: what the worker attests of it.

        Raises:
            WorkerAnswerInvalid: a signature that does not hold, or a statement about another worker, request,
                call or prompt, or one that was not computed.
        """
        try:
            attestation = PrefillAttestation.verify(
                answer.attestation, self._rings.of(worker, answer.certificate)
            )
        except ProofInvalid as error:
            raise WorkerAnswerInvalid(worker, f"an attestation that does not hold: {error}") from error
        request = call.request
        images = [(image.offset, image.digest) for image in request.images]
        asked = {
            "worker": worker,
            "request_id": request.request_id,
            "attempt": call.attempt,
            "stage": call.stage,
            "computed": True,
            "output_to": int(call.first_token),
            "prompt_tokens": len(request.prompt_ids),
            "retention_class": request.retention_class,
            "memo": request.memo,
            "prompt_commitment": commitment(request.nonce, request.prompt_ids, images),
            "cached_prefix_commitment": commitment(
                request.nonce, request.prompt_ids[: attestation.hit_tokens], images
            ),
        }
        # Values stay out of the message: a memo and a commitment are the tenant's.
        wrong = [name for name, value in asked.items() if getattr(attestation, name) != value]
        if wrong:
            raise WorkerAnswerInvalid(
                worker, f"an attestation with another {', '.join(wrong)} than asked for"
            )
        return attestation, answer.attestation
