"""Server-sent events as ready bytes.

No `id:` is ever sent (Python clients then fail on comments), no `data: null`, and the heartbeat is a comment
with ONE newline: every client tried accepts it at any place between two events.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

MEDIA_TYPE: Final = "text/event-stream; charset=utf-8"
HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
DONE: Final = b"data: [DONE]\n\n"
COMMENT: Final = b": ping\n"
# Anthropic's own heartbeat; its clients accept it before `message_start` too.
PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'

_encode: Final = msgspec.json.Encoder().encode


def frame(chunk: Mapping[str, Any] | bytes) -> bytes:
    """Frame one event: an object, or JSON bytes without a newline.

    An object with a ``type`` is an event of that name, as Messages and Responses have it; chat's have none.
    """
    body = chunk if isinstance(chunk, bytes) else _encode(chunk)
    assert b"\n" not in body
    name = None if isinstance(chunk, bytes) else chunk.get("type")
    line = b"data: " + body + b"\n\n"
    return line if name is None else b"event: " + name.encode() + b"\n" + line
