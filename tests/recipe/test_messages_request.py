"""Reading Anthropic's bodies: what is accepted, and what becomes of it."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deepseek_recipe import ConversionOptions, DeepseekV4Encoding, DeepseekV41Encoding

from recipe import registry
from recipe.conversation import has_tools
from recipe.errors import ParameterInvalid
from recipe.prompt import Sampling
from recipe.protocols import chat
from recipe.protocols.messages import read, read_counted
from recipe.registry import Recipe
from tests.recipe.messages_bodies import (
    CALL,
    FORMAT,
    RESULT,
    SCHEMA,
    TEXT_DOCUMENT,
    TOOL,
    USER,
    request,
    said,
    spoken,
)


def test_a_plain_body_has_the_protocols_defaults() -> None:
    plain = request()
    assert (plain.model, spoken(plain)) == ("m", [("user", "hi")])
    assert plain.sampling == Sampling()
    assert (plain.max_tokens, plain.stop, plain.stream, plain.user_id) == (9, (), False, "")
    assert (plain.ignored_params, plain.service_tier, plain.forced_tool) == ((), None, None)
    assert plain.parallel_calls
    assert not plain.conversation.thinking_mode


def test_every_parameter_arrives() -> None:
    full = request(
        system="be brief",
        temperature=0,
        top_p=0.5,
        stop_sequences=["END", ""],
        stream=True,
        metadata={"user_id": "u-1"},
        service_tier="standard_only",
        mcp_servers=[],
    )
    assert spoken(full) == [("system", "be brief"), ("user", "hi")]
    assert full.sampling == Sampling(0.0, 0.5)
    assert (full.stop, full.stream, full.user_id) == (("END",), True, "u-1")
    assert (full.service_tier, full.ignored_params) == ("default", ())


def test_null_means_absent() -> None:
    names = ("system", "temperature", "top_p", "top_k", "stop_sequences", "stream", "tools", "tool_choice")
    more = ("thinking", "output_config", "output_format", "metadata", "service_tier", "container")
    nulls = request(**dict.fromkeys((*names, *more, "mcp_servers", "cache_control")))
    assert (nulls.sampling, nulls.stop, nulls.ignored_params) == (Sampling(), (), ())
    assert not nulls.conversation.thinking_mode


def test_counting_needs_no_max_tokens_and_an_answer_does() -> None:
    raw = msgspec.json.encode({"model": "m", "messages": [USER]})
    assert read_counted(raw).max_tokens is None
    with pytest.raises(ParameterInvalid) as caught:
        read(raw)
    assert (caught.value.param, caught.value.malformed) == ("max_tokens", True)


def test_system_blocks_and_system_messages_are_read_where_they_stand() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    read_request = request(system=blocks, messages=[USER, {"role": "system", "content": "note"}])
    assert spoken(read_request) == [("system", "a\n\nb"), ("user", "hi"), ("system", "note")]


def test_the_text_blocks_of_a_message_are_one_text() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert spoken(request(messages=[said(*texts)])) == [("user", "a\n\nb")]


def test_a_text_document_is_read_in_full() -> None:
    """deepseek-recipe puts a stub in its place, which misleads the model and is paid for."""
    (message,) = request(
        messages=[said(TEXT_DOCUMENT, {"type": "text", "text": "sum up"})]
    ).conversation.messages
    assert message.content == (
        "<document>\n\ntitle: Report\n\ncontext: of May\n\nAll is well.\n\n</document>\n\nsum up"
    )


def test_a_document_of_blocks_keeps_its_images_where_they_stand() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    parts = [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]
    held = {"type": "document", "source": {"type": "content", "content": parts}}
    [message] = request(messages=[said(held)]).conversation.messages
    assert message.content == "<document>\n\na\n\n<｜image｜>\n\nb\n\n</document>"
    assert len(message.image_sources) == 1
    whole = {"type": "document", "source": {"type": "content", "content": "all"}}
    assert spoken(request(messages=[said(whole)])) == [("user", "<document>\n\nall\n\n</document>")]


def test_the_documents_of_a_tool_result_are_read_too() -> None:
    result = {**RESULT, "content": [{"type": "text", "text": "found"}, TEXT_DOCUMENT]}
    read_request = request(messages=[USER, said(CALL, role="assistant"), said(result)])
    assert read_request.conversation.messages[-1].content.startswith("found\n\n<document>")


def test_a_tool_loop_is_read() -> None:
    more = {"type": "text", "text": "go on"}
    loop = request(tools=[TOOL], messages=[USER, said(CALL, role="assistant"), said(RESULT, more)])
    called, answered, asked = loop.conversation.messages[1:]
    assert called.tool_calls is not None
    assert [(call.id, call.name, call.arguments) for call in called.tool_calls] == [
        ("toolu_1", "f", '{"a": 1}')
    ]
    assert (answered.role, answered.content, answered.tool_call_id) == ("tool", "2", "toolu_1")
    assert (asked.role, asked.content) == ("user", "go on")
    assert has_tools(loop.conversation)


@pytest.mark.parametrize("content", ["no such file", [{"type": "text", "text": "no such file"}]])
def test_the_model_is_told_that_a_tool_failed(content: Any) -> None:
    result = {**RESULT, "content": content, "is_error": True}
    failed = request(messages=[USER, said(CALL, role="assistant"), said(result)])
    assert failed.conversation.messages[-1].content == "Error:\n\nno such file"


def test_a_failed_tool_need_not_say_why() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True}
    failed = request(messages=[USER, said(CALL, role="assistant"), said(result)])
    assert failed.conversation.messages[-1].content == "Error:"


def test_earlier_thinking_comes_back_whoever_signed_it_and_what_was_hidden_is_left_out() -> None:
    thought = {"type": "thinking", "thinking": "t", "signature": "anything"}
    hidden = {"type": "redacted_thinking", "data": "zz"}
    history = [USER, said(thought, hidden, {"type": "text", "text": "a"}, CALL, role="assistant")]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    read_request = request(messages=[*history, said(RESULT)], tools=[TOOL], thinking=thinking)
    assert read_request.conversation.messages[1].reasoning_content == "t"
    assert read_request.conversation.messages[1].content == "a"
    alone = request(messages=[USER, said(hidden, role="assistant"), USER])
    assert spoken(alone) == [("user", "hi"), ("assistant", ""), ("user", "hi")]


def test_a_client_tool_may_say_that_it_is_custom() -> None:
    """deepseek-recipe takes its type for a server tool's; litellm sends it."""
    (tool,) = request(tools=[{**TOOL, "type": "custom"}]).conversation.tools
    assert (tool.name, tool.parameters) == ("f", TOOL["input_schema"])


