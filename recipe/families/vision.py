"""How an image stands in the prompt of a model with eyes: a run of tokens, as its own processor makes it.

Only the run's length and marks depend on the image, and they on its dimensions alone: nothing is decoded.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Final, Protocol, Self

import msgspec
from deepseek_recipe import ConversionOptions, ImageSource, SpecialTokens

from recipe.conversation import Conversation
from recipe.errors import ModelUnreadable, ParameterInvalid, ParameterUnsupported
from recipe.families.model_files import ModelFiles
from recipe.images import Image, Images, PlacedImage, origin_of, param_of, sources_of
from recipe.request import Request
from recipe.tokenizer import Tokenizer

_FENCE: Final = "<fake_token_around_image>"
_PIXEL: Final = "<image>"
_WHOLE: Final = "<global-img>"
# Beyond it Idefics3's processor scales an image down again, whatever its configuration says.
_SIDE_PX_MAX: Final = 4096
_SIZES_KEPT: Final = 256
_MARKS: Final = range(0xE000, 0xF900)


class Vision(Protocol):
    """The eyes of one model."""

    @property
    def placeholder(self) -> str:
        """The control token that a prompt has where an image is to stand."""

    @property
    def placeholder_id(self) -> int:
        """Its id."""

    def seen(self, image: Image, param: str) -> tuple[Image, tuple[int, ...]]:
        """The image as the engine is to have it, and the ids that stand for it.

        Raises:
            ParameterInvalid: the model cannot see it.
        """


class Idefics3:
    """Idefics3 and SmolVLM: an image is scaled, cut into square tiles, and seen as these and as a whole."""

    __slots__ = ("_newline", "_run", "_settings", "_tokenizer", "placeholder_id")

    placeholder: Final = _PIXEL

    def __init__(self, settings: "TileSettings", tokenizer: Tokenizer) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._newline = tokenizer.encode_plain("\n")
        self._run = lru_cache(_SIZES_KEPT)(self._made)
        self.placeholder_id: Final = tokenizer.special(_PIXEL)
        self._run(1, 1)  # lacks no token

    def seen(self, image: Image, param: str) -> tuple[Image, tuple[int, ...]]:
        """See `Vision`."""
        rows, columns = self._settings.grid(image.width, image.height)
        try:
            return image, self._run(rows, columns)
        except ModelUnreadable:
            message = f"The image at '{param}' is too long and narrow for this model"
            raise ParameterInvalid(param, message) from None

    def _made(self, rows: int, columns: int) -> tuple[int, ...]:
        special = self._tokenizer.special
        fence, pixels = special(_FENCE), [self.placeholder_id] * self._settings.tile_tokens
        whole = [fence, special(_WHOLE), *pixels, fence]
        if rows * columns <= 1:
            return tuple(whole)
        run: list[int] = []
        for row, column in product(range(1, rows + 1), range(1, columns + 1)):
            run += [fence, special(f"<row_{row}_col_{column}>"), *pixels]
            if column == columns and row < rows:
                run += self._newline
        return (*run, *self._tokenizer.encode_plain("\n\n"), *whole)


class TileSettings:
    """What an Idefics3's processor is configured to; ValueError for what cannot be.

    Args:
        longest_px: what an image's longest side is scaled to.
        tile_px: side of a tile.
        tile_tokens: what each tile becomes.
        splits: whether an image is cut at all.
    """

    __slots__ = ("_longest_px", "_splits", "_tile_px", "tile_tokens")

    def __init__(self, longest_px: int, tile_px: int, tile_tokens: int, *, splits: bool) -> None:
        if not 0 < tile_px <= longest_px <= _SIDE_PX_MAX:
            raise ValueError("sizes that fit each other")
        self._longest_px = longest_px
        self._tile_px = tile_px
        self._splits = splits
        self.tile_tokens: Final = tile_tokens

    @classmethod
    def of(cls, files: ModelFiles) -> Self:
        """Those of a model; ModelUnreadable when its files do not say."""
        images: Mapping[str, Any] = files.preprocessor or files.processor.get("image_processor") or {}
        try:
            return cls(
                int(images["size"]["longest_edge"]),
                int(images["max_image_size"]["longest_edge"]),
                int(files.processor["image_seq_len"]),
                splits=images.get("do_image_splitting", True) is not False,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelUnreadable(f"preprocessor_config.json, processor_config.json: {error}") from None

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; one of each where an image is not cut."""
        if not self._splits:
            return 1, 1
        aspect, longest = width / height, self._longest_px
        if width >= height:
            width, height = longest, int(longest / aspect)
            height += height % 2
        else:
            width, height = int(longest * aspect), longest
            width += width % 2
        return -(-max(height, 1) // self._tile_px), -(-max(width, 1) // self._tile_px)


def vision_of(files: ModelFiles, tokenizer: Tokenizer) -> Vision | None:
    """A model's eyes; None where it has none, or some that nothing here knows."""
    if files.config.get("model_type") in ("idefics3", "smolvlm") and files.config.get("vision_config"):
        return Idefics3(TileSettings.of(files), tokenizer)
    return None


def has_images(request: Request, vision: Vision | None) -> bool:
    """Whether there are images to be seen; ParameterUnsupported where there are, and the model sees none."""
    images = bool(sources_of(request.conversation))
    if images and vision is None:
        raise ParameterUnsupported("messages", "This model reads no images")
    return images


def image_mark(conversation: Conversation) -> str:
    """A character to stand for images while the conversation is converted: one that none of its texts has.

    So no text can be taken for an image. ParameterInvalid where they have all that would do.
    """
    used = set().union(*_texts(conversation))
    for code in _MARKS:
        if chr(code) not in used:
            return chr(code)
    raise ParameterInvalid("messages", "The messages use every private-use character of Unicode")


def with_mark(options: ConversionOptions, mark: str) -> ConversionOptions:
    """Options by which images are converted to this mark."""
    return options.with_special_tokens(SpecialTokens(image=mark))


def _texts(conversation: Conversation) -> Iterator[str]:
    for message in conversation.messages:
        yield message.content
        yield message.reasoning_content or ""
        for call in message.tool_calls or ():
            yield call.name + call.arguments
    for tool in conversation.tools:
        yield tool.name + (tool.description or "") + msgspec.json.encode(tool.parameters).decode()


def without_detail(sources: Sequence[ImageSource]) -> frozenset[str]:
    """What is said of ``detail`` to a model that sees all of every image."""
    return frozenset({"detail"} if any(source.detail in ("low", "original") for source in sources) else ())


def placed(
    token_ids: Sequence[int], sources: Sequence[ImageSource], images: Images, vision: Vision | None
) -> tuple[tuple[int, ...], tuple[PlacedImage, ...]]:
    """A prompt's ids with a run in place of each placeholder, and where each image stands.

    Args:
        token_ids: of the prompt, with a placeholder for each source and for nothing else.
        sources: in the order of the placeholders.
        images: what the sources hold.
        vision: the model's; None only where there are no sources.

    Raises:
        ParameterInvalid: the template has not written a placeholder for each, or the model cannot see one.
    """
    if not sources:
        return tuple(token_ids), ()
    assert vision is not None, "the blind are refused before"
    if token_ids.count(vision.placeholder_id) != len(sources):
        raise ParameterInvalid("messages", "The model's chat template does not accept images there")
    made: list[int] = []
    found: list[PlacedImage] = []
    end = 0
    for source in sources:
        at = token_ids.index(vision.placeholder_id, end)
        made += token_ids[end:at]
        image, run = vision.seen(images[origin_of(source)], param_of(source))
        found.append(PlacedImage(len(made), len(run), image))
        made += run
        end = at + 1
    return (*made, *token_ids[end:]), tuple(found)
