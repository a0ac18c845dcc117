"""The request id: a UUIDv7 made at admission, key of the event, of its ledger transaction and of its receipt.

RFC 9562, section 5.7. The ten random bytes keep their places (bytes 6 to 15), only version and variant bits
are set over them, so that a script elsewhere can build the same id from the same bytes.
"""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

RANDOM_BYTES: Final = 10

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def mint(at: datetime, random: bytes) -> UUID:
    """Make the id of a request admitted ``at`` (aware; kept to the millisecond) from 10 random bytes."""
    assert len(random) == RANDOM_BYTES, f"a request id takes {RANDOM_BYTES} random bytes, not {len(random)}"
    tail = bytearray(random)
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    milliseconds = (at - _EPOCH) // _MILLISECOND
    return UUID(bytes=milliseconds.to_bytes(6, "big") + bytes(tail))


def instant_of(request_id: UUID) -> datetime:
    """The millisecond at which the id was minted, in UTC."""
    assert request_id.version == 7, f"{request_id} is no UUIDv7"
    return _EPOCH + (request_id.int >> 80) * _MILLISECOND
