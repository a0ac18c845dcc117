"""Tools in chat bodies: names, forced calls, the functions of old, and how else to ask for thinking."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.protocols.chat import ChatRequest, read
from recipe.protocols.tool_names import stand_ins

USER = {"role": "user", "content": "hi"}


def request(*messages: dict[str, Any], **parameters: Any) -> ChatRequest:
    return read(msgspec.json.encode({"model": "m", "messages": messages or [USER], **parameters}))


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}, **more},
    }


def called(name: str, call_id: str = "call_1") -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "1"}


NAMED = {"type": "function", "function": {"name": "fs.read"}}


def test_dotted_names_go_by_plain_ones_and_come_back() -> None:
    chat = request(
        USER,
        called("old/tool"),
        result(),
        tools=[tool("fs.read"), tool("fs_read"), tool("plain")],
        tool_choice=NAMED,
    )
    assert [one.name for one in chat.conversation.tools] == ["fs_read_2"]  # what is forced stands alone
    assert chat.forced_tool == "fs_read_2"
    assert chat.tool_names == {"fs_read_2": "fs.read", "old_tool": "old/tool"}
    calls = [call.name for message in chat.conversation.messages for call in message.tool_calls or ()]
    assert calls == ["old_tool"]


@given(st.lists(st.text(st.sampled_from("ab_2./:"), min_size=1, max_size=4), max_size=6))
def test_no_two_names_share_a_plain_one(names: list[str]) -> None:
    found = stand_ins(names)
    assert len({found.get(name, name) for name in names}) == len(set(names))
    assert all(set(found.get(name, name)).isdisjoint("./:") for name in names)


def test_names_that_nothing_can_stand_in_for_are_refused() -> None:
    for name in ("", "a b", "é", "x" * 129):
        with pytest.raises(ParameterInvalid) as caught:
            request(tools=[tool(name)])
        assert caught.value.param == "tools"


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": NAMED}),
    ("tool_choice", {"tool_choice": "required", "tools": []}),
    ("tool_choice", {"tool_choice": NAMED, "tools": [tool("f")]}),
    ("tool_choice", {"tool_choice": {"type": "allowed_tools"}, "tools": [tool("f")]}),
    ("tool_choice", {"tool_choice": "sometimes", "tools": [tool("f")]}),
    ("tools", {"tools": [tool("f"), tool("f")]}),
    ("tools", {"tools": [tool("f", strict=True), tool("g")]}),
    ("tools", {"tools": [tool("f", parameters={"type": "array"})]}),
    ("tools", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
    ("functions", {"functions": [tool("f")["function"]], "tools": [tool("f")]}),
    ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
    ("enable_thinking", {"enable_thinking": "yes"}),
    ("chat_template_kwargs", {"chat_template_kwargs": []}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": 1}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False}),
]


@pytest.mark.parametrize(("param", "parameters"), REFUSED)
def test_what_cannot_be_enforced_or_understood_is_refused_by_name(
    param: str, parameters: dict[str, Any]
) -> None:
    with pytest.raises(ParameterInvalid) as caught:
        request(**parameters)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("logit_bias", {"1": 1}),
        ("web_search_options", {"search_context_size": "low"}),
        ("chat_template_kwargs", {"documents": []}),
    ],
)
def test_what_would_change_the_answer_and_is_not_served_is_refused(param: str, value: object) -> None:
    with pytest.raises(ParameterUnsupported) as caught:
        request(**{param: value})
    assert caught.value.param == param
    assert not request(**dict.fromkeys([param])).ignored_params


HISTORIES = [
    [USER, called("f")],
    [USER, called("f"), USER],
    [USER, result()],
    [USER, called("f"), result("other")],
    [USER, {"role": "function", "name": "f", "content": "1"}],
]


@pytest.mark.parametrize("messages", HISTORIES)
def test_calls_without_results_and_results_without_calls_are_refused(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(ParameterInvalid) as caught:
        request(*messages)
    assert caught.value.param.startswith("messages")


def test_functions_of_old_are_tools_and_so_are_their_calls_and_results() -> None:
    old_call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    old_result = {"role": "function", "name": "f", "content": "1"}
    chat = request(USER, old_call, old_result, old_call, old_result, functions=[tool("f")["function"]])
    assert [message.role for message in chat.conversation.messages[1:]] == ["assistant", "tool"] * 2
    assert (chat.legacy_functions, chat.parallel_calls) == (True, False)
    assert not request(tools=[tool("f")]).legacy_functions


def test_parallel_calls_are_allowed_unless_the_body_says_otherwise() -> None:
    assert request(tools=[tool("f")]).parallel_calls
    assert request(tools=[tool("f")], parallel_tool_calls=True).parallel_calls
    chat = request(tools=[tool("f")], parallel_tool_calls=False)
    assert (chat.parallel_calls, chat.ignored_params) == (False, ())


@pytest.mark.parametrize(
    ("parameters", "thinks"),
    [
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": None}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"}, False),
    ],
)
def test_thinking_may_be_asked_for_as_other_servers_spell_it(
    parameters: dict[str, Any], *, thinks: bool
) -> None:
    chat = request(**parameters)
    assert chat.conversation.thinking_mode == thinks
    assert chat.ignored_params == ()


def test_a_prefix_is_the_last_message_and_the_assistants() -> None:
    prefix = {"role": "assistant", "content": "a", "prefix": True}
    assert request(USER, prefix).conversation.messages[-1].prefix
    for messages in ([prefix, USER], [{**USER, "prefix": True}]):
        with pytest.raises(ParameterInvalid) as caught:
            request(*messages)
        assert caught.value.param.startswith("messages")
