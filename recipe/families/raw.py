"""Prompts that are a text and no conversation, or a text with a hole in it."""

from collections.abc import Sequence
from typing import Final

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.families.limits import refuse_overlong
from recipe.request import Request
from recipe.tokenizer import Tokenizer

# What stands before the text, for the hole, and behind what follows it: DeepSeek's, Qwen's and StarCoder's.
_HOLES: Final = (
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001  # DeepSeek spells them so
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
)


def encode_raw(request: Request, tokenizer: Tokenizer, opening: Sequence[int], room: int) -> tuple[int, ...]:
    """Encode a request's text, and what is to follow the answer.

    Args:
        request: one with a text.
        tokenizer: the model's.
        opening: ids that stand before every text of this model.
        room: the context, in tokens.

    Returns:
        At least one token; what spells a control token is text.

    Raises:
        ParameterUnsupported: the model was not trained to fill a hole.
        ParameterInvalid: there is nothing to continue.
        PromptTooLong: the text is certainly longer than ``room``.
    """
    assert request.text is not None
    texts = [request.text] if request.suffix is None else [request.text, request.suffix]
    refuse_overlong(sum(map(tokenizer.tokens_at_least, texts)), room)
    pieces = [tokenizer.encode_plain(text) for text in texts]
    if request.suffix is None:
        token_ids = (*opening, *pieces[0])
    else:
        begin, hole, end = _hole(tokenizer)
        token_ids = (*opening, begin, *pieces[0], hole, *pieces[1], end)
    if not token_ids:
        raise ParameterInvalid("prompt", "'prompt' must not be empty: this model has no token to begin with")
    return token_ids


def _hole(tokenizer: Tokenizer) -> list[int]:
    for names in _HOLES:
        if all(name in tokenizer.added.ids for name in names):
            return [tokenizer.special(name) for name in names]
    raise ParameterUnsupported("suffix", "This model does not fill a hole in a text: leave out 'suffix'")
