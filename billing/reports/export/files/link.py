"""Links to files: whoever has one may fetch the file until it ends, without a key."""

import hmac
from datetime import UTC, datetime
from typing import Final

LINK_S: Final = 3_600

_PURPOSE: Final = b"kvitto export link"


class Links:
    """Signs by a key of its own, derived from a secret of the deployment.

    Args:
        secret: the deployment's, of 16 bytes at least.
    """

    def __init__(self, secret: bytes) -> None:
        assert len(secret) >= 16
        self._key = hmac.digest(secret, _PURPOSE, "sha256")

    def sign(self, export_id: str, expires: int) -> str:
        """The signature of a link to an export's file that ends at a Unix time, in hexadecimal."""
        return hmac.digest(self._key, f"{export_id}\n{expires}".encode(), "sha256").hex()

    def holds(self, export_id: str, expires: int, signature: str, at: datetime) -> bool:
        """Whether a link is one of ours and has not ended."""
        ours = self.sign(export_id, expires)
        genuine = hmac.compare_digest(ours.encode(), signature.encode(errors="replace"))
        return genuine and at.timestamp() < expires


def ends_at(expires: int) -> datetime:
    """The instant of a Unix time."""
    return datetime.fromtimestamp(expires, UTC)
