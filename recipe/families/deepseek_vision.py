"""The eyes of DeepSeek V4.1: images are scaled, counted and encoded anew by deepseek-recipe."""

from dataclasses import replace
from hashlib import sha256
from typing import Final, Self

import deepseek_recipe
from deepseek_recipe import BytesImageSource, ImageError, ImageQuota, ImageResolver

from recipe.errors import ParameterInvalid
from recipe.families.model_files import ModelFiles
from recipe.images import Image
from recipe.tokenizer import Tokenizer

IMAGE: Final = deepseek_recipe.SpecialToken.Image.default_str()


class DeepSeekVision:
    """See `recipe.families.vision.Vision`: the image token, as often as deepseek-recipe counts."""

    __slots__ = ("_resolver", "placeholder_id")

    placeholder: Final = IMAGE

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.placeholder_id: Final = tokenizer.special(IMAGE)
        # It is given bytes alone, and fetches nothing.
        self._resolver = ImageResolver(
            deepseek_recipe.ReqwestImageFetcher(), deepseek_recipe.OpenCvImagePreprocessor()
        )

    @classmethod
    def of(cls, files: ModelFiles, tokenizer: Tokenizer) -> Self | None:
        """Those of a model; None where it has none."""
        sees = bool(files.config.get("vision_config")) and IMAGE in tokenizer.added.ids
        return cls(tokenizer) if sees else None

    def seen(self, image: Image, param: str) -> tuple[Image, tuple[int, ...]]:
        """See `Vision`: the image is decoded here, which its bounds allow, and scaled."""
        source = BytesImageSource(image.data, image.detail)
        try:
            resolved = self._resolver.resolve([source], ImageQuota())
            count = resolved.image_token_adjustment() + 1
        except (ImageError, deepseek_recipe.CalcResizeError) as error:
            message = f"The image at '{param}' cannot be read"
            raise ParameterInvalid(param, message, malformed=True) from error
        [scaled] = resolved.images
        shown = replace(
            image,
            data=scaled.data,
            media_type="image/webp",
            width=scaled.width,
            height=scaled.height,
            sha256=sha256(scaled.data).hexdigest(),
        )
        return shown, (self.placeholder_id,) * count
