"""Anthropic's bodies that are refused, and which parameter a refusal names; none gets through unread."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.errors import BodyMalformed, ParameterInvalid, ParameterUnsupported, RecipeError
from recipe.protocols.messages import read, read_counted
from tests.recipe.messages_bodies import CALL, FORMAT, PDF, RESULT, TEXT_DOCUMENT, TOOL, USER, request, said


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[]", b"null", b'{"a":NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_malformed(raw: bytes) -> None:
    for reading in (read, read_counted):
        with pytest.raises(BodyMalformed):
            reading(raw)


MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": None}),
    ("model", {"model": 3}),
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": "9"}),
    ("messages", {"messages": None}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "hi"}),
    ("messages[1]", {"messages": [USER, 1]}),
    ("messages[1]", {"messages": [USER, {"role": "wizard", "content": "x"}]}),
    ("messages[0]", {"messages": [{"role": "user"}]}),
    ("messages[0]", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0]", {"messages": [{"role": "user", "content": [5]}]}),
    ("messages[0]", {"messages": [said({"type": "sculpture"})]}),
    ("messages[0]", {"messages": [said({"type": "text", "text": 5})]}),
    ("messages[1].content[0].input", {"messages": [USER, said({**CALL, "input": "{}"}, role="assistant")]}),
    (
        "messages[0].content[0].source",
        {"messages": [said({"type": "document", "source": {"type": "text", "data": 5}})]},
    ),
    ("messages[0].content[0].title", {"messages": [said({**TEXT_DOCUMENT, "title": 5})]}),
    ("system", {"system": 5}),
    ("system", {"system": [5]}),
    ("system", {"system": [{"type": "image"}]}),
    ("temperature", {"temperature": "0.5"}),
    ("top_p", {"top_p": []}),
    ("stop_sequences", {"stop_sequences": 3}),
    ("stop_sequences[1]", {"stop_sequences": ["x", 3]}),
    ("stream", {"stream": "yes"}),
    ("tools", {"tools": "hammer"}),
    ("tools[0]", {"tools": [5]}),
    ("tools[0].strict", {"tools": [{**TOOL, "strict": "yes"}]}),
    ("tools", {"tools": [{**TOOL, "description": 5}]}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": "auto"}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "odd"}}),
    (
        "tool_choice.disable_parallel_tool_use",
        {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": 1}},
    ),
    ("thinking", {"thinking": "on"}),
    ("thinking", {"thinking": {"type": "sometimes"}}),
    ("thinking", {"thinking": {"type": "enabled", "budget_tokens": "x"}}),
    ("output_config", {"output_config": 5}),
    ("output_config.effort", {"output_config": {"effort": "heroic"}}),
    ("output_config.format", {"output_config": {"format": {"type": "poem"}}}),
    ("output_config.format", {"output_config": {"format": {"type": "json_schema"}}}),
    ("output_config.format", {"output_config": {"format": {**FORMAT, "schema": {"const": 10**40}}}}),
    ("output_format", {"output_format": "json"}),
    ("metadata", {"metadata": "u"}),
    ("metadata.user_id", {"metadata": {"user_id": 5}}),
]
OUT_OF_RANGE: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 10**30}),
    ("temperature", {"temperature": 2.1}),
    ("top_p", {"top_p": 0}),
    ("stop_sequences", {"stop_sequences": ["x"] * 17}),
    ("stop_sequences[0]", {"stop_sequences": ["x" * 257]}),
    ("service_tier", {"service_tier": "priority"}),
    ("messages", {"messages": [USER] * 10_001}),
    ("messages", {"messages": [said(*[{"type": "text", "text": ""}] * 20_001)]}),
    ("tools", {"tools": [TOOL] * 257}),
    ("tools", {"tools": [TOOL, TOOL]}),
    ("tools[0]", {"tools": [{**TOOL, "name": "a.b"}]}),
    ("tools", {"tools": [{"name": "f", "input_schema": {"type": "string"}}]}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}),
    ("messages[1]", {"messages": [USER, said(CALL, role="assistant")]}),
    ("messages[0]", {"messages": [said(RESULT)]}),
    ("messages[0]", {"messages": [said()]}),
]
UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("tools[1]", {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools[0]", {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
    ("tools[0]", {"tools": [{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}]}),
    ("tools[0]", {"tools": [{"type": "computer_20250124", "name": "computer"}]}),
    ("tools[0]", {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}),
    ("mcp_servers", {"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "x"}]}),
    ("messages[0].content[1].source", {"messages": [said({"type": "text", "text": "x"}, PDF)]}),
    (
        "messages[0].content[0].source",
        {"messages": [said({**PDF, "source": {"type": "url", "url": "https://example.com/a.pdf"}})]},
    ),
    (
        "messages[0].content[0].source",
        {"messages": [said({**PDF, "source": {"type": "file", "file_id": "file_1"}})]},
    ),
    (
        "messages[0].content[0].source",
        {"messages": [said({**PDF, "source": {"type": "content", "content": [CALL]}})]},
    ),
    (
        "messages[2].content[0].content[0].source",
        {"messages": [USER, said(CALL, role="assistant"), said({**RESULT, "content": [PDF]})]},
    ),
    (
        "messages[1].content[0]",
        {"messages": [USER, said({"type": "server_tool_use", "id": "1", "name": "x"}, role="assistant")]},
    ),
]


@pytest.mark.parametrize(("param", "parameters"), MALFORMED)
def test_a_wrong_type_is_refused_by_name(param: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterInvalid) as caught:
        request(**parameters)
    assert (caught.value.param, caught.value.malformed) == (param, True)


@pytest.mark.parametrize(("param", "parameters"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(param: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterInvalid) as caught:
        request(**parameters)
    assert (caught.value.param, caught.value.malformed) == (param, False)


@pytest.mark.parametrize(("param", "parameters"), UNSUPPORTED)
def test_what_is_not_served_is_refused_by_name(param: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterUnsupported) as caught:
        request(**parameters)
    assert caught.value.param == param


def test_the_refusal_of_a_server_tool_names_it() -> None:
    with pytest.raises(ParameterUnsupported, match="'web_search' of type 'web_search_20250305'"):
        request(tools=[{"type": "web_search_20250305", "name": "web_search"}])


def test_nesting_deeper_than_a_parser_goes_is_refused_by_name() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a": deep}
    for param, parameters in (
        ("messages[1]", {"messages": [USER, said({**CALL, "input": deep}, role="assistant"), said(RESULT)]}),
        ("tools", {"tools": [{"name": "f", "input_schema": deep}]}),
        ("output_format", {"output_format": {"type": "json_schema", "schema": deep}}),
    ):
        with pytest.raises(ParameterInvalid) as caught:
            request(**parameters)
        assert caught.value.param == param


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
# A body of everything; each place in it may be replaced.
WHOLE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        said({"type": "text", "text": "x"}, TEXT_DOCUMENT),
        said({"type": "thinking", "thinking": "t", "signature": "s"}, CALL, role="assistant"),
        said({**RESULT, "content": [{"type": "text", "text": "2"}], "is_error": True}),
        {"role": "assistant", "content": "{"},
    ],
    "tools": [{**TOOL, "type": "custom", "strict": True}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": FORMAT},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["x"],
    "service_tier": "auto",
    "temperature": 1,
    "top_p": 1,
    "top_k": 5,
    "stream": True,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


def test_the_body_of_everything_is_read() -> None:
    assert read(msgspec.json.encode(WHOLE)).conversation.messages[-1].prefix


@given(st.sampled_from(places(WHOLE)[1:]), JSON)
def test_whatever_stands_at_any_place_of_a_body_it_is_read_or_refused(
    path: tuple[Any, ...], new: Any
) -> None:
    raw = msgspec.json.encode(replaced(WHOLE, path, new))
    for reading in (read, read_counted):
        with contextlib.suppress(RecipeError):
            assert reading(raw).conversation.messages
