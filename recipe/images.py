"""Images as they leave the recipe: files of a known format within bounds, never decoded, and their places.

deepseek-recipe says where in a conversation images stand, and where each comes from. Whoever may read what
lies elsewhere (`gateway.images`) does, and hands the files back by their sources.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

from deepseek_recipe import ImageSource

from recipe.conversation import Conversation
from recipe.errors import ParameterInvalid
from recipe.image_header import ImageUnreadable, MediaType, read_header

Detail = Literal["low", "high", "original", "auto"]
# Where an image comes from, a URL of data or of elsewhere, and how much of it the model is to see.
Origin = tuple[str, Detail]

_PLACE: Final = re.compile(r"\.(\d+)")


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """How many images a request may hold, how large each file, all of them, and each image may be."""

    image_count_max: int = 16
    image_bytes_max: int = 8 * 2**20
    request_bytes_max: int = 20 * 2**20
    pixels_max: int = 2**24
    side_px_max: int = 8192

    def count(self, sources: Sequence[ImageSource]) -> None:
        """Refuse too many; ParameterInvalid."""
        if len(sources) > self.image_count_max:
            most = f"at most {self.image_count_max} images (image_count_max)"
            raise ParameterInvalid("messages", f"A request must hold {most}; this holds {len(sources)}")

    def total(self, images: Sequence["Image"]) -> None:
        """Refuse too much together; ParameterInvalid."""
        if sum(len(image.data) for image in images) > self.request_bytes_max:
            most = f"at most {self.request_bytes_max} bytes together (request_bytes_max)"
            raise ParameterInvalid("messages", f"The images of a request must have {most}")


@dataclass(frozen=True, slots=True)
class Image:
    """A whole image file. ``width`` and ``height`` in pixels, as it is shown; ``sha256`` of it, in hex."""

    data: bytes = field(repr=False)
    media_type: MediaType
    width: int
    height: int
    detail: Detail
    sha256: str


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image in a prompt: the run ``[offset, offset + tokens)`` of its ids stands for it alone."""

    offset: int
    tokens: int
    image: Image


Images = Mapping[Origin, Image]
NO_IMAGES: Final[Images] = {}


def sources_of(conversation: Conversation) -> list[ImageSource]:
    """Where its images come from, in their order."""
    return [source for message in conversation.messages for source in message.image_sources]


def origin_of(source: ImageSource) -> Origin:
    """What images are known by: two sources of one origin hold the same."""
    return source.data_url or source.url or "", source.detail


def param_of(source: ImageSource) -> str:
    """Where a body has it, such as ``messages[0].content[1]``, or as near as deepseek-recipe tells."""
    return _PLACE.sub(r"[\1]", source.path).removeprefix(".").removesuffix(".tool_result") or "messages"


def read_image(data: bytes, source: ImageSource, bounds: ImageBounds) -> Image:
    """Read a file by its header, and know it by its digest.

    Raises:
        ParameterInvalid: it is no whole image of a known format, or passes the bounds; the parameter is the
            source's.
    """
    param = param_of(source)
    if len(data) > bounds.image_bytes_max:
        most = f"at most {bounds.image_bytes_max} bytes (image_bytes_max)"
        raise ParameterInvalid(param, f"The image at '{param}' must have {most}")
    try:
        header = read_header(data)
    except ImageUnreadable as error:
        message = f"The image at '{param}' cannot be read: {error}"
        raise ParameterInvalid(param, message, malformed=True) from None
    width, height = header.width, header.height
    if width * height > bounds.pixels_max or max(width, height) > bounds.side_px_max:
        most = f"at most {bounds.pixels_max} pixels (pixels_max), {bounds.side_px_max} on a side"
        raise ParameterInvalid(
            param, f"The image at '{param}' must have {most}; it declares {width} x {height}"
        )
    digest = hashlib.sha256(data).hexdigest()
    return Image(data, header.media_type, width, height, source.detail, digest)


def data_of(data_url: str) -> bytes:
    """The bytes inside of a data URL that deepseek-recipe has accepted, which forgives missing padding."""
    head, _, body = data_url.partition(",")
    if head.lower().endswith(";base64"):
        return base64.b64decode(body.encode("ascii", "ignore") + b"==")
    return unquote_to_bytes(body)


def in_base64(url: str) -> str:
    """A URL, its data in base64 where it holds any: of two ways to write them the one that is converted."""
    head, _, body = url.partition(",")
    if head[:5].lower() != "data:" or head.lower().endswith(";base64"):
        return url
    return f"{head};base64,{base64.b64encode(unquote_to_bytes(body)).decode()}"
