"""Proof that a call to a worker comes from the deployment: an HMAC over the call under a shared secret.

Whoever may call a worker picks salts and reads journals, so a socket's file mode is not enough once workers
listen on a network. The header is ``<unix second> <hex>``; the hex is HMAC-SHA256 (RFC 2104) over the
length-prefixed second, method, path with query, and SHA-256 of the body.
"""

import hashlib
import hmac
from typing import Final

MAC_HEADER: Final = "x-kvitto-mac"
SECRET_BYTES_MIN: Final = 32
SKEW_S: Final = 60


def call_mac(secret: bytes, method: str, path: str, body: bytes, at_s: int) -> str:
    """The header's value for a call made at a Unix second."""
    fields = (
        b"kvitto call 1",
        str(at_s).encode(),
        method.encode(),
        path.encode(),
        hashlib.sha256(body).digest(),
    )
    message = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    return f"{at_s} {hmac.new(secret, message, hashlib.sha256).hexdigest()}"


def holds(secret: bytes, header: str, method: str, path: str, body: bytes, at_s: int) -> bool:
    """Whether a header is the secret's word on this call, not older or newer than a minute."""
    second, _, _ = header.partition(" ")
    if not (second.isascii() and second.isdigit() and len(second) < 16) or abs(int(second) - at_s) > SKEW_S:
        return False
    return hmac.compare_digest(header.encode(), call_mac(secret, method, path, body, int(second)).encode())
