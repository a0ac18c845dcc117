"""Bodies that are almost right: a minimal one of each surface, with a few things in it changed."""

import copy
import json
from typing import Any, Final

from hypothesis import strategies as st

from tests.conformance.client import CITY_SCHEMA, TOOL, TOOL_SCHEMA

CHAT_TOOLS: Final = [{"type": "function", "function": {"name": TOOL, "parameters": TOOL_SCHEMA}}]
CALL: Final = {
    "id": "call_1",
    "type": "function",
    "function": {"name": TOOL, "arguments": '{"city": "Paris"}'},
}
IMAGE: Final = "data:image/png;base64,iVBORw0KGgo="
# By the path that takes them; what a client of each kind sends, every parameter at least once.
BODIES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be brief"}]},
                {"role": "user", "content": "Hi", "name": "Ann"},
                {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm"},
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            ],
            "tools": CHAT_TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stop": ["\n\n", "END"],
            "user_id": "u-1",
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "As JSON"},
                        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
                    ],
                }
            ],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "City", "strict": True, "schema": CITY_SCHEMA},
            },
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "n": 1,
            "presence_penalty": 0.1,
            "frequency_penalty": -0.1,
            "logprobs": True,
            "top_logprobs": 2,
            "max_completion_tokens": 9,
            "reasoning_effort": "low",
            "thinking": {"type": "disabled"},
            "service_tier": "auto",
            "metadata": {"a": "b"},
        },
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hel", "prefix": True},
            ],
            "functions": [CHAT_TOOLS[0]["function"]],
            "function_call": {"name": TOOL},
        },
    ),
    "/v1/messages": (
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
        {
            "system": [{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": "s"},
                        {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": {"city": "Paris"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_1",
                            "content": "sunny",
                            "is_error": False,
                        },
                        {
                            "type": "document",
                            "source": {"type": "text", "media_type": "text/plain", "data": "A text"},
                        },
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                        },
                    ],
                },
            ],
            "tools": [{"name": TOOL, "description": "Weather", "input_schema": TOOL_SCHEMA}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": CITY_SCHEMA}},
            "max_tokens": 2048,
            "stop_sequences": ["END"],
            "temperature": 1,
            "top_p": 0.9,
            "top_k": 5,
            "stream": True,
            "metadata": {"user_id": "u-1"},
        },
    ),
    "/v1/messages/count_tokens": (
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "system": "Be brief",
            "tools": [{"name": TOOL, "input_schema": TOOL_SCHEMA}],
        },
    ),
    "/v1/responses": (
        {"input": "Hi", "max_output_tokens": 5},
        {
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
                {
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": TOOL,
                    "arguments": '{"city": "Paris"}',
                },
                {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
            ],
            "instructions": "Be brief",
            "tools": [{"type": "function", "name": TOOL, "parameters": TOOL_SCHEMA, "strict": True}],
            "tool_choice": {"type": "function", "name": TOOL},
            "text": {"format": {"type": "json_schema", "name": "City", "schema": CITY_SCHEMA}},
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "store": False,
            "stream": True,
            "temperature": 0.5,
            "top_p": 0.9,
            "metadata": {"a": "b"},
        },
    ),
    "/v1/completions": (
        {"prompt": "Once", "max_tokens": 5, "stop": "END", "echo": False},
        {"prompt": "Once", "stream": True, "stream_options": {"include_usage": True}, "logprobs": 2, "n": 1},
    ),
    "/beta/completions": ({"prompt": "def f(", "suffix": "return 1", "max_tokens": 5},),
}

_SMALL: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        ["", "\ud800", "\x00", "<|im_end|>", "</think>", "a" * 3000, "auto", "json_schema", "user"]
    ),
)
ANYTHING: Final = st.recursive(
    _SMALL,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["type", "name", "content", "text", "$ref", "x"]), inner, max_size=4),
    ),
    max_leaves=8,
)
DEEP: Final = st.integers(1, 600).map(lambda depth: json.loads("[" * depth + "]" * depth))
DEPTH_MAX: Final = 12
WORDS: Final = (
    "type",
    "role",
    "content",
    "tools",
    "stream",
    "n",
    "stop",
    "logit_bias",
    "audio",
    "prompt",
    "input",
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a body, not too deep: a path of keys each."""
    if len(path) > DEPTH_MAX or not isinstance(value, dict | list):
        return []
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    own = [(*path, key) for key, _ in items]
    return own + [place for key, inner in items for place in _places(inner, (*path, key))]


@st.composite
def changed(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """A body with one to four things replaced, removed, doubled or added."""
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 4))):
        places = _places(body)
        if not places:
            break
        *path, key = draw(st.sampled_from(places))
        at: Any = body
        for step in path:
            at = at[step]
        match draw(st.sampled_from(("replace", "replace", "remove", "double", "add"))):
            case "replace":
                at[key] = draw(st.one_of(ANYTHING, DEEP))
            case "remove":
                del at[key]
            case "double" if isinstance(at, list):
                at.insert(key, copy.deepcopy(at[key]))
            case _ if isinstance(at, dict):
                at[draw(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)))] = draw(ANYTHING)
    return body


@st.composite
def requests(draw: st.DrawFn, model: str, paths: tuple[str, ...]) -> tuple[str, bytes]:
    """A path and the bytes to send it: mostly a changed body, now and then no JSON at all."""
    path = draw(st.sampled_from(paths))
    body = draw(changed({"model": model, **draw(st.sampled_from(BODIES[path]))}))
    raw = json.dumps(body).encode()
    if draw(st.integers(0, 19)):
        return path, raw
    cut = draw(st.integers(0, len(raw)))
    return path, raw[:cut] + draw(st.binary(max_size=4)) + raw[cut + draw(st.integers(0, 2)) :]