def test_a_strict_tool_stays_strict() -> None:
    tools = request(tools=[{**TOOL, "strict": True}, {**TOOL, "name": "g"}]).conversation.tools
    assert [(tool.name, tool.strict) for tool in tools] == [("f", True), ("g", None)]


@pytest.mark.parametrize(
    ("choice", "neutral", "forced"),
    [
        (None, "auto", None),
        ({"type": "auto"}, "auto", None),
        ({"type": "none"}, "none", None),
        ({"type": "any"}, "required", None),
        ({"type": "tool", "name": "f"}, "required", "f"),
    ],
)
def test_a_tool_choice_is_kept(choice: Any, neutral: str, forced: str | None) -> None:
    chosen = request(tools=[TOOL], tool_choice=choice)
    assert (chosen.conversation.tool_choice, chosen.forced_tool) == (neutral, forced)
    assert chosen.parallel_calls


def test_one_call_at_most_can_be_asked_for() -> None:
    single = request(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert not single.parallel_calls


def test_a_forced_tool_wins_over_thinking_and_says_so() -> None:
    forced = request(
        tools=[TOOL],
        tool_choice={"type": "any"},
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
    )
    assert not forced.conversation.thinking_mode
    assert forced.conversation.tool_choice == "required"
    assert forced.ignored_params == ("output_config.effort", "thinking")


@pytest.mark.parametrize(
    ("parameters", "thinks", "effort"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True, "high"),
        ({"thinking": {"type": "adaptive"}}, True, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, True, "low"),
        ({"output_config": {"effort": "max"}}, True, "max"),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({}, False, None),
    ],
)
def test_thinking_is_read_with_its_effort(parameters: dict[str, Any], thinks: bool, effort: Any) -> None:
    conversation = request(**parameters).conversation
    assert (conversation.thinking_mode, conversation.reasoning_effort) == (thinks, effort)


def test_a_model_that_thinks_by_itself_does_not_for_who_did_not_ask(deepseek_model_dir: Path) -> None:
    """Anthropic's clients read the first block of an answer as its text unless they asked for thinking."""
    deepseek = registry.load(deepseek_model_dir, "deepseek-v4.1-flash")
    assert not deepseek.render(request()).starts_thinking
    assert deepseek.render(request(thinking={"type": "adaptive"})).starts_thinking


@pytest.mark.parametrize("parameters", [{"output_config": {"format": FORMAT}}, {"output_format": FORMAT}])
def test_a_schema_is_the_conversations(parameters: dict[str, Any]) -> None:
    """deepseek-recipe drops it: `parse()` ran unconstrained."""
    asked = request(**parameters)
    assert (asked.conversation.response_format, asked.conversation.response_schema) == ("json_schema", SCHEMA)
    assert asked.ignored_params == ()


def test_a_schema_may_be_spelled_twice_but_not_in_two_ways() -> None:
    assert (
        request(output_config={"format": FORMAT}, output_format=FORMAT).conversation.response_schema == SCHEMA
    )
    other = {"type": "json_schema", "schema": {"type": "object"}}
    with pytest.raises(ParameterInvalid) as caught:
        request(output_config={"format": FORMAT}, output_format=other)
    assert caught.value.param == "output_format"


