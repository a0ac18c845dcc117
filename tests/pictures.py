"""Image files of a few bytes, as encoders write them, and some that no encoder would."""

import base64
import struct
import zlib
from typing import Final

# Of 5 x 3 pixels each.
JPEG: Final = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP//////////////////////////////////////////////////////////////////////////////////////"
    "wgALCAADAAUBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAv/aAAgBAQAAAAE//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABBQJ//8QAFBABAAAAAAAA"
    "AAAAAAAAAAAAAP/aAAgBAQAGPwJ//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPyF//9oACAEBAAAAEH//xAAUEAEAAAAAAAAAAAAAAAAAAAAA/9oA"
    "CAEBAAE/EH//2Q=="
)
WEBP: Final = base64.b64decode("UklGRiQAAABXRUJQVlA4IBgAAAAwAQCdASoFAAMADMDOJaQAA3AA/uwdgAA=")
WEBP_LOSSLESS: Final = base64.b64decode("UklGRiAAAABXRUJQVlA4TBQAAAAvBIAAAAdQgVQIIAAKmv7HiIj+Bw==")
WEBP_TURNED: Final = base64.b64decode(
    "UklGRlQAAABXRUJQVlA4WAoAAAAIAAAABAAAAgAAVlA4TBQAAAAvBIAAAAdQgVQIIAAKmv7HiIj+B0VYSUYaAAAATU0AKgAAAAgAAQESAAMA"
    "AAABAAYAAAAAAAA="
)
GIF: Final = base64.b64decode("R0lGODdhBQADAIAAAAAAAAAAACwAAAAABQADAAAICAABCBxIsGBAADs=")
# A quarter turn, as cameras write it: TIFF, big-endian, one entry.
TURN: Final = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"


def png(width: int, height: int, *chunks: tuple[bytes, bytes], shade: int = 0) -> bytes:
    """A grey PNG; its size is that of its pixels, one bit each. ``chunks`` stand behind its header."""
    rows = (b"\0" + bytes([shade]) * -(-width // 8)) * height
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = ((b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, parts))


def bomb() -> bytes:
    """A PNG of a few bytes that declares 2**32 pixels, and would not have them."""
    header = struct.pack(">IIBBBBB", 2**16, 2**16, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, ((b"IHDR", header), (b"IDAT", b""), (b"IEND", b""))))


def turned_jpeg() -> bytes:
    """`JPEG` with the orientation of a camera that was held upright."""
    exif = b"Exif\0\0" + TURN
    return JPEG[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + JPEG[2:]


def data_url(data: bytes, media_type: str = "image/png") -> str:
    """The file in a URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _chunk(part: tuple[bytes, bytes]) -> bytes:
    kind, body = part
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
