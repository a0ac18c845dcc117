"""Signatures of Standard Webhooks: HMAC-SHA256 over id, timestamp and body."""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32


def secret_text(secret: bytes) -> str:
    """A secret as its tenant keeps it."""
    return PREFIX + base64.b64encode(secret).decode()


def signed_headers(notice_id: str, at: datetime, body: bytes, secrets: Sequence[bytes]) -> Mapping[str, str]:
    """The headers of one attempt, signed by each secret that works: receivers look for one they know."""
    timestamp = str(int(at.timestamp()))
    content = b".".join((notice_id.encode(), timestamp.encode(), body))
    digests = (hmac.digest(secret, content, hashlib.sha256) for secret in secrets)
    return {
        "webhook-id": notice_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }
