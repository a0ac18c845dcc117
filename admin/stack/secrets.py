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
from engine.proof.signed import ProofInvalid, public_bytes

SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the stack must keep. Without the pepper every API key is void, without the salt every prefix.

    ``call`` is what callers of a worker prove to know; nothing kept depends on it: it is made when missing.
    """

    deployment: DeploymentKey = field(repr=False)
    salt: bytes = field(repr=False)
    pepper: bytes = field(repr=False)
    postgres: PostgresPasswords
    valkey_password: str = field(repr=False)
    call: bytes = field(repr=False)

    @property
    def deployment_public_key(self) -> bytes:
        """Raw Ed25519 public key of the deployment."""
        return public_bytes(self.deployment.public)


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
            deployment=DeploymentKey.from_pem((folder / "deployment.pem").read_bytes()),
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
    write_private(made / "deployment.pem", DeploymentKey.generate().to_pem())
    made.rename(folder)
