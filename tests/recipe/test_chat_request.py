"""Reading chat bodies: what is accepted, what is refused, and which parameter a refusal names."""

import contextlib
from typing import Any

import msgspec
import pytest
from deepseek_recipe import ConversionOptions
from hypothesis import given
from hypothesis import strategies as st

from recipe.conversation import has_tools
from recipe.errors import BodyMalformed, ParameterInvalid, ParameterUnsupported, RecipeError
from recipe.prompt import Sampling
from recipe.protocols.chat import ChatRequest, read

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def body(**parameters: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": [USER], **parameters})


def request(**parameters: Any) -> ChatRequest:
    return read(body(**parameters))


def spoken(read_request: ChatRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in read_request.conversation.messages]


def test_a_plain_body_has_the_protocols_defaults() -> None:
    plain = request()
    assert plain.model == "m"
    assert spoken(plain) == [("user", "hi")]
    assert plain.sampling == Sampling()
    assert (plain.max_tokens, plain.stop, plain.stream, plain.include_usage) == (None, (), False, False)
    assert (plain.user_id, plain.ignored_params) == ("", ())
    assert not plain.conversation.thinking_mode


def test_every_parameter_arrives() -> None:
    full = request(
        temperature=0,
        top_p=0.5,
        seed=7,
        presence_penalty=-1,
        frequency_penalty=0.5,
        max_tokens=9,
        stop=["END", ""],
        stream=True,
        stream_options={"include_usage": True},
        user_id="u-1",
    )
    assert full.sampling == Sampling(0.0, 0.5, 7, -1.0, 0.5)
    assert (full.max_tokens, full.stop, full.stream, full.include_usage) == (9, ("END",), True, True)
    assert full.user_id == "u-1"


def test_null_means_absent() -> None:
    names = ("temperature", "top_p", "seed", "max_tokens", "stop", "stream", "stream_options", "store")
    nulls = request(**dict.fromkeys(names), tools=None, response_format=None, n=None, user_id=None)
    assert (nulls.sampling, nulls.max_tokens, nulls.stop, nulls.stream) == (Sampling(), None, (), False)
    assert nulls.ignored_params == ()


def test_max_completion_tokens_is_honoured_and_wins() -> None:
    assert request(max_completion_tokens=5).max_tokens == 5
    assert request(max_completion_tokens=5, max_tokens=9).max_tokens == 5


@pytest.mark.parametrize(
    ("stop", "expected"), [("x", ("x",)), (["x"], ("x",)), (None, ()), ([], ()), ("", ())]
)
def test_stop_comes_as_a_string_a_list_or_nothing(stop: Any, expected: tuple[str, ...]) -> None:
    assert request(stop=stop).stop == expected


def test_developer_messages_are_system_messages() -> None:
    messages = [{"role": "developer", "content": "be brief"}, USER]
    assert spoken(request(messages=messages)) == [("system", "be brief"), ("user", "hi")]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert spoken(request(messages=[{"role": "user", "content": parts}])) == [("user", "a\n\nb")]


def test_an_image_may_be_a_plain_string() -> None:
    parts = [{"type": "image_url", "image_url": "https://example.com/a.png"}]
    (message,) = request(messages=[{"role": "user", "content": parts}]).conversation.messages
    assert len(message.image_sources) == 1


def test_empty_tool_calls_are_none() -> None:
    messages = [USER, {"role": "assistant", "content": "a", "tool_calls": []}, USER]
    assert not has_tools(request(messages=messages).conversation)


def test_tools_are_seen_when_offered_or_used() -> None:
    used = [USER, {"role": "assistant", "tool_calls": [CALL]}]
    used.append({"role": "tool", "tool_call_id": "call_1", "content": "1"})
    assert has_tools(request(tools=[TOOL]).conversation)
    assert has_tools(request(messages=used).conversation)
    assert not has_tools(request(tools=[TOOL], tool_choice="none").conversation)


def test_legacy_functions_are_tools() -> None:
    legacy = request(functions=[TOOL["function"]], function_call={"name": "f"})
    assert [tool.name for tool in legacy.conversation.tools] == ["f"]
    assert legacy.conversation.tool_choice == "required"
    assert legacy.ignored_params == ()


def test_thinking_is_read_and_yields_to_a_forced_tool_only_in_the_body_that_deepseek_recipe_reads() -> None:
    assert request(thinking={"type": "enabled"}).conversation.thinking_mode
    assert request(reasoning_effort="high").conversation.thinking_mode
    assert not request(reasoning_effort="none").conversation.thinking_mode
    forced = request(tools=[TOOL], tool_choice="required", reasoning_effort="high")
    assert forced.conversation.thinking_mode
    assert (forced.conversation.tool_choice, forced.forced_tool) == ("required", None)
    assert not forced.convert(ConversionOptions()).conversation.thinking_mode
    named = request(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})
    assert (named.conversation.tool_choice, named.forced_tool) == ("required", "f")
    assert not named.conversation.thinking_mode


