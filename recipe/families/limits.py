"""What every family refuses in the same way: what is not served, what is too much, and what does not fit."""

from collections.abc import Sequence
from typing import Final

import msgspec

from recipe.conversation import continued, offers_tools
from recipe.errors import ParameterInvalid, ParameterUnsupported, PromptTooLong
from recipe.prompt import Calls, Prompt
from recipe.protocols.parameters import TOOLS_MAX
from recipe.request import Request
from recipe.tokenizer import NFC_GROWTH_MAX, Tokenizer

TOOL_BYTES_MAX: Final = 64 * 1024


def refuse_unserved(request: Request) -> None:
    """Refuse what no family serves, and more tools than are read.

    Raises:
        ParameterUnsupported: a response format where the model may call tools, or goes on with a
            message, as it would be enforced on every token. Leaving them out would answer another question.
        ParameterInvalid: there are too many tools, or one is too large.
    """
    conversation = request.conversation
    free = offers_tools(conversation) and conversation.tool_choice != "required"
    if conversation.response_format != "text" and (free or continued(conversation) is not None):
        beside = "'tools' that may be called" if free else "a 'prefix'"
        raise ParameterUnsupported("response_format", f"'response_format' is not served beside {beside}")
    if len(conversation.tools) > TOOLS_MAX:  # with those of namespaces
        raise ParameterInvalid("tools", f"'tools' must hold at most {TOOLS_MAX} tools")
    for place, tool in enumerate(conversation.tools):
        if len(msgspec.json.encode([tool.description, tool.parameters])) > TOOL_BYTES_MAX:
            message = f"A tool's description and parameters must have at most {TOOL_BYTES_MAX} bytes"
            raise ParameterInvalid(f"tools[{place}]", message)


def calls_of(request: Request) -> Calls:
    """How many calls the answer may hold."""
    if not offers_tools(request.conversation):
        return "none"
    return "many" if request.parallel_calls else "one"


def refuse_overlong(token_ids_at_least: int, context_tokens: int) -> None:
    """PromptTooLong unless a prompt of so many tokens leaves room for one more."""
    if token_ids_at_least >= context_tokens:
        raise PromptTooLong(context_tokens, token_ids_at_least)


def refuse_hopeless(texts: Sequence[str], tokenizer: Tokenizer, context_tokens: int) -> None:
    """PromptTooLong where these texts alone fill the context, found without encoding them."""
    chars_max = NFC_GROWTH_MAX * sum(map(len, texts))
    if chars_max // tokenizer.token_bytes_max + len(texts) >= context_tokens:
        refuse_overlong(sum(map(tokenizer.tokens_at_least, texts)), context_tokens)


def completion_tokens(request: Request, prompt: Prompt, context_tokens: int) -> int:
    """The most tokens the answer may have: what was asked for, or the default as far as the context has room.

    Where the surface lowers what is asked for, nothing is refused.

    Raises:
        ParameterInvalid: more than the whole context was asked for.
        PromptTooLong: what was asked for does not fit behind the prompt.
    """
    room = context_tokens - len(prompt.token_ids)
    assert room > 0, "render refuses prompts that leave no room"
    asked = request.max_tokens
    if asked is None:
        return min(prompt.max_tokens_default, room)
    if request.max_tokens_lowered:
        return min(asked, room)
    if asked > context_tokens:
        param = request.max_tokens_param
        raise ParameterInvalid(param, f"'{param}' must be at most {context_tokens}, the model's context")
    if asked > room:
        raise PromptTooLong(context_tokens, len(prompt.token_ids), asked)
    return asked
