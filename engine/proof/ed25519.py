"""Whether a signature is a key's: by OpenSSL's verdict, three times as fast where libsodium is installed.

libsodium (PyNaCl) computes what OpenSSL does, without the cofactor, and refuses some points of small order on
top: what it accepts OpenSSL accepts. What it refuses OpenSSL decides.
"""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

try:
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import CryptoError
except ImportError:
    crypto_sign_open = None

SIGNATURE_BYTES = 64


def matches(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    """Whether the key signed the message so."""
    if crypto_sign_open is not None and len(signature) == SIGNATURE_BYTES:
        try:
            crypto_sign_open(signature + message, key.public_bytes(Encoding.Raw, PublicFormat.Raw))
        except CryptoError:
            return _matches(key, signature, message)
        return True
    return _matches(key, signature, message)


def _matches(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True
