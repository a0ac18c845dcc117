"""Images of a request: read here, in the worker, by vLLM's and the model's own code.

vLLM takes a prompt with one token an image, and writes the others itself. Our prompts come with all of them:
the cluster counts, places and bills tokens before a worker sees any. So the model's processor is asked what
it would have written, that is looked for where the cluster says it is, and anything else is refused.

Nothing of vLLM's own protocol says this: it knows images without their tokens, or processed ones, of which it
forgets which tokens take the image's features. So a call's images travel beside it, in the context of its
task, to where vLLM makes the engine's input of a call.
"""

import asyncio
import base64
import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from engine.proof.prefix import image_name
from engine.wire import IMAGE_REFUSED, IMAGES, IMAGES_BYTES_MAX

_LOG: Final = logging.getLogger("vllm.kvitto.images")
# What Pillow may open of a stranger's: its other formats have older code and fewer users.
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
PIXELS_MAX: Final = 40_000_000


class ImagesRefused(ValueError):
    """Images that this worker does not take; vLLM answers such errors with 400."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{IMAGE_REFUSED}{reason}")


@dataclass(frozen=True, slots=True)
class SentImage:
    """An image as the cluster sends it: its file, and where in the prompt its tokens are."""

    offset: int
    tokens: int
    content: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of its file, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


_SENT: Final[ContextVar[tuple[SentImage, ...]]] = ContextVar("images", default=())


def take(body: bytes, served: bool) -> bytes:
    """Take a call's images out of its body, for whoever serves the call in this context.

    Args:
        body: a call to generate; what is no JSON is left to vLLM.
        served: whether the model takes images.

    Returns:
        The body as vLLM knows it; its parameters say which images came, for whoever attests the prompt.

    Raises:
        ImagesRefused: images that cannot be, too many bytes of them, or a model that takes none.
    """
    if f'"{IMAGES}"'.encode() not in body:
        return body
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return body
    sent = fields.pop(IMAGES, None) if isinstance(fields, dict) else None
    if not sent:
        return body
    if not served:
        raise ImagesRefused("this model takes none")
    images = _read(sent)
    _SENT.set(images)
    if isinstance(params := fields.get("kv_transfer_params"), dict):
        params[IMAGES] = [(image.offset, image.digest) for image in images]
    return json.dumps(fields).encode()


def serve(state: Any) -> bool:
    """Take images into what vLLM serves: ``state`` is its application's. Whether the model takes images."""
    tokens = getattr(state, "serving_tokens", None)
    if tokens is None or not tokens.model_config.is_multimodal_model:
        return False
    online = tokens.online_renderer
    processor, preprocess = online.renderer.get_mm_processor(), online.preprocess_completion
    processor._apply_prompt_updates = functools.partial(_found, processor, processor._apply_prompt_updates)  # noqa: SLF001 -- vLLM has no hook here; a test pins that it has this

    async def preprocessed(request: Any, *words: Any, **named: Any) -> Any:
        images = _SENT.get()
        if not images:
            return await preprocess(request, *words, **named)
        return [await _input(online.renderer, request, images)]

    online.preprocess_completion = preprocessed
    return True


def _read(sent: object) -> tuple[SentImage, ...]:
    try:
        images = tuple(
            SentImage(
                _count(image, "offset"),
                _count(image, "tokens"),
                base64.b64decode(image["data"], validate=True),
            )
            for image in sent  # type: ignore[attr-defined]  # not iterable is an error below
        )
    except (ValueError, TypeError, LookupError) as error:
        raise ImagesRefused(f"not of this cluster: {error!r}") from error
    if sum(len(image.content) for image in images) > IMAGES_BYTES_MAX:
        raise ImagesRefused(f"all have more than {IMAGES_BYTES_MAX} bytes")
    return images


def _count(image: Mapping[str, Any], name: str) -> int:
    count = image[name]
    if not isinstance(count, int) or count < 0:
        raise ValueError(name)
    return count


async def _input(renderer: Any, request: Any, images: Sequence[SentImage]) -> Any:
    """The engine's input of a call; raises ImagesRefused: one is none, or not where it was said to be."""
    salt = request.cache_salt or ""
    try:
        pictures = [
            await asyncio.to_thread(_opened, image.content, number) for number, image in enumerate(images, 1)
        ]
        prompt: dict[str, Any] = {
            "prompt_token_ids": list(request.token_ids),
            "multi_modal_data": {"image": pictures},
            "multi_modal_uuids": {"image": [image_name(salt, image.digest) for image in images]},
        }
        if salt:
            prompt["cache_salt"] = salt
        # The other cache counts on everything that it has seen to reach the engine core, refused or not.
        (engine_input,) = await renderer.render_cmpl_async([prompt], skip_mm_cache=True)
    except ImagesRefused:
        raise
    except Exception as error:
        # Whatever a stranger's bytes do to a decoder or a processor is said of them, not of this worker.
        _LOG.info("images of %s are refused: %r", request.request_id, error)
        raise ImagesRefused(f"the model cannot take it: {error}") from error
    made = [(run.offset, run.length) for run in engine_input["mm_placeholders"]["image"]]
    sent = [(image.offset, image.tokens) for image in images]
    if made != sent or engine_input["prompt_token_ids"] != list(request.token_ids):
        raise ImagesRefused(f"the model puts their tokens (at, so many) at {made}, not {sent}")
    return engine_input


def _opened(content: bytes, number: int) -> Any:
    """An image in RGB, upright; raises ImagesRefused, which says its number among the request's."""
    from PIL import UnidentifiedImageError

    try:
        return _decoded(content)
    except UnidentifiedImageError as error:
        raise ImagesRefused(f"image {number} is no {', '.join(FORMATS)}") from error
    except Exception as error:
        # Decoders raise what they like over a stranger's bytes.
        raise ImagesRefused(f"image {number} cannot be read: {error}") from error


def _decoded(content: bytes) -> Any:
    from PIL import Image
    from vllm.multimodal.image import convert_image_mode, normalize_image

    image = Image.open(BytesIO(content), formats=FORMATS)
    if image.width * image.height > PIXELS_MAX:
        raise ValueError(f"{image.width} x {image.height} are more than {PIXELS_MAX} pixels")
    image.load()
    return convert_image_mode(normalize_image(image), "RGB")


def _found(processor: Any, otherwise: Any, token_ids: list[int], updates: Any) -> Any:
    """The processor's last step, where all tokens of the images are there already."""
    found = processor._find_mm_placeholders(token_ids, updates)  # noqa: SLF001 -- as above
    if all(len(found.get(modality, ())) == len(items) for modality, items in updates.items()):
        return token_ids, found
    return otherwise(token_ids, updates)
