"""From the bodies that clients send to the bodies deepseek-recipe converts, and its refusals by parameter.

deepseek-recipe reads the conversation: roles, content parts, tools, tool choice, response format, thinking.
What it refuses although clients of other houses rightly send it is spelled its way first. Sampling is read
from the body by ourselves, because conversion bends it to the DeepSeek models.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from deepseek_recipe import ChatCompletionRequest, ConversationRequest, ConversionOptions

from recipe.conversation import Conversation
from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.images import in_base64
from recipe.protocols import parameters
from recipe.protocols.conversion import MODEL, Dialect
from recipe.protocols.tool_names import functions_in, stand_ins

CONVERTED: Final = ("tools", "tool_choice", "response_format", "thinking", "reasoning_effort")
_PLACE: Final = re.compile(r"messages\[\d+\]")
_OF_TOOLS: Final = re.compile(
    r"Tool names|Invalid schema for function|Cannot use strict tool|Function call should"
)


def bridged(body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a chat body that deepseek-recipe reads, spelled its way; the body itself is left as it is.

    Raises:
        ParameterInvalid: ``messages`` is no list of objects, empty or too long; there are too many tools;
            parameters contradict each other; a call is forced and there is no tool.
        ParameterUnsupported: the model's template is asked for more than whether to think.
    """
    wire: dict[str, Any] = {name: body[name] for name in CONVERTED if body.get(name) is not None}
    wire["model"] = MODEL
    wire["messages"] = list(_messages(body))
    if "tools" in wire:
        parameters.items(body, "tools", parameters.TOOLS_MAX)
    if body.get("functions") is not None:
        _take_functions(body, wire)
    if (thinks := _enable_thinking(body)) is not None:
        wire.setdefault("thinking", {"type": "enabled" if thinks else "disabled"})
    if forces_tool(wire):
        if not wire.get("tools"):
            raise ParameterInvalid("tool_choice", "'tool_choice' demands a call, and there are no 'tools'")
        # There, the prompt opens the call that is forced, and reasoning would come before it.
        wire.pop("reasoning_effort", None)
        wire["thinking"] = {"type": "disabled"}
    return wire


def forces_tool(wire: Mapping[str, Any]) -> bool:
    """Whether the model has to call a tool."""
    choice = wire.get("tool_choice")
    return choice == "required" or isinstance(choice, dict)


def renamed(wire: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A bridged body whose tools have plain names, and the client's name of each that was changed."""
    changed = stand_ins(function["name"] for function in functions_in(wire))
    if not changed:
        return wire, {}
    wire = copy.deepcopy(wire)
    for function in functions_in(wire):
        function["name"] = changed.get(function["name"], function["name"])
    return wire, {plain: name for name, plain in changed.items()}


def thinking(conversation: Conversation) -> Conversation:
    """The same conversation, with thinking on."""
    json_object = conversation.response_format == "json_object"
    return Conversation(
        conversation.messages,
        thinking_mode=True,
        tools=conversation.tools,
        tool_choice=conversation.tool_choice,
        response_format="json_object" if json_object else "text",
        response_schema=conversation.response_schema,
        response_regex=conversation.response_regex,
    )


def convert(wire: Mapping[str, Any], options: ConversionOptions) -> ConversationRequest:
    """Convert a bridged body; ParameterInvalid, naming the parameter, when deepseek-recipe refuses it."""
    return _CHAT.convert(wire, options)


def _messages(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Messages, those of the time before tools spelled with tools."""
    call_id = ""
    for place, message in enumerate(parameters.messages(body)):
        if message.get("prefix") is True and message.get("role") != "assistant":
            raise ParameterInvalid(f"messages[{place}]", "Only an assistant's message can be a 'prefix'")
        changed = _message(message)
        if changed.get("role") == "assistant" and isinstance(changed.get("function_call"), dict):
            call_id = f"call_{place}"
            call = {"id": call_id, "type": "function", "function": changed.pop("function_call")}
            changed.setdefault("tool_calls", [call])
        elif changed.get("role") == "function":
            changed.update(role="tool", tool_call_id=call_id)
        yield changed


def _take_functions(body: Mapping[str, Any], wire: dict[str, Any]) -> None:
    """Tools by their older name."""
    if "tools" in wire:
        raise ParameterInvalid("functions", "'functions' is the older name of 'tools': send one of them")
    functions = parameters.items(body, "functions", parameters.TOOLS_MAX)
    wire["tools"] = [{"type": "function", "function": function} for function in functions]
    choice = body.get("function_call")
    if choice is not None:
        named = isinstance(choice, dict)
        wire["tool_choice"] = {"type": "function", "function": choice} if named else choice


def _enable_thinking(body: Mapping[str, Any]) -> bool | None:
    """Whether to think, as Qwen's servers and vLLM spell it; None when the body does not say so."""
    options = body.get("chat_template_kwargs")
    if options is None:
        return parameters.flag(body, "enable_thinking") if body.get("enable_thinking") is not None else None
    if not isinstance(options, dict):
        message = "'chat_template_kwargs' must be an object"
        raise ParameterInvalid("chat_template_kwargs", message, malformed=True)
    if options.keys() - {"enable_thinking", "thinking"}:
        message = "'chat_template_kwargs' may hold 'enable_thinking' only"
        raise ParameterUnsupported("chat_template_kwargs", message)
    said = [flag for flag in (*options.values(), body.get("enable_thinking")) if flag is not None]
    if any(not isinstance(flag, bool) for flag in said) or len(set(said)) > 1:
        message = "'enable_thinking' must be true or false, and the same wherever it stands"
        raise ParameterInvalid("chat_template_kwargs", message, malformed=True)
    return said[0] if said else None


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
    image = part.get("image_url") if isinstance(part, dict) else None
    if isinstance(image, str):
        image = {"url": image}
    if not isinstance(image, dict) or not isinstance(image.get("url"), str):
        return part
    return {**part, "image_url": {**image, "url": in_base64(image["url"])}}


def _param_in(message: str) -> str:
    if place := _PLACE.search(message):
        return place.group()
    if "'tool_call'" in message:
        return "tool_choice"  # so it is called there
    if _OF_TOOLS.match(message):
        return "tools"
    named = (
        name for name in ("response_format", "tool_choice", "reasoning_effort", "tools") if name in message
    )
    return next(named, "messages")


_CHAT: Final = Dialect(ChatCompletionRequest, {name: name for name in CONVERTED}, _param_in)
