"""OpenAI's Responses: the body they send. `recipe.protocols.responses_stream` writes the answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from deepseek_recipe import ConversionOptions

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.protocols import openai, parameters
from recipe.protocols.responses_bridge import (
    CONVERTED,
    CUSTOM_TOOL,
    Bridged,
    bridged,
    convert,
    echo,
    namespaces,
)
from recipe.request import Request

NAME_CHARS_MAX: Final = 512
METADATA_MAX: Final = 16
METADATA_CHARS_MAX: Final = 512
TOOL_CALLS_BOUND: Final = 2**31 - 1

_ENCRYPTED: Final = "reasoning.encrypted_content"
_LOGPROBS: Final = "message.output_text.logprobs"

_NAMES: Final = {
    "messages": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}

# What is kept here between requests is nothing: whoever refers to it would be answered without it.
_STATEFUL: Final = ("previous_response_id", "conversation", "prompt")
# Other surfaces' words for what is served, which would be without effect here.
_SAID_OTHERWISE: Final[Mapping[str, str]] = {
    "messages": "'input'",
    "max_tokens": "'max_output_tokens'",
    "max_completion_tokens": "'max_output_tokens'",
    "response_format": "'text.format'",
    "reasoning_effort": "'reasoning.effort'",
    "thinking": "'reasoning.effort'",
    "functions": "'tools'",
    "stop": "chat completions",
    "seed": "chat completions",
    "n": "one request for each",
    "presence_penalty": "chat completions",
    "frequency_penalty": "chat completions",
}
# What has an effect here. Every other parameter of a body is reported as ignored. Tools of the server, which
# `max_tool_calls` bounds, are never called.
_SERVED: Final = frozenset(
    {
        *CONVERTED,
        *("model", "stream", "include", "user_id", "service_tier", "parallel_tool_calls", "max_tool_calls"),
        *("max_output_tokens", "temperature", "top_p", "background", "store", "truncation", "top_logprobs"),
    }
)
_OPTIONS: Final = ConversionOptions().with_default_thinking_mode(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest(Request):
    """A Responses body.

    Attributes:
        echo: what response objects say of their request.
        namespaces: a tool's name as the model knows it, to its namespace and its name there.
        custom_tools: tools whose arguments are one text, ``input``.
        encrypted: items of reasoning are to carry ``encrypted_content``.
    """

    echo: Mapping[str, Any] = field(default_factory=dict, repr=False)
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    custom_tools: frozenset[str] = frozenset()
    encrypted: bool = False


def read(body: bytes) -> ResponsesRequest:
    """Read a Responses body.

    Raises:
        BodyMalformed: it is no JSON object.
        ParameterInvalid: a parameter is missing, of the wrong type or out of range.
        ParameterUnsupported: it asks for what is not served, or refers to what nobody has kept.
    """
    document = parameters.read_object(body)
    sent = frozenset(name for name, value in document.items() if value is not None)
    model = parameters.model(document)
    _refuse_unserved(document, sent)
    include = _include(document)
    ignored = {*(sent - _SERVED), *_without_effect(document, include)}
    max_tokens = parameters.integer(document, "max_output_tokens", 1, parameters.MAX_TOKENS_BOUND)
    sampling = openai.sampling(document)
    tier = openai.service_tier(document)
    said = _said(document)
    spelled = bridged(document)
    converted = convert(spelled.wire, _OPTIONS)
    return ResponsesRequest(
        model=model,
        conversation=converted.conversation,
        convert=partial(convert, spelled.wire),
        sampling=sampling,
        max_tokens=max_tokens,
        max_tokens_param="max_output_tokens",
        names=_NAMES,
        stream=parameters.flag(document, "stream"),
        user_id=parameters.text(document, "user_id", parameters.USER_ID_CHARS_MAX) or "",
        forced_tool=spelled.forced_tool,
        parallel_calls="parallel_tool_calls" not in sent or bool(said["parallel_tool_calls"]),
        service_tier=tier,
        sent=sent,
        ignored_params=tuple(sorted(ignored | spelled.dropped)),
        echo={
            **echo({**spelled.echoed, **_told_whole(document)}, converted),
            **said,
            "service_tier": tier or "default",
        },
        namespaces=namespaces(spelled.wire, _OPTIONS),
        custom_tools=_custom_tools(spelled),
        encrypted=_ENCRYPTED in include,
        logprobs=int(document.get("top_logprobs") or 0) if _LOGPROBS in include else None,
    )


def _refuse_unserved(document: parameters.Body, sent: frozenset[str]) -> None:
    for name in _STATEFUL:
        if name in sent:
            message = f"'{name}' is not served: nothing is kept between requests; send all of the 'input'"
            raise ParameterUnsupported(name, message)
    if parameters.flag(document, "background"):
        raise ParameterUnsupported("background", "'background' is not served: the answer comes at once")
    for name, otherwise in _SAID_OTHERWISE.items():
        if name in sent:
            raise ParameterUnsupported(name, f"'{name}' has no meaning in Responses: use {otherwise}")


def _include(document: parameters.Body) -> list[str]:
    include = document.get("include")
    if include is None:
        return []
    if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
        raise ParameterInvalid("include", "'include' must be a list of strings", malformed=True)
    return include


def _without_effect(document: parameters.Body, include: list[str]) -> set[str]:
    """Names of what is known, harmless, and ignored in the form it was sent."""
    truncation = document.get("truncation")
    if truncation not in (None, "auto", "disabled"):
        raise ParameterInvalid("truncation", "'truncation' must be 'auto' or 'disabled'")
    parameters.mapping(document, "stream_options")
    text, reasoning = parameters.mapping(document, "text"), parameters.mapping(document, "reasoning")
    top = parameters.integer(document, "top_logprobs", 0, parameters.TOP_LOGPROBS_MAX)
    without = {
        "store": parameters.flag(document, "store"),
        "truncation": truncation == "auto",
        "top_logprobs": bool(top) and _LOGPROBS not in include,
        "include": any(name not in (_ENCRYPTED, _LOGPROBS) for name in include),
        "text.verbosity": text is not None and text.get("verbosity") is not None,
        "reasoning.summary": reasoning is not None
        and bool(reasoning.keys() & {"summary", "generate_summary"}),
    }
    return {name for name, sent_so in without.items() if sent_so}


def _told_whole(document: parameters.Body) -> dict[str, Any]:
    """Settings that deepseek-recipe echoes; a whole number may come as 3.0, which it does not read."""
    names = ("temperature", "top_p", "top_logprobs", "max_output_tokens")
    told = {name: document[name] for name in names if document.get(name) is not None}
    return told | {name: int(told[name]) for name in names[2:] if name in told}


def _said(document: parameters.Body) -> dict[str, Any]:
    """Settings that deepseek-recipe does not echo, checked."""
    said: dict[str, Any] = {
        name: parameters.text(document, name, NAME_CHARS_MAX)
        for name in ("user", "safety_identifier", "prompt_cache_key")
    }
    parallel = document.get("parallel_tool_calls")
    said["parallel_tool_calls"] = (
        True if parallel is None else parameters.flag(document, "parallel_tool_calls")
    )
    said["max_tool_calls"] = parameters.integer(document, "max_tool_calls", 1, TOOL_CALLS_BOUND)
    said["metadata"] = metadata = parameters.mapping(document, "metadata") or {}
    if len(metadata) > METADATA_MAX:
        raise ParameterInvalid("metadata", f"'metadata' must have at most {METADATA_MAX} entries")
    for value in metadata.values():
        if not isinstance(value, str) or len(value) > METADATA_CHARS_MAX:
            message = f"'metadata' must hold strings of at most {METADATA_CHARS_MAX} characters"
            raise ParameterInvalid("metadata", message)
    return said


def _custom_tools(spelled: Bridged) -> frozenset[str]:
    tools = spelled.wire.get("tools", ())
    return frozenset(CUSTOM_TOOL for tool in tools if tool["type"] == "custom")
