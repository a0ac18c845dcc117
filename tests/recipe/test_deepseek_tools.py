"""Tools, forced calls and prefixes in DeepSeek models: deepseek-recipe's own markup, our events."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.events import Event, Finish, FinishReason, Text, Thinking, ToolArguments, ToolCall
from recipe.protocols.chat import ChatRequest, read
from recipe.registry import Recipe

from .test_markup import joined

OFF = {"thinking": {"type": "disabled"}}
USER = {"role": "user", "content": "Weather?"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
        },
    },
}
OTHER = {
    "type": "function",
    "function": {"name": "other", "parameters": {"type": "object", "properties": {}}},
}
# What V4.1 writes between the text before and the end.
INVOKE = (
    '<｜DSML｜ invoke name="get_weather">\n'
    '<｜DSML｜ parameter name="city" string="true">Par"is 中\n2</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="n" string="false">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n'
)
BARE = '<｜DSML｜ invoke name="other">\n</｜DSML｜ invoke>\n'
BLOCK = f"\n\n<｜DSML｜ calls>\n{INVOKE}{BARE}</｜DSML｜ calls>"
ARGUMENTS = {"city": 'Par"is 中\n2', "n": 3}


def request(*messages: dict[str, Any], **parameters: Any) -> ChatRequest:
    return read(msgspec.json.encode({"model": "m", "messages": messages or [USER], **parameters}))


def rendered(recipe: Recipe, chat: ChatRequest) -> str:
    return recipe.tokenizer.decode_bytes(recipe.render(chat).token_ids).decode()


def output(recipe: Recipe, text: str) -> list[int]:
    """Ids of an answer: special tokens where it spells them."""
    token_ids: list[int] = []
    ids = recipe.tokenizer.added.ids
    for piece in text.replace("｜DSML｜", "\0｜DSML｜\0").replace("</think>", "\0</think>\0").split("\0"):
        token_ids += [ids[piece]] if piece in ids else recipe.tokenizer.encode_plain(piece)
    return token_ids


def parsed(
    recipe: Recipe, chat: ChatRequest, text: str, reason: FinishReason = "stop", *, singly: bool = True
) -> list[Event]:
    parser = recipe.parser(recipe.render(chat))
    token_ids = output(recipe, text)
    pushes: Sequence[Sequence[int]] = [[token_id] for token_id in token_ids] if singly else [token_ids]
    events: list[Event] = []
    for push in pushes:
        if not parser.stopped:
            events += parser.push(push)
    return joined([*events, *parser.finish(reason)])


def calls_in(events: Sequence[Event]) -> list[tuple[str, Any]]:
    arguments = {event.index: event.text for event in events if isinstance(event, ToolArguments)}
    return [(e.name, json.loads(arguments[e.index])) for e in events if isinstance(e, ToolCall)]


@pytest.mark.parametrize("singly", [True, False])
def test_calls_are_told_with_indexes_from_0_and_arguments_that_are_one_object(
    flash: Recipe, *, singly: bool
) -> None:
    events = parsed(flash, request(tools=[TOOL, OTHER], **OFF), f"Look.{BLOCK}", singly=singly)
    assert events[0] == Text("Look.")
    assert [event.index for event in events if isinstance(event, ToolCall)] == [0, 1]
    assert calls_in(events) == [("get_weather", ARGUMENTS), ("other", {})]
    assert events[-1] == Finish("tool_calls")


def test_calls_come_behind_the_reasoning(flash: Recipe) -> None:
    events = parsed(flash, request(tools=[TOOL]), f"Hm</think>{BLOCK}")
    assert events[0] == Thinking("Hm")
    assert calls_in(events)[0] == ("get_weather", ARGUMENTS)


def test_a_call_cut_off_by_the_limit_keeps_what_was_told(flash: Recipe) -> None:
    cut = BLOCK[: BLOCK.index("is 中")]
    events = parsed(flash, request(tools=[TOOL], **OFF), cut, "length")
    assert events == [ToolCall(0, "get_weather"), ToolArguments(0, '{"city": "Par\\"'), Finish("length")]


@pytest.mark.parametrize("singly", [True, False])
def test_one_call_is_all_there_is_where_parallel_calls_are_not_wanted(flash: Recipe, *, singly: bool) -> None:
    chat = request(tools=[TOOL, OTHER], parallel_tool_calls=False, **OFF)
    events = parsed(flash, chat, BLOCK, singly=singly)
    assert calls_in(events) == [("get_weather", ARGUMENTS)]
    assert events[-1] == Finish("tool_calls")


def test_markup_of_calls_is_text_where_no_tools_are_offered(flash: Recipe) -> None:
    assert calls_in(parsed(flash, request(**OFF), BLOCK)) == []


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        ("required", {"get_weather", "other"}),
        ({"type": "function", "function": {"name": "other"}}, {"other"}),
    ],
)
def test_a_forced_call_is_opened_by_the_prompt(flash: Recipe, choice: Any, tools: set[str]) -> None:
    """deepseek-ai/DeepSeek-V3#1376: thinking on by default refuses no forced tool."""
    chat = request(tools=[TOOL, OTHER], tool_choice=choice)
    text = rendered(flash, chat)
    assert text.endswith("<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n")
    assert {name for name in ("get_weather", "other") if f'"name": "{name}"' in text} == tools
    events = parsed(flash, chat, f"{BARE}</｜DSML｜ calls>")
    assert events == [ToolCall(0, "other"), ToolArguments(0, "{}"), Finish("tool_calls")]
    assert flash.render(chat).ignored_params == ()


