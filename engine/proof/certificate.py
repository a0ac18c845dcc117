"""A deployment's key certifies its workers' keys; a worker's key signs what that worker did."""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from engine.proof import signed
from engine.proof.ring import DeploymentRing
from engine.proof.signed import PayloadInvalid

KIND: Final = "kvitto.worker-certificate.v1"


@dataclass(frozen=True, slots=True)
class DeploymentKey:
    """The private key of a deployment: certifies workers, nothing else."""

    private: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> Self:
        """A new random key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """Read what `to_pem` wrote; raises PayloadInvalid."""
        return cls(signed.private_key(pem))

    def to_pem(self) -> bytes:
        """PKCS#8 PEM for a file of mode 0600."""
        return signed.private_pem(self.private)

    @property
    def public(self) -> Ed25519PublicKey:
        """The key that verifies certificates; hand it to whoever checks."""
        return self.private.public_key()

    def certify(self, worker: str, worker_key: Ed25519PublicKey, issued_at_s: int) -> str:
        """Certificate text for a worker's public key, issued at a Unix second."""
        return WorkerCertificate.issue(self, worker, worker_key, issued_at_s)


@dataclass(frozen=True, slots=True)
class WorkerCertificate:
    """A verified statement: ``worker`` owns ``public_key``."""

    worker: str
    public_key: Ed25519PublicKey
    issued_at_s: int

    @property
    def key_id(self) -> str:
        """Key id that the worker's documents name."""
        return signed.key_id_of(self.public_key)

    @classmethod
    def issue(
        cls, deployment: DeploymentKey, worker: str, worker_key: Ed25519PublicKey, issued_at_s: int
    ) -> str:
        """Sign a certificate; returns its text."""
        return signed.sign(
            deployment.private,
            {
                "kind": KIND,
                "worker": worker,
                "public_key": base64.b64encode(signed.public_bytes(worker_key)).decode(),
                "issued_at_s": issued_at_s,
            },
        )

    @classmethod
    def verify(cls, text: str, deployment: Ed25519PublicKey) -> Self:
        """Read a certificate that ``deployment`` issued.

        Raises:
            SignatureInvalid: not signed by the deployment.
            PayloadInvalid: signed, but no worker certificate.
        """
        return cls._of(signed.verify(text, {signed.key_id_of(deployment): deployment}))

    @classmethod
    def verify_by_ring(cls, text: str, ring: DeploymentRing) -> Self:
        """Likewise, with the key that the deployment had when it was issued."""
        payload, key = ring.verify(text)
        certificate = cls._of(payload)
        key.check(certificate.issued_at_s)
        return certificate

    @classmethod
    def _of(cls, payload: dict[str, Any]) -> Self:
        match payload:
            case {
                "kind": kind,
                "worker": str(worker),
                "public_key": str(key),
                "issued_at_s": int(issued),
            } if kind == KIND:
                try:
                    raw = base64.b64decode(key, validate=True)
                except binascii.Error as error:
                    raise PayloadInvalid("public key is not base64") from error
                return cls(worker, signed.public_key(raw), issued)
            case _:
                raise PayloadInvalid("not a worker certificate")


def worker_ring(certificates: Iterable[str], deployment: Ed25519PublicKey) -> dict[str, WorkerCertificate]:
    """Verify certificates and key them by the key id that attestations name; raises ProofInvalid."""
    verified = (WorkerCertificate.verify(text, deployment) for text in certificates)
    return {certificate.key_id: certificate for certificate in verified}
