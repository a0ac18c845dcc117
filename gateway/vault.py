"""Answers and secrets at rest: compressed, encrypted under a key of this deployment, bound to their name."""

import asyncio
import base64
import hmac
import secrets
import zlib
from collections.abc import Callable
from typing import Final, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE_BYTES: Final = 12
KEY_BYTES: Final = 32
WEBHOOKS: Final = "secrets of webhooks"
# Work on more than this is kept off the event loop.
THREAD_BYTES: Final = 64 * 1024


Text = TypeVar("Text", bytes, str)
Result = TypeVar("Result")


class Vault:
    """Seals bytes (AES-256-GCM) and names what must not be read from a name (HMAC-SHA-256).

    Args:
        secret: of the deployment; another one makes all that is kept unreadable.
        of: what is sealed. What is sealed as one thing does not open as another.
    """

    def __init__(self, secret: bytes, of: str = "kept answers") -> None:
        self._cipher = AESGCM(_derived(secret, f"kvitto: {of}".encode()))
        self._naming = _derived(secret, f"kvitto: names of {of}".encode())

    def digest(self, *parts: bytes) -> bytes:
        """One digest for these parts in this order; no other parts have it."""
        counted = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._naming, counted, "sha256")

    async def seal(self, answer: bytes, name: str) -> str:
        """Text that only `open` under the same name can read."""
        return await _apart(self._seal, answer, name)

    async def open(self, text: str, name: str) -> bytes | None:
        """The answer; None for what was sealed under another name or secret, or was tampered with."""
        return await _apart(self._open, text, name)

    def _seal(self, answer: bytes, name: str) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, zlib.compress(answer, 1), name.encode())
        return base64.b64encode(nonce + sealed).decode()

    def _open(self, text: str, name: str) -> bytes | None:
        sealed = base64.b64decode(text)
        try:
            packed = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], name.encode())
        except InvalidTag:
            return None
        return zlib.decompress(packed)


async def _apart(work: Callable[[Text, str], Result], text: Text, name: str) -> Result:
    if len(text) <= THREAD_BYTES:
        return work(text, name)
    return await asyncio.to_thread(work, text, name)


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(secret)
