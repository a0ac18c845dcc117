"""From a model directory to its recipe."""

from pathlib import Path
from typing import Final, Protocol

from recipe.errors import ModelUnreadable
from recipe.families.chatml import ChatMl
from recipe.families.deepseek import VERSIONS, DeepSeek
from recipe.families.model_files import read_model_files
from recipe.images import NO_IMAGES, Images
from recipe.memo import BYTES_MAX, EncodeMemo
from recipe.parser import OutputParser
from recipe.prompt import Prompt
from recipe.request import Request
from recipe.tokenizer import Tokenizer

# Part of the prefix store's namespace: raise it whenever the same conversation gets other token ids.
VERSION: Final = "1"

_FAMILY_OF_TYPE: Final = {"deepseek_v4": "deepseek-v4", "deepseek_v41": "deepseek-v4.1"}
FAMILIES: Final = ("chatml", *VERSIONS)


class Recipe(Protocol):
    """How one served model is spoken to. Safe to share between threads: all that changes is its memo."""

    @property
    def served_name(self) -> str:
        """The model's public name."""

    @property
    def context_tokens(self) -> int:
        """Prompt and completion together fit into so many tokens."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""

    @property
    def memo(self) -> EncodeMemo:
        """What this recipe has encoded."""

    @property
    def reads_images(self) -> bool:
        """Whether conversations may hold images."""

    def render(self, request: Request, scope: str = "", images: Images = NO_IMAGES) -> Prompt:
        """Render and encode a conversation, or a raw text.

        Args:
            scope: whose it is, an opaque name. What was encoded before is found within its scope alone.
            images: what the conversation's sources hold (`recipe.images.sources_of`), if the model reads any.

        Raises:
            PromptTooLong: the prompt leaves no room for a single token of an answer.
            ParameterUnsupported: it asks for what this model is not served with.
            ParameterInvalid: the model's template does not accept it.
        """

    def max_tokens(self, request: Request, prompt: Prompt) -> int:
        """The most tokens the answer may have, at least 1; with the prompt it fits the context.

        Raises:
            ParameterInvalid: the request asks for more than the context.
            PromptTooLong: what it asks for does not fit behind its prompt.
        """

    def parser(self, prompt: Prompt) -> OutputParser:
        """A new parser for the answer to a prompt this recipe rendered."""


def load(
    model_dir: Path,
    served_name: str,
    family: str | None = None,
    *,
    context_tokens: int | None = None,
    memo_bytes_max: int = BYTES_MAX,
) -> Recipe:
    """Read a model directory.

    Args:
        family: one of `FAMILIES`; None takes it from the model's configuration.
        context_tokens: what the workers were started with, where it is less than the model's own context.
        memo_bytes_max: how much of what it has encoded the recipe may keep (`recipe.memo`); 0 for nothing.

    Raises:
        ModelUnreadable: the directory lacks something, or the family is unknown.
    """
    if family is None:
        family = _FAMILY_OF_TYPE.get(str(read_model_files(model_dir).config.get("model_type")), "chatml")
    memo = EncodeMemo(memo_bytes_max)
    if family == "chatml":
        return ChatMl.from_model_dir(model_dir, served_name, context_tokens, memo)
    if family in VERSIONS:
        return DeepSeek.from_model_dir(model_dir, served_name, family, context_tokens, memo)
    raise ModelUnreadable(f"family {family!r} is unknown; known are {', '.join(FAMILIES)}")