def test_log_probabilities_are_asked_for_with_as_many_likely_tokens_as_wanted() -> None:
    assert [request(logprobs=asked).logprobs for asked in (None, False, True)] == [None, None, 0]
    assert request(logprobs=True, top_logprobs=20).logprobs == 20
    assert request(top_logprobs=0).logprobs is None
    for refused in ({"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2}):
        with pytest.raises(ParameterInvalid) as caught:
            request(**refused)
        assert caught.value.param == "top_logprobs"


def test_parameters_without_effect_are_reported() -> None:
    assert request(store=True, logit_bias={}, user="u", top_k=5, logprobs=False).ignored_params == (
        "logit_bias",
        "store",
        "top_k",
        "user",
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a":NaN}',
        b"[]",
        b'"x"',
        b"null",
        b"{}x",
        b'{"model":"\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_json_object_is_malformed(raw: bytes) -> None:
    with pytest.raises(BodyMalformed):
        read(raw)


MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": None}),
    ("model", {"model": ""}),
    ("model", {"model": 3}),
    ("messages", {"messages": None}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "hi"}),
    ("messages[1]", {"messages": [USER, 1]}),
    ("messages[1]", {"messages": [USER, {"role": "wizard", "content": "x"}]}),
    ("messages[0]", {"messages": [{"role": "user"}]}),
    ("messages[0]", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0]", {"messages": [{"content": "x"}]}),
    ("messages[1]", {"messages": [USER, {"role": "user", "content": [{"type": "sculpture"}]}]}),
    ("temperature", {"temperature": "0.5"}),
    ("temperature", {"temperature": True}),
    ("top_p", {"top_p": []}),
    ("presence_penalty", {"presence_penalty": {}}),
    ("frequency_penalty", {"frequency_penalty": "1"}),
    ("seed", {"seed": 1.5}),
    ("seed", {"seed": "1"}),
    ("max_tokens", {"max_tokens": "9"}),
    ("max_tokens", {"max_tokens": 1.5}),
    ("max_tokens", {"max_tokens": True}),
    ("max_completion_tokens", {"max_completion_tokens": "9"}),
    ("stop", {"stop": 3}),
    ("stop[1]", {"stop": ["x", 3]}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream": True, "stream_options": 1}),
    ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": 1}}),
    ("user_id", {"user_id": 3}),
    ("n", {"n": "1"}),
    ("tools", {"tools": "hammer"}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("response_format", {"response_format": {"type": "poem"}}),
    ("thinking", {"thinking": {"type": "sometimes"}}),
    ("reasoning_effort", {"reasoning_effort": "heroic"}),
]
OUT_OF_RANGE: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 2.1}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": -1}),
    ("top_p", {"top_p": 1.01}),
    ("presence_penalty", {"presence_penalty": -2.5}),
    ("frequency_penalty", {"frequency_penalty": 3}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**63}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -5}),
    ("max_tokens", {"max_tokens": 10**30}),
    ("max_completion_tokens", {"max_completion_tokens": 0}),
    ("stop", {"stop": ["x"] * 17}),
    ("stop[0]", {"stop": "x" * 257}),
    ("n", {"n": 0}),
    ("n", {"n": -1}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("user_id", {"user_id": "u" * 513}),
    ("messages", {"messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}]}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("messages", {"messages": [USER] * 10_001}),
    ("tools", {"tools": [TOOL] * 257}),
    ("functions", {"functions": [TOOL["function"]] * 257}),
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


@pytest.mark.parametrize(
    ("param", "parameters"),
    [
        ("n", {"n": 2}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("audio", {"audio": {"voice": "x"}}),
    ],
)
def test_what_is_not_served_is_refused_by_name(param: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterUnsupported) as caught:
        request(**parameters)
    assert caught.value.param == param


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
PARAMETERS = st.sampled_from(
    [
        *("model", "messages", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "n"),
        *("max_tokens", "max_completion_tokens", "stop", "stream", "stream_options", "user_id", "audio"),
        *("tools", "tool_choice", "functions", "function_call", "response_format", "thinking", "modalities"),
    ]
)


@given(st.dictionaries(PARAMETERS, JSON, max_size=4))
def test_whatever_a_body_holds_it_is_read_or_refused(parameters: dict[str, Any]) -> None:
    with contextlib.suppress(RecipeError):
        assert request(**parameters).conversation.messages


@given(st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name", "prefix"]), JSON))
def test_whatever_a_message_holds_it_is_read_or_refused(message: dict[str, Any]) -> None:
    refused = ""
    try:
        request(messages=[USER, message])
    except ParameterInvalid as error:
        refused = error.param
    assert refused == "" or refused.startswith("messages")


def test_nesting_deeper_than_a_parser_goes_is_refused_by_name() -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(ParameterInvalid) as caught:
        request(messages=[USER, {**USER, "name": deep}])
    assert caught.value.param == "messages[1]"