def test_an_assistants_last_message_is_to_be_continued() -> None:
    begun = request(messages=[USER, {"role": "assistant", "content": "{"}])
    last = begun.conversation.messages[-1]
    assert (last.role, last.content, last.prefix) == ("assistant", "{", True)
    ended = request(messages=[USER, {"role": "assistant", "content": "a"}, USER])
    assert not any(message.prefix for message in ended.conversation.messages)


BEGUN = [USER, {"role": "assistant", "content": "{"}]
THOUGHT = [USER, said({"type": "thinking", "thinking": "t", "signature": ""}, role="assistant")]
IN_CHAT = {"type": "function", "function": {"name": "f", "parameters": TOOL["input_schema"]}}
IN_CHAT_TOO = {"type": "function", "function": {"name": "g", "parameters": TOOL["input_schema"]}}
BEGUN_IN_CHAT = [USER, {"role": "assistant", "content": "{", "prefix": True}]
THOUGHT_IN_CHAT = [USER, {"role": "assistant", "content": "", "reasoning_content": "t", "prefix": True}]
NAMED_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
ON = {"thinking": {"type": "enabled"}}


@pytest.mark.parametrize(
    ("asked", "in_chat"),
    [
        ({}, {"thinking": {"type": "disabled"}}),
        (ON, ON),
        ({"messages": BEGUN, **ON}, {"messages": BEGUN_IN_CHAT, **ON}),
        ({"messages": THOUGHT, **ON}, {"messages": THOUGHT_IN_CHAT, **ON}),
        ({"output_config": {"format": FORMAT}, **ON}, {"response_format": NAMED_SCHEMA, **ON}),
        (
            {"tools": [TOOL, {**TOOL, "name": "g"}], "tool_choice": {"type": "any"}},
            {"tools": [IN_CHAT, IN_CHAT_TOO], "tool_choice": "required"},
        ),
        (
            {"tools": [TOOL, {**TOOL, "name": "g"}], "tool_choice": {"type": "tool", "name": "g"}},
            {
                "tools": [IN_CHAT, IN_CHAT_TOO],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
        ),
    ],
)
def test_a_family_is_given_what_a_chat_body_of_the_same_meaning_gives_it(
    asked: dict[str, Any], in_chat: dict[str, Any]
) -> None:
    body = {"model": "m", "messages": [USER], **in_chat}
    options = ConversionOptions()
    converted = request(**asked).convert(options)
    expected = chat.read(msgspec.json.encode(body)).convert(options)
    for encoding in (DeepseekV4Encoding(), DeepseekV41Encoding()):
        prompts = [encoding.render_conversation(one.conversation).prompt for one in (converted, expected)]
        assert prompts[0] == prompts[1]
    for name in ("parse_tool_calls", "starts_in_tool_calls", "thinking_initial_stage"):
        assert repr(getattr(converted.parsing_options, name)) == repr(getattr(expected.parsing_options, name))
    assert converted.resolve_max_tokens(5, 10**6) == expected.resolve_max_tokens(5, 10**6)


def test_a_user_id_longer_than_an_id_is_known_by_its_digest() -> None:
    """Claude Code writes a document into it."""
    assert request(metadata={"user_id": "u" * 512}).user_id == "u" * 512
    long = request(metadata={"user_id": "ü" * 513}).user_id
    assert long == f"sha256:{hashlib.sha256(('ü' * 513).encode()).hexdigest()}"


@pytest.mark.parametrize(
    ("param", "parameters"),
    [
        ("cache_control", {"cache_control": {"type": "ephemeral"}}),
        (
            "cache_control",
            {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]},
        ),
        (
            "cache_control",
            {"messages": [said({"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}})]},
        ),
        ("cache_control", {"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]}),
        ("tools.input_examples", {"tools": [{**TOOL, "input_examples": [{"a": 1}]}]}),
        ("citations", {"messages": [said({**TEXT_DOCUMENT, "citations": {"enabled": True}})]}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("thinking.display", {"thinking": {"type": "adaptive", "display": "omitted"}}),
        ("output_config.task_budget", {"output_config": {"task_budget": {"type": "tokens", "total": 1}}}),
        ("output_config.effort", {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}),
        ("metadata.team", {"metadata": {"user_id": "u", "team": "x"}}),
        ("context_management", {"context_management": {"edits": []}}),
        ("container", {"container": "c"}),
    ],
)
def test_a_parameter_without_effect_is_reported(param: str, parameters: dict[str, Any]) -> None:
    assert request(**parameters).ignored_params == (param,)


def test_a_model_without_effort_reports_it(smol: Recipe) -> None:
    asked = request(thinking={"type": "adaptive"}, output_config={"effort": "high"})
    assert smol.render(asked).ignored_params == ("output_config.effort", "thinking")
