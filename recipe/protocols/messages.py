"""Anthropic's Messages: the body its clients send. `messages_answer` has the answers they expect."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from deepseek_recipe import ConversionOptions

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.prompt import Sampling
from recipe.protocols import parameters
from recipe.protocols.messages_bridge import Bridged
from recipe.request import Request, ServiceTier

# There is no other capacity here than the standard one, so both say the same.
_TIERS: Final = ("auto", "standard_only")

# What has an effect here. Every other parameter of a body is reported as ignored.
_SERVED: Final = frozenset(
    {
        *(
            "model",
            "system",
            "messages",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
            "output_format",
        ),
        *("max_tokens", "stop_sequences", "stream", "temperature", "top_p", "top_k"),
        *("metadata", "service_tier", "mcp_servers"),
    }
)
_OPTIONS: Final = ConversionOptions().with_default_thinking_mode(False)


def read(body: bytes) -> Request:
    """Read the body of a message to be answered.

    Raises:
        BodyMalformed: it is no JSON object.
        ParameterInvalid: a parameter is missing, of the wrong type or out of range.
        ParameterUnsupported: server tools, documents that are no text, or MCP servers are asked for.
    """
    document = parameters.read_object(body)
    max_tokens = parameters.integer(document, "max_tokens", 1, parameters.MAX_TOKENS_BOUND)
    if max_tokens is None:
        raise ParameterInvalid("max_tokens", "'max_tokens' is missing", malformed=True)
    return _request(document, max_tokens)


def read_counted(body: bytes) -> Request:
    """Read the body of a message whose tokens are to be counted: it need not say how long the answer may be.

    Raises as `read` does.
    """
    return _request(parameters.read_object(body), None)


def _request(document: Mapping[str, Any], max_tokens: int | None) -> Request:
    sent = {name for name, value in document.items() if value is not None}
    model = parameters.model(document)
    if document.get("mcp_servers") not in (None, []):
        raise ParameterUnsupported("mcp_servers", "MCP servers are not served: offer their tools as your own")
    bridged = Bridged.of(document)
    ignored = (sent - _SERVED) | bridged.ignored
    user_id = _user_id(document, ignored)
    if (document.get("output_config") or {}).get("effort") is not None:
        sent.add("output_config.effort")
    temperature = parameters.number(document, "temperature", 0, 2)
    top_p = parameters.top_p(document)
    return Request(
        model=model,
        conversation=bridged.convert(_OPTIONS).conversation,
        convert=bridged.convert,
        sampling=Sampling(
            temperature=1.0 if temperature is None else temperature,
            top_p=1.0 if top_p is None else top_p,
            top_k=parameters.integer(document, "top_k", 0, parameters.TOP_K_MAX) or 0,
        ),
        max_tokens=max_tokens,
        max_tokens_lowered=True,  # as DeepSeek's own; agents ask for what Claude can write
        stop=parameters.stops(document, "stop_sequences"),
        stream=parameters.flag(document, "stream"),
        forced_tool=bridged.forced_tool,
        parallel_calls=bridged.parallel_calls,
        user_id=user_id,
        service_tier=_service_tier(document),
        sent=frozenset(sent),
        ignored_params=tuple(sorted(ignored)),
    )


def _user_id(document: Mapping[str, Any], ignored: set[str]) -> str:
    """The end user; whoever writes more than an id into it (agents do) is known by its digest."""
    metadata = document.get("metadata")
    if metadata is None:
        return ""
    if not isinstance(metadata, dict):
        raise ParameterInvalid("metadata", "'metadata' must be an object", malformed=True)
    ignored |= {
        f"metadata.{name}" for name, value in metadata.items() if name != "user_id" and value is not None
    }
    user_id = metadata.get("user_id")
    if user_id is not None and not isinstance(user_id, str):
        param = "metadata.user_id"
        raise ParameterInvalid(param, f"'{param}' must be a string", malformed=True)
    if user_id is None or len(user_id) <= parameters.USER_ID_CHARS_MAX:
        return user_id or ""
    return f"sha256:{hashlib.sha256(user_id.encode()).hexdigest()}"


def _service_tier(document: Mapping[str, Any]) -> ServiceTier | None:
    tier = parameters.text(document, "service_tier", parameters.MODEL_CHARS_MAX)
    if tier is None:
        return None
    if tier not in _TIERS:
        raise ParameterInvalid("service_tier", f"'service_tier' must be one of {', '.join(_TIERS)}")
    return "default"
