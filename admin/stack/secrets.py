"""Secrets of one data directory: made once, all at the same moment, each in a file of mode 0600."""

import secrets as random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from admin.settings import write_private
from admin.stack import valkey
from admin.stack.errors import SecretsBroken
from admin.stack.postgres import PostgresPasswords
from engine.proof.certificate import DeploymentKey
from engine.proof.ring import DeploymentRing, RingSigner
from engine.proof.signed import ProofInvalid, key_id_of

SECRET_BYTES: Final = 32
KEY: Final = "deployment.pem"
FOLLOWING_KEY: Final = "deployment.following.pem"  # while a rotation is under way
RING: Final = "deployment.ring.json"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the stack must keep. Without the pepper every API key is void, without the salt every prefix.

    ``deployment`` is all keys that the deployment has had, and the one that signs now. ``call`` is what
    callers of a worker prove to know; nothing kept depends on it: it is made when missing.
    """

    deployment: RingSigner
    salt: bytes = field(repr=False)
    pepper: bytes = field(repr=False)
    postgres: PostgresPasswords
    valkey_password: str = field(repr=False)
    call: bytes = field(repr=False)


def load_or_create(data_dir: Path) -> Secrets:
    """Read the secrets of a data directory; a fresh one gets new ones.

    Raises:
        SecretsBroken: some are missing or unreadable, or all are while the database they belong to is there.
    """
    folder = data_dir / "secrets"
    if not folder.exists():
        if (data_dir / "postgres").exists():
            raise SecretsBroken(
                f"{folder} is missing but {data_dir / 'postgres'} is there: restore it from a backup"
            )
        _create(folder)
    try:
        return Secrets(
            deployment=_deployment(folder),
            salt=bytes.fromhex((folder / "salt").read_text()),
            pepper=bytes.fromhex((folder / "pepper").read_text()),
            postgres=PostgresPasswords(
                (folder / "postgres_role").read_text(), (folder / "postgres_superuser").read_text()
            ),
            valkey_password=(folder / "valkey").read_text(),
            call=_call_secret(call_secret_file(data_dir)),
        )
    except (OSError, ValueError, ProofInvalid) as error:
        raise SecretsBroken(f"cannot read the secrets in {folder}: {error}") from error


def deployment_key_file(data_dir: Path) -> Path:
    """Where the private key lies that signs for the deployment now."""
    return data_dir / "secrets" / KEY


def deployment_ring(data_dir: Path) -> DeploymentRing:
    """All keys that the deployment has had; changes nothing, also while it runs.

    Raises:
        SecretsBroken: there are none here, or they are unreadable.
    """
    folder = data_dir / "secrets"
    try:
        if (folder / RING).exists():
            return DeploymentRing.read((folder / RING).read_text())
        return DeploymentRing.of(DeploymentKey.from_pem((folder / KEY).read_bytes()).public)
    except (OSError, ProofInvalid) as error:
        raise SecretsBroken(f"cannot read the keys in {folder}: {error}") from error


def rotate_deployment_key(data_dir: Path, at_s: int) -> DeploymentRing:
    """Give a deployment a new key, which signs from ``at_s`` on; the private one before is deleted.

    For who holds the data directory (`admin.stack.state.locked`). Whatever dies between two of these steps,
    the next start finishes them, or undoes the first.

    Raises:
        SecretsBroken: there are no secrets here, or they are unreadable.
    """
    folder = data_dir / "secrets"
    try:
        before = _deployment(folder)
        following = DeploymentKey.generate()
        ring = before.ring.rotated(before.private, following.public, at_s)
        write_private(folder / FOLLOWING_KEY, following.to_pem())
        write_private(folder / RING, ring.to_text().encode())
        _deployment(folder)
    except (OSError, ProofInvalid) as error:
        raise SecretsBroken(f"cannot rotate the key in {folder}: {error}") from error
    return ring


def _deployment(folder: Path) -> RingSigner:
    """The ring, and the private key of its present one; ends a rotation that was interrupted."""
    ring_file, present, following = folder / RING, folder / KEY, folder / FOLLOWING_KEY
    ring = deployment_ring(folder.parent)
    if not ring_file.exists():
        write_private(ring_file, ring.to_text().encode())
    if following.exists():
        if key_id_of(DeploymentKey.from_pem(following.read_bytes()).public) == ring.present.id:
            following.replace(present)
        else:
            following.unlink()
    return RingSigner(ring, DeploymentKey.from_pem(present.read_bytes()).private)


def call_secret_file(data_dir: Path) -> Path:
    """Where workers read, in hexadecimal, what their callers must know."""
    return data_dir / "workers" / "call.secret"


def _call_secret(file: Path) -> bytes:
    if not file.exists():
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(file, random.token_hex(SECRET_BYTES).encode())
    secret = bytes.fromhex(file.read_text())
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"{file.name} has not {SECRET_BYTES} bytes")
    return secret


def _create(folder: Path) -> None:
    made = folder.with_name(folder.name + ".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    passwords = PostgresPasswords.generate()
    texts = {
        "salt": random.token_hex(SECRET_BYTES),
        "pepper": random.token_hex(SECRET_BYTES),
        "postgres_role": passwords.role,
        "postgres_superuser": passwords.superuser,
        "valkey": valkey.generate_password(),
    }
    for name, text in texts.items():
        write_private(made / name, text.encode())
    write_private(made / KEY, DeploymentKey.generate().to_pem())
    made.rename(folder)
