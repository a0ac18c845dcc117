"""Deployments with one key, made for a test."""

from typing import Final

from engine.proof.certificate import DeploymentKey
from engine.proof.ring import DeploymentRing, RingSigner


def signer() -> RingSigner:
    """Of a new deployment."""
    key = DeploymentKey.generate()
    return RingSigner(DeploymentRing.of(key.public), key.private)


RING: Final = signer().ring.to_text()  # of a deployment that signs nothing
