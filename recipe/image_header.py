"""What an image file says of itself, read without decoding a pixel.

A file that would fill memory when decoded is known by the dimensions it declares, a file that was cut off by
the ends of its parts. Pixels that are spoilt inside of a whole file are for whoever decodes it.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

MediaType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]

_ORIENTATION: Final = 0x0112
_TURNED: Final = range(5, 9)  # orientations that swap width and height
_STANDALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})  # JPEG's markers without a length
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_END_OF_IMAGE, _START_OF_SCAN, _APP1 = 0xD9, 0xDA, 0xE1


class ImageUnreadable(ValueError):
    """No whole PNG, JPEG, GIF or WebP file; ``str()`` says why, without a word of it."""


@dataclass(frozen=True, slots=True)
class Header:
    """Format and dimensions in pixels, as the image is shown: turned where its EXIF orientation says so."""

    media_type: MediaType
    width: int
    height: int


def read_header(data: bytes) -> Header:
    """Read a file's header; ImageUnreadable where it is of no known format, or cut off."""
    for media_type, begins, read in _FORMATS:
        if begins(data):
            try:
                width, height, orientation = read(data)
            except (struct.error, IndexError):
                raise ImageUnreadable("it is truncated") from None
            if width < 1 or height < 1:
                raise ImageUnreadable("it declares no pixels")
            turned = orientation in _TURNED
            return Header(media_type, *((height, width) if turned else (width, height)))
    raise ImageUnreadable("it is no PNG, JPEG, GIF or WebP file")


def _png(data: bytes) -> tuple[int, int, int]:
    size: tuple[int, int] | None = None
    orientation = 1
    for kind, start, length in _png_chunks(data):
        if (kind == b"IHDR") != (size is None):
            raise ImageUnreadable("its PNG chunks are out of order")
        if kind == b"IHDR":
            size = struct.unpack_from(">II", data, start)
        elif kind == b"eXIf":
            orientation = _orientation(data[start : start + length])
        elif kind == b"IEND":
            assert size is not None
            return *size, orientation
    raise ImageUnreadable("it is truncated")


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and length of each whole chunk."""
    at = 8
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if at + 12 + length > len(data):
            return
        yield kind, at + 8, length
        at += 12 + length


def _jpeg(data: bytes) -> tuple[int, int, int]:
    size: tuple[int, int] | None = None
    orientation = 1
    at = 2
    while True:
        if data[at] != 0xFF:
            raise ImageUnreadable("its JPEG segments are damaged")
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in _STANDALONE:
            continue
        if marker in (_END_OF_IMAGE, _START_OF_SCAN):
            break
        (length,) = struct.unpack_from(">H", data, at)
        if marker in _FRAMES:
            if size is not None:
                raise ImageUnreadable("it declares its dimensions twice")
            height, width = struct.unpack_from(">HH", data, at + 3)
            size = width, height
        elif marker == _APP1 and data.startswith(b"Exif\0\0", at + 2):
            orientation = _orientation(data[at + 8 : at + length])
        at += length
    if size is None or marker != _START_OF_SCAN or data.rfind(b"\xff\xd9", at) < 0:
        raise ImageUnreadable("it is truncated")
    return *size, orientation


def _gif(data: bytes) -> tuple[int, int, int]:
    """Of the first frame and the screen around it: the others are not looked at by models."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _colours(flags)
    while data[at] == 0x21:
        at = _after_blocks(data, at + 2)
    if data[at] != 0x2C:
        raise ImageUnreadable("it has no frame")
    left, top, frame_width, frame_height, flags = struct.unpack_from("<HHHHB", data, at + 1)
    if left + frame_width > width or top + frame_height > height:
        raise ImageUnreadable("its first frame is larger than the image")
    _after_blocks(data, at + 10 + _colours(flags) + 1)
    return width, height, 1


def _colours(flags: int) -> int:
    """Bytes of a GIF's colour table."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    while data[at]:
        at += data[at] + 1
    return at + 1


def _webp(data: bytes) -> tuple[int, int, int]:
    (length,) = struct.unpack_from("<I", data, 4)
    if len(data) < length + 8:
        raise ImageUnreadable("it is truncated")
    kind = data[12:16]
    if kind == b"VP8 ":
        start_code, width, height = struct.unpack_from("<3sHH", data, 23)
        if start_code != b"\x9d\x01\x2a":
            raise ImageUnreadable("its first frame is damaged")
        return width & 0x3FFF, height & 0x3FFF, 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 1
    if kind != b"VP8X":
        raise ImageUnreadable("it has no frame")
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    return width, height, _webp_orientation(data)


def _webp_orientation(data: bytes) -> int:
    at = 12
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            return _orientation(data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0"))
        at += 8 + length + length % 2
    return 1


def _orientation(exif: bytes) -> int:
    """How an image is to be turned, by its EXIF; 1, which is not at all, where that does not say."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (at,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, at)
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(order + "HHIH", exif, entry)
            if tag == _ORIENTATION:
                return int(value)
    except struct.error:
        pass
    return 1


_FORMATS: Final[
    tuple[tuple[MediaType, Callable[[bytes], bool], Callable[[bytes], tuple[int, int, int]]], ...]
] = (
    ("image/png", lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"), _png),
    ("image/jpeg", lambda data: data.startswith(b"\xff\xd8\xff"), _jpeg),
    ("image/gif", lambda data: data.startswith((b"GIF87a", b"GIF89a")), _gif),
    ("image/webp", lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", _webp),
)
