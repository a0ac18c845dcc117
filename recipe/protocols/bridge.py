"""From the bodies that clients send to the bodies deepseek-recipe converts, and its refusals by parameter.

deepseek-recipe reads the conversation: roles, content parts, tools, tool choice, response format, thinking.
What it refuses although clients of other houses rightly send it is spelled its way first. Sampling is read
from the body by ourselves, because conversion bends it to the DeepSeek models.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from deepseek_recipe import ChatCompletionRequest, ConversationRequest, ConversionOptions

from recipe.protocols import parameters
from recipe.protocols.conversion import MODEL, Dialect

CONVERTED: Final = ("tools", "tool_choice", "response_format", "thinking", "reasoning_effort")
_PLACE: Final = re.compile(r"messages\[\d+\]")


def bridged(body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a chat body that deepseek-recipe reads, spelled its way; the body itself is left as it is.

    Raises:
        ParameterInvalid: ``messages`` is no list of objects, empty or too long; there are too many tools.
    """
    wire: dict[str, Any] = {name: body[name] for name in CONVERTED if body.get(name) is not None}
    wire["model"] = MODEL
    wire["messages"] = [_message(message) for message in parameters.messages(body)]
    if "tools" in wire:
        parameters.items(body, "tools", parameters.TOOLS_MAX)
    elif body.get("functions") is not None:
        functions = parameters.items(body, "functions", parameters.TOOLS_MAX)
        wire["tools"] = [{"type": "function", "function": function} for function in functions]
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
    return _CHAT.convert(wire, options)


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


def _param_in(message: str) -> str:
    if place := _PLACE.search(message):
        return place.group()
    named = (
        name for name in ("response_format", "tool_choice", "reasoning_effort", "tools") if name in message
    )
    return next(named, "messages")


_CHAT: Final = Dialect(ChatCompletionRequest, {name: name for name in CONVERTED}, _param_in)
