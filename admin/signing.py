"""Who may sign for the deployment on this machine: whoever can read its key."""

from admin.settings import Settings
from engine.proof.certificate import DeploymentKey
from engine.proof.ring import DeploymentRing, RingSigner


def signer_of(known: Settings) -> RingSigner:
    """The deployment's key, from the secrets of its data directory.

    Raises:
        OSError, PayloadInvalid: it is not there, or no key.
    """
    pem = (known.data_dir / "secrets" / "deployment.pem").read_bytes()
    key = DeploymentKey.from_pem(pem)
    return RingSigner(DeploymentRing.of(key.public), key.private)
