"""Server-sent events as ready bytes.

No `id:` is ever sent (Python clients then fail on comments), no `data: null`, and the heartbeat is a comment
with ONE newline: every client tried accepts it at any place between two events.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

MEDIA_TYPE: Final = "text/event-stream; charset=utf-8"
HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
DONE: Final = b"data: [DONE]\n\n"
HEARTBEAT: Final = b": ping\n"

_encode: Final = msgspec.json.Encoder().encode


def frame(chunk: object) -> bytes:
    """Frame one event; ``chunk`` is a mapping, or JSON bytes without a newline."""
    body = chunk if isinstance(chunk, bytes) else _encode(chunk)
    assert b"\n" not in body
    return b"data: " + body + b"\n\n"
