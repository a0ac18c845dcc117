"""Who signs for the deployment: heads of the receipt log, and the documents of invoicing."""

import stat

from admin.settings import Settings, SettingsInvalid
from engine.proof.certificate import DeploymentKey
from engine.proof.ring import DeploymentRing, RingSigner
from engine.proof.signed import ProofInvalid


def signer(known: Settings) -> RingSigner:
    """The deployment's ring with the private key that signs now.

    Raises:
        SettingsInvalid: no key, one that others of this machine may read, or another than the ring's.
    """
    file = known.deployment_key_file
    if file is None:
        raise SettingsInvalid("deployment_key_file is not set: nothing signs here")
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise SettingsInvalid(f"{file} may be read by others: give it mode 0600")
        private = DeploymentKey.from_pem(file.read_bytes()).private
        return RingSigner(DeploymentRing.read(known.deployment_ring), private)
    except (OSError, ProofInvalid) as error:
        raise SettingsInvalid(f"the deployment's key cannot sign: {error}") from error
