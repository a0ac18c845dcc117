"""What every family refuses in the same way: what is not served yet, and what does not fit."""

from collections.abc import Sequence

from recipe.conversation import has_tools
from recipe.errors import ParameterInvalid, ParameterUnsupported, PromptTooLong
from recipe.prompt import Prompt
from recipe.request import Request
from recipe.tokenizer import NFC_GROWTH_MAX, Tokenizer


def refuse_unserved(request: Request) -> None:
    """Refuse tools, constrained answers, images and continued messages; ParameterUnsupported names which.

    Leaving one of them out would give an answer to a question that was not asked.
    """
    conversation = request.conversation
    if conversation.tools and conversation.tool_choice != "none":
        raise ParameterUnsupported("tools", "This model is served without tool calls: leave out 'tools'")
    if conversation.response_format != "text":
        message = "This model is served without constrained output: 'response_format' must be of type 'text'"
        raise ParameterUnsupported("response_format", message)
    if has_tools(conversation):
        raise ParameterUnsupported(
            "messages", "This model is served without tool calls, in earlier messages too"
        )
    if any(message.image_sources for message in conversation.messages):
        raise ParameterUnsupported("messages", "This model reads no images")
    if any(message.prefix for message in conversation.messages):
        raise ParameterUnsupported(
            "messages", "This model does not continue a message: 'prefix' is not served"
        )


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

    Raises:
        ParameterInvalid: more than the whole context was asked for.
        PromptTooLong: what was asked for does not fit behind the prompt.
    """
    room = context_tokens - len(prompt.token_ids)
    assert room > 0, "render refuses prompts that leave no room"
    asked = request.max_tokens
    if asked is None:
        return min(prompt.max_tokens_default, room)
    if asked > context_tokens:
        param = request.max_tokens_param
        raise ParameterInvalid(param, f"'{param}' must be at most {context_tokens}, the model's context")
    if asked > room:
        raise PromptTooLong(context_tokens, len(prompt.token_ids), asked)
    return asked
