"""DeepSeek's and OpenAI's chat completions: the bodies they send. The answers: `chat_answer`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from deepseek_recipe import ConversionOptions

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.protocols import openai, parameters
from recipe.protocols.chat_bridge import CONVERTED, bridged, convert, forces_tool, renamed, thinking
from recipe.request import Request

# What has an effect here. Every other parameter of a body is reported as ignored.
_SERVED: Final = frozenset(
    {
        *CONVERTED,
        *(
            "model",
            "messages",
            "functions",
            "function_call",
            "parallel_tool_calls",
            "enable_thinking",
            "chat_template_kwargs",
            "n",
            "stream",
            "stream_options",
            "stop",
            "logprobs",
            "top_logprobs",
            "user_id",
            "service_tier",
        ),
        *("max_tokens", "max_completion_tokens", "modalities", "audio"),
        *("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(Request):
    """A chat body.

    Attributes:
        include_usage: its stream ends with a chunk of usage without choices.
        tool_names: the client's names of tools that go by another one here.
        legacy_functions: it speaks of functions, as clients did before tools: one call, in ``function_call``.
    """

    include_usage: bool = False
    tool_names: Mapping[str, str] = field(default_factory=dict)
    legacy_functions: bool = False


_THINKING: Final = ("thinking", "reasoning_effort", "enable_thinking", "chat_template_kwargs")
_ANY: Final = {"role": "user", "content": "x"}
_OPTIONS: Final = ConversionOptions().with_default_thinking_mode(False)


def read(body: bytes) -> ChatRequest:
    """Read a chat completion's body.

    Raises:
        BodyMalformed: it is no JSON object.
        ParameterInvalid: a parameter is missing, of the wrong type or out of range.
        ParameterUnsupported: it asks for what no model here is served with, such as several choices.
    """
    document = parameters.read_object(body)
    sent = frozenset(name for name, value in document.items() if value is not None)
    model = parameters.model(document)
    _refuse_other_answers(document)
    wire, tool_names = renamed(bridged(document))
    conversation = convert(wire, _OPTIONS).conversation
    choice = wire.get("tool_choice")
    if forces_tool(wire) and _asks_to_think(document):
        conversation = thinking(conversation)
    parallel = document.get("parallel_tool_calls") is None or parameters.flag(document, "parallel_tool_calls")
    stream = parameters.flag(document, "stream")
    return ChatRequest(
        model=model,
        conversation=conversation,
        convert=partial(convert, wire),
        sampling=openai.sampling(document),
        max_tokens=_max_tokens(document),
        max_tokens_param="max_completion_tokens" if "max_completion_tokens" in sent else "max_tokens",
        forced_tool=choice["function"]["name"] if isinstance(choice, dict) else None,
        parallel_calls=parallel and "functions" not in sent,
        tool_names=tool_names,
        legacy_functions="functions" in sent,
        stop=parameters.stops(document, "stop"),
        stream=stream,
        include_usage=openai.include_usage(document, stream=stream),
        logprobs=_logprobs(document),
        user_id=parameters.text(document, "user_id", parameters.USER_ID_CHARS_MAX) or "",
        ignored_params=tuple(sorted(sent - _SERVED)),
        sent=sent,
        service_tier=openai.service_tier(document),
    )


def _logprobs(document: Mapping[str, Any]) -> int | None:
    """How many of the likeliest tokens are told beside each drawn one; None where neither are."""
    top = parameters.integer(document, "top_logprobs", 0, parameters.TOP_LOGPROBS_MAX)
    if parameters.flag(document, "logprobs"):
        return top or 0
    if top:
        raise ParameterInvalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true")
    return None


def _asks_to_think(document: Mapping[str, Any]) -> bool:
    """Whether a body says so, whatever else it wants."""
    said = {name: document.get(name) for name in _THINKING}
    return bool(convert(bridged({**said, "messages": [_ANY]}), _OPTIONS).conversation.thinking_mode)


def _refuse_other_answers(document: Mapping[str, Any]) -> None:
    """Refuse what would make the answer another one, and is not served."""
    if parameters.integer(document, "n", 1, 128) not in (None, 1):
        raise ParameterUnsupported("n", "'n' must be 1: one choice is served per request")
    if document.get("modalities") not in (None, [], ["text"]):
        raise ParameterUnsupported("modalities", "'modalities' must be [\"text\"]")
    for param in ("audio", "logit_bias", "web_search_options"):
        if document.get(param):
            raise ParameterUnsupported(param, f"'{param}' is not served")


def _max_tokens(document: Mapping[str, Any]) -> int | None:
    newer = parameters.integer(document, "max_completion_tokens", 1, parameters.MAX_TOKENS_BOUND)
    older = parameters.integer(document, "max_tokens", 1, parameters.MAX_TOKENS_BOUND)
    return newer if newer is not None else older