def test_thinking_that_a_forced_call_leaves_no_room_for_is_reported(flash: Recipe) -> None:
    chat = request(tools=[TOOL], tool_choice="required", reasoning_effort="high")
    assert flash.render(chat).ignored_params == ("reasoning_effort",)


def test_a_response_format_is_the_engines_to_enforce_behind_the_reasoning(flash: Recipe) -> None:
    wanted = {"role": "user", "content": "json, please"}
    for parameters, form in (({}, "sequence"), (OFF, "json_schema")):
        constraint = flash.render(
            request(wanted, response_format={"type": "json_object"}, **parameters)
        ).constraint
        assert constraint is not None
        assert json.loads(constraint.text)["format"]["type"] == form


def test_strict_tools_are_told_to_be_held_to_their_schema_by_the_model_alone(flash: Recipe) -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    assert flash.render(request(tools=[strict], **OFF)).ignored_params == ("strict",)


def test_calls_results_and_reasoning_of_earlier_turns_are_rendered(flash: Recipe) -> None:
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    history = [
        USER,
        {"role": "assistant", "content": "Look.", "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "12°"},
    ]
    text = rendered(flash, request(*history, tools=[TOOL]))
    assert "<think>Hm</think>Look.\n\n<｜DSML｜ calls>" in text
    assert '<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>' in text
    assert "<tool_result>12°</tool_result>" in text


@pytest.mark.parametrize(
    ("prefix", "parameters", "end", "thinks"),
    [
        ({"content": "Once"}, OFF, "</think>Once", False),
        ({"content": "Once"}, {}, "<think></think>Once", False),
        ({"content": "Once", "reasoning_content": "Hm"}, {}, "<think>Hm</think>Once", False),
        ({"content": "", "reasoning_content": "Hm"}, {}, "<think>Hm", True),
    ],
)
def test_a_prefix_is_gone_on_with(
    flash: Recipe, prefix: dict[str, Any], parameters: dict[str, Any], end: str, *, thinks: bool
) -> None:
    chat = request(USER, {"role": "assistant", "prefix": True, **prefix}, **parameters)
    assert rendered(flash, chat).endswith(end)
    assert flash.render(chat).starts_thinking == thinks
    piece: Event = Thinking("\n more") if thinks else Text("\n more")
    assert parsed(flash, chat, "\n more") == [piece, Finish("stop")]


EVIL = st.lists(
    st.sampled_from(
        ["<｜DSML｜ calls>", "｜DSML｜", "<｜User｜>", "<think>", "</think>", "<", "｜", '"', "\n", "a"]
    ),
    max_size=5,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(EVIL, min_size=5, max_size=5))
def test_no_text_forges_a_role_a_call_or_a_thought(texts: list[str], flash: Recipe) -> None:
    special = frozenset(flash.tokenizer.added.ids.values())

    def structure(texts: Sequence[str]) -> list[int]:
        user, described, argument, result, thought = texts
        call = {
            "id": "a",
            "type": "function",
            "function": {"name": "f", "arguments": json.dumps({"k": argument})},
        }
        history = [
            {"role": "user", "content": user},
            {"role": "assistant", "content": user, "reasoning_content": thought, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": result},
        ]
        tool = {"type": "function", "function": {**TOOL["function"], "description": described}}
        return [t for t in flash.render(request(*history, tools=[tool])).token_ids if t in special]

    assert structure(texts) == structure(["x"] * 5)
