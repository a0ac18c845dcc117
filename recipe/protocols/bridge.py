"""From the bodies that clients send to the bodies deepseek-recipe converts, and its refusals by parameter.

deepseek-recipe reads the conversation: roles, content parts, tools, tool choice, response format, thinking.
What it refuses although clients of other houses rightly send it is spelled its way first. Sampling is read
from the body by ourselves, because conversion bends it to the DeepSeek models.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from deepseek_recipe import ChatCompletionRequest, ConversationRequest, ConversionError, ConversionOptions

from recipe.errors import ParameterInvalid

# A name every `ConversionOptions` knows; the name a client asks for is resolved elsewhere.
MODEL: Final = "DeepSeek-V4.1-Flash"
CONVERTED: Final = ("tools", "tool_choice", "response_format", "thinking", "reasoning_effort")
SHAPE_PREFIX: Final = "invalid request body: "
MESSAGE_CHARS_MAX: Final = 300
_PLACE: Final = re.compile(r"messages\[\d+\]")
# A wrong shape; a number beyond 64 bits; nesting deeper than its parser goes.
UNREADABLE: Final = (ValueError, OverflowError, RecursionError)


def bridged(body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a chat body that deepseek-recipe reads, spelled its way; the body itself is left as it is.

    Raises:
        ParameterInvalid: ``messages`` is no list of objects, or empty.
    """
    wire: dict[str, Any] = {name: body[name] for name in CONVERTED if body.get(name) is not None}
    wire["model"] = MODEL
    wire["messages"] = [_message(message) for message in _messages(body)]
    if body.get("functions") is not None and "tools" not in wire:
        wire["tools"] = [{"type": "function", "function": function} for function in _list(body, "functions")]
        choice = body.get("function_call")
        if choice is not None:
            wire["tool_choice"] = (
                {"type": "function", "function": choice} if isinstance(choice, dict) else choice
            )
    if _forces_tool(wire.get("tool_choice")):
        # A forced tool and thinking exclude each other there; the force is the more definite wish.
        wire.pop("reasoning_effort", None)
        wire["thinking"] = {"type": "disabled"}
    return wire


def convert(wire: Mapping[str, Any], options: ConversionOptions) -> ConversationRequest:
    """Convert a bridged body; ParameterInvalid, naming the parameter, when deepseek-recipe refuses it."""
    try:
        return ChatCompletionRequest(dict(wire)).convert(options)
    except ConversionError as error:
        message = sentence(error)
        raise ParameterInvalid(_param_in(message), message) from None
    except UNREADABLE as error:
        message = str(error).removeprefix(SHAPE_PREFIX)[:MESSAGE_CHARS_MAX]
        param = _misshapen(wire)
        raise ParameterInvalid(param, f"'{param}' is malformed: {message}", malformed=True) from None


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = _list(body, "messages")
    if not messages:
        raise ParameterInvalid("messages", "'messages' must hold at least one message", malformed=True)
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ParameterInvalid(f"messages[{place}]", "A message must be an object", malformed=True)
    return messages


def _list(body: Mapping[str, Any], param: str) -> list[Any]:
    items = body.get(param)
    if items is None:
        raise ParameterInvalid(param, f"'{param}' is missing", malformed=True)
    if not isinstance(items, list):
        raise ParameterInvalid(param, f"'{param}' must be a list", malformed=True)
    return items


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message with OpenAI's newer role names, empty tool calls and short image form spelled out."""
    changed = dict(message)
    if changed.get("role") == "developer":
        changed["role"] = "system"
    if changed.get("tool_calls") == []:
        del changed["tool_calls"]
    if isinstance(changed.get("content"), list):
        changed["content"] = [_part(part) for part in changed["content"]]
    return changed


def _part(part: Any) -> Any:
    if isinstance(part, dict) and isinstance(part.get("image_url"), str):
        return {**part, "image_url": {"url": part["image_url"]}}
    return part


def _forces_tool(choice: Any) -> bool:
    return choice == "required" or isinstance(choice, dict)


def sentence(error: ConversionError) -> str:
    """The message inside a conversion error's JSON body."""
    try:
        return str(msgspec.json.decode(error.body)["error"]["message"])[:MESSAGE_CHARS_MAX]
    except (msgspec.DecodeError, KeyError, TypeError):
        return str(error)[:MESSAGE_CHARS_MAX]


def _param_in(message: str) -> str:
    if place := _PLACE.search(message):
        return place.group()
    named = (
        name for name in ("response_format", "tool_choice", "reasoning_effort", "tools") if name in message
    )
    return next(named, "messages")


def _misshapen(wire: Mapping[str, Any]) -> str:
    """Which parameter deepseek-recipe could not read: the one without which it reads the body."""
    for name in CONVERTED:
        if name in wire and _readable({key: value for key, value in wire.items() if key != name}):
            return name
    return next(_misshapen_messages(wire["messages"]), "messages")


def _misshapen_messages(messages: list[Any]) -> Iterator[str]:
    for place, message in enumerate(messages):
        if not _readable({"model": MODEL, "messages": [message]}):
            yield f"messages[{place}]"


def _readable(wire: dict[str, Any]) -> bool:
    try:
        ChatCompletionRequest(wire)
    except UNREADABLE:
        return False
    return True
