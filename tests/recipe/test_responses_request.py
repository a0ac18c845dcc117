"""Reading Responses bodies: what is accepted, what is refused, and which parameter a refusal names."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.conversation import has_tools
from recipe.errors import BodyMalformed, ParameterInvalid, ParameterUnsupported, RecipeError
from recipe.prompt import Sampling
from recipe.protocols.responses import ResponsesRequest, read
from recipe.registry import Recipe
from tests.recipe.test_chat_request import JSON

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
OTHER = {**TOOL, "name": "g"}
NAMESPACE = {"type": "namespace", "name": "ns", "description": "some", "tools": [OTHER]}
PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
    "encrypted_content": "whatever",
}


def request(**parameters: Any) -> ResponsesRequest:
    return read(msgspec.json.encode({"model": "m", "input": "hi", **parameters}))


def spoken(read_request: ResponsesRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in read_request.conversation.messages]


def test_a_plain_body_has_the_protocols_defaults() -> None:
    plain = request()
    assert (plain.model, spoken(plain)) == ("m", [("user", "hi")])
    assert plain.sampling == Sampling()
    assert (plain.max_tokens, plain.max_tokens_param, plain.stream) == (None, "max_output_tokens", False)
    assert (plain.user_id, plain.ignored_params, plain.forced_tool) == ("", (), None)
    assert plain.parallel_calls
    assert not plain.encrypted
    assert not plain.conversation.thinking_mode
    assert plain.echo["temperature"] == plain.echo["top_p"] == 1.0
    assert plain.echo["tools"] == []


def test_every_parameter_arrives_and_is_echoed() -> None:
    settings = {
        "temperature": 0.5,
        "top_p": 0.5,
        "max_output_tokens": 9,
        "instructions": "be nice",
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "service_tier": "flex",
    }
    full = request(**settings, stream=True, user_id="u-1", include=["reasoning.encrypted_content"])
    assert full.sampling == Sampling(0.5, 0.5)
    assert (full.max_tokens, full.stream, full.user_id, full.service_tier) == (9, True, "u-1", "flex")
    assert spoken(full) == [("system", "be nice"), ("user", "hi")]
    assert not full.parallel_calls
    assert full.encrypted
    assert {name: full.echo[name] for name in settings} == settings


def test_a_whole_number_may_have_a_point() -> None:
    whole = request(max_output_tokens=9.0, top_logprobs=0.0)
    assert (whole.max_tokens, whole.echo["max_output_tokens"], whole.echo["top_logprobs"]) == (9, 9, 0)


def test_null_means_absent() -> None:
    names = (
        "instructions",
        "temperature",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "include",
        "metadata",
    )
    nulls = request(**dict.fromkeys(names), previous_response_id=None, background=None, truncation=None)
    assert (spoken(nulls), nulls.ignored_params) == ([("user", "hi")], ())


def test_a_history_becomes_a_conversation() -> None:
    items = [{"role": "developer", "content": "d"}, {"type": "message", **USER}, REASONING, CALL, OUTPUT]
    read_request = request(input=items, tools=[TOOL], reasoning={"effort": "high"})
    assert has_tools(read_request.conversation)
    *_, called, told = read_request.conversation.messages
    assert (called.reasoning_content, told.role, told.content) == ("hm", "tool", "sunny")
    assert [(call.id, call.name) for call in called.tool_calls or ()] == [("c1", "f")]
    assert spoken(read_request)[:2] == [("system", "d"), ("user", "hi")]


def test_a_refusal_in_a_history_is_what_the_assistant_said() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert spoken(request(input=[USER, said, USER]))[1] == ("assistant", "no")


def test_tools_of_a_namespace_get_a_name_of_one_piece() -> None:
    read_request = request(tools=[TOOL, NAMESPACE])
    (name,) = read_request.namespaces
    assert read_request.namespaces[name] == ("ns", "g")
    assert [tool.name for tool in read_request.conversation.tools] == ["f", name]
    called = {**CALL, "name": "g", "namespace": "ns"}
    *_, before, _ = request(input=[USER, called, OUTPUT], tools=[NAMESPACE]).conversation.messages
    assert [call.name for call in before.tool_calls or ()] == [name]


def test_codexs_custom_tool_is_offered_as_one_that_takes_a_text() -> None:
    patched = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"}
    told = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
    read_request = request(input=[USER, patched, told], tools=[PATCH])
    assert read_request.custom_tools == {"apply_patch"}
    (tool,) = read_request.conversation.tools
    assert tool.parameters["required"] == ["input"]
    assert read_request.echo["tools"] == [{"type": "custom", "name": "apply_patch"}]


def test_web_search_is_dropped_and_said_to_be() -> None:
    tools = [{"type": "web_search", "external_web_access": False}, TOOL, {"type": "web_search_preview"}]
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    read_request = request(tools=tools, tool_choice={"type": "web_search"}, input=[USER, searched])
    assert [tool.name for tool in read_request.conversation.tools] == ["f"]
    assert [tool["type"] for tool in read_request.echo["tools"]] == ["function"]
    assert read_request.ignored_params == ("tool_choice", "web_search", "web_search_call")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
def test_a_forced_tool_is_named_and_asked_for_without_thinking(choice: Any) -> None:
    forced = request(tools=[TOOL, OTHER], tool_choice=choice, reasoning={"effort": "high"})
    assert forced.forced_tool == (None if choice == "required" else "f")
    assert forced.conversation.tool_choice == "required"
    assert not forced.conversation.thinking_mode
    assert forced.echo["tool_choice"] == choice
    assert forced.echo["reasoning"]["effort"] == "high"


def test_reasoning_is_read() -> None:
    assert request(reasoning={"effort": "high"}).conversation.thinking_mode
    assert not request(reasoning={"effort": "none"}).conversation.thinking_mode


def test_a_format_of_text_is_a_response_format() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    structured = request(text={"format": schema, "verbosity": "low"})
    assert structured.conversation.response_format == "json_schema"
    assert structured.conversation.response_schema == SCHEMA
    assert structured.ignored_params == ("text.verbosity",)
    bare = request(input="answer in json", text={"format": {"type": "json_object"}})
    assert bare.conversation.response_format == "json_object"


def test_parameters_without_effect_are_reported() -> None:
    harmless = {
        "store": True,
        "metadata": {"a": "b"},
        "client_metadata": {"x": "y"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "truncation": "auto",
        "top_logprobs": 2,
        "include": ["file_search_call.results"],
        "stream_options": {"include_obfuscation": False},
        "reasoning": {"summary": "auto"},
    }
    ignored = request(**harmless).ignored_params
    assert set(ignored) == {*(harmless.keys() - {"reasoning"}), "reasoning.summary"}
    assert request(store=False, truncation="disabled", top_logprobs=0, include=[]).ignored_params == ()


def test_log_probabilities_are_told_to_who_includes_them() -> None:
    include = ["message.output_text.logprobs"]
    assert [request(include=include, **top).logprobs for top in ({}, {"top_logprobs": 3.0})] == [0, 3]
    assert request(include=include, top_logprobs=3).ignored_params == ()
    assert request(top_logprobs=3).logprobs is None


def test_a_model_that_does_not_think_ignores_reasoning(smol: Recipe) -> None:
    assert smol.render(request(reasoning={"effort": "high"})).ignored_params == ("reasoning",)


def test_a_body_that_is_no_json_object_is_malformed() -> None:
    for raw in (b"", b"[]", b"[" * 100_000):
        with pytest.raises(BodyMalformed):
            read(raw)


MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": None}),
    ("input", {"input": 5}),
    ("input[1]", {"input": [USER, 1]}),
    ("input[1]", {"input": [USER, {"role": "wizard", "content": "x"}]}),
    ("input[0]", {"input": [{"role": "user"}]}),
    (
        "input[0].content[1]",
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}, 5]}]},
    ),
    ("input[0]", {"input": [{"role": "user", "content": [{"type": "sculpture"}]}]}),
    ("instructions", {"instructions": 5}),
    ("temperature", {"temperature": "0.5"}),
    ("max_output_tokens", {"max_output_tokens": "9"}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream_options": 1}),
    ("tools", {"tools": "hammer"}),
    ("tools[1]", {"tools": [TOOL, {"type": "function"}]}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": "perhaps"}),
    ("text", {"text": "plain"}),
    ("text", {"text": {"format": {"type": "poem"}}}),
    ("reasoning", {"reasoning": 5}),
    ("reasoning", {"reasoning": {"effort": "heroic"}}),
    ("include", {"include": "all"}),
    ("metadata", {"metadata": 5}),
    ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
    ("background", {"background": "no"}),
    ("user", {"user": 5}),
]
OUT_OF_RANGE: list[tuple[str, dict[str, Any]]] = [
    ("input", {"input": []}),
    ("input", {"input": [USER] * 10_001}),
    ("input", {"input": None}),
    ("input", {"input": [USER, OUTPUT]}),
    (
        "input[0].content[0]",
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
    ),
    ("temperature", {"temperature": 2.1}),
    ("top_p", {"top_p": 0}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("top_logprobs", {"top_logprobs": 21}),
    ("max_tool_calls", {"max_tool_calls": 0}),
    ("truncation", {"truncation": "sometimes"}),
    ("service_tier", {"service_tier": "priority"}),
    ("metadata", {"metadata": {"a": 1}}),
    ("metadata", {"metadata": {str(n): "" for n in range(17)}}),
    ("tools", {"tools": [TOOL] * 1_025}),
    ("tools", {"tools": [TOOL, TOOL]}),
    ("tools[0].name", {"tools": [{**TOOL, "name": "a.b"}]}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "name": "z"}}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [{"type": "web_search"}], "tool_choice": "required"}),
    ("text.format", {"text": {"format": {"type": "json_object"}}}),
    ("user_id", {"user_id": "u" * 513}),
]
UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("previous_response_id", {"previous_response_id": "resp_1"}),
    ("conversation", {"conversation": {"id": "conv_1"}}),
    ("prompt", {"prompt": {"id": "pmpt_1"}}),
    ("background", {"background": True}),
    ("max_tokens", {"max_tokens": 5}),
    ("stop", {"stop": ["x"]}),
    ("input[1]", {"input": [USER, {"type": "item_reference", "id": "msg_1"}]}),
    ("input[1]", {"input": [USER, {"id": "msg_1"}]}),
    ("input[0]", {"input": [{"type": "compaction", "encrypted_content": "x"}]}),
    (
        "input[0].content[0]",
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
    ),
    ("input[2].output[0]", {"input": [USER, CALL, {**OUTPUT, "output": [{"type": "input_file"}]}]}),
    ("tools[1]", {"tools": [TOOL, {"type": "file_search", "vector_store_ids": ["v"]}]}),
    ("tools[0]", {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}),
    ("tools[0]", {"tools": [{"type": "mcp", "server_label": "x"}]}),
    ("tools[0]", {"tools": [{"type": "image_generation"}]}),
    ("tools[0]", {"tools": [{"type": "computer_use_preview"}]}),
    ("tools[0]", {"tools": [{"type": "custom", "name": "poem"}]}),
    (
        "tool_choice",
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}},
    ),
    ("tool_choice", {"tool_choice": {"type": "file_search"}}),
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
    """What deepseek-recipe would leave out in silence, the tenant would pay for."""
    with pytest.raises(ParameterUnsupported) as caught:
        request(**parameters)
    assert caught.value.param == param


PARAMETERS = st.sampled_from(
    [
        *("model", "input", "instructions", "tools", "tool_choice", "text", "reasoning", "include", "stream"),
        *("temperature", "top_p", "max_output_tokens", "top_logprobs", "max_tool_calls", "metadata", "user"),
        *("parallel_tool_calls", "truncation", "store", "background", "stream_options", "service_tier"),
    ]
)
ITEM_FIELDS = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "output",
        "name",
        "namespace",
        "arguments",
        "call_id",
        "summary",
        "input",
        "id",
    ]
)
KINDS = st.sampled_from(
    [
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "item_reference", "function", "namespace", "custom", "web_search"),
    ]
)


@given(st.dictionaries(PARAMETERS, JSON, max_size=4))
def test_whatever_a_body_holds_it_is_read_or_refused(parameters: dict[str, Any]) -> None:
    with contextlib.suppress(RecipeError):
        assert request(**parameters).conversation.messages


@given(st.lists(st.dictionaries(ITEM_FIELDS, KINDS | JSON), max_size=3))
def test_whatever_an_item_holds_it_is_read_or_refused(items: list[dict[str, Any]]) -> None:
    refused = "input"
    try:
        request(input=[USER, *items])
    except (ParameterInvalid, ParameterUnsupported) as error:
        refused = error.param
    assert refused.startswith("input")


@given(st.lists(st.dictionaries(st.sampled_from(["type", "name", "parameters", "tools"]), KINDS | JSON)))
def test_whatever_a_tool_holds_it_is_read_or_refused(tools: list[dict[str, Any]]) -> None:
    with contextlib.suppress(RecipeError):
        request(tools=[TOOL, *tools])


def test_nesting_deeper_than_a_parser_goes_is_refused_by_name() -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(ParameterInvalid) as caught:
        request(input=[USER, {**USER, "name": deep}])
    assert caught.value.param == "input[1]"
