"""From Responses bodies to those deepseek-recipe converts, and its refusals by parameter.

deepseek-recipe leaves out in silence what it does not know: items of a history, files, tools that run on a
server. Whoever sent them would pay for an answer to another question, so they are refused here, by place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from deepseek_recipe import (
    ConversationRequest,
    ConversionError,
    ConversionOptions,
    InferenceChunk,
    ParsingOptions,
    StreamProcessor,
)
from deepseek_recipe import ResponsesRequest as Native

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.images import in_base64
from recipe.protocols import parameters
from recipe.protocols.conversion import MESSAGE_CHARS_MAX, MODEL, SHAPE_PREFIX, UNREADABLE, sentence

ITEMS_MAX: Final = 10_000
TOOLS_MAX: Final = 1_024

CONVERTED: Final = ("input", "instructions", "tools", "tool_choice", "text", "reasoning")
# The one custom tool that deepseek-recipe knows; its input is one text, not JSON.
CUSTOM_TOOL: Final = "apply_patch"

_ITEMS: Final = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
    }
)
_SEARCH: Final = "web_search"
_WITHOUT_THOUGHT: Final = {"effort": "none"}
_PLACE: Final = re.compile(r"(?:input|tools)\[\d+\](?:\.\w+(?:\[\d+\])?)*")
# What its sentences speak of, most definite first; else it is the input.
_SPEAKS_OF: Final = (
    ("text.format", "text.format"),
    ("tool_choice", "tool_choice"),
    ("'tool_call'", "tool_choice"),
    ("tool output", "input"),
    ("function call", "input"),
    ("Tool names", "tools"),
    ("schema for", "tools"),
    ("reasoning", "reasoning"),
)
# What a response says of itself and not of its request.
_OWN: Final = (
    *("id", "object", "created_at", "completed_at", "status", "model"),
    *("output", "usage", "error", "incomplete_details", "content_filters", "moderation"),
)


@dataclass(frozen=True, slots=True)
class Bridged:
    """The part of a body that deepseek-recipe reads, spelled its way.

    Attributes:
        wire: to be converted.
        echoed: the same as it was asked for: conversion cannot both force a tool and think.
        dropped: names of what has no effect here.
        forced_tool: the tool that has to be called.
    """

    wire: Mapping[str, Any]
    echoed: Mapping[str, Any]
    dropped: frozenset[str]
    forced_tool: str | None


def bridged(body: parameters.Body) -> Bridged:
    """Spell a body deepseek-recipe's way; the body itself is left as it is.

    Raises:
        ParameterInvalid: the input or the tools are no list of objects, or too many.
        ParameterUnsupported: an item, a tool or a choice is not served.
    """
    wire = {name: body[name] for name in CONVERTED if body.get(name) is not None}
    dropped: set[str] = set()
    items = wire.get("input")
    if isinstance(items, list):
        wire["input"] = list(_items(_objects(items, "input", ITEMS_MAX), dropped))
    elif items is not None and not isinstance(items, str):
        raise ParameterInvalid("input", "'input' must be a string or a list of items", malformed=True)
    if "tools" in wire:
        wire["tools"] = list(_tools(_objects(wire["tools"], "tools", TOOLS_MAX), dropped))
    choice = wire.get("tool_choice")
    if isinstance(choice, dict):
        kind = _kind(choice)
        if kind.startswith(_SEARCH):
            del wire["tool_choice"]
            dropped.add("tool_choice")
        elif kind not in ("function", "custom"):
            raise ParameterUnsupported("tool_choice", f"'tool_choice' of type {kind!r} is not served")
    wire["model"] = MODEL
    choice = wire.get("tool_choice")
    forced = choice.get("name") if isinstance(choice, dict) else None
    converted = dict(wire)
    if choice == "required" or isinstance(choice, dict):
        if not wire.get("tools"):
            raise ParameterInvalid("tool_choice", "'tool_choice' asks for a tool, and 'tools' has none")
        converted["reasoning"] = _WITHOUT_THOUGHT
    return Bridged(converted, wire, frozenset(dropped), forced if isinstance(forced, str) else None)


def convert(wire: Mapping[str, Any], options: ConversionOptions) -> ConversationRequest:
    """Convert a bridged body; ParameterInvalid, naming the parameter, when deepseek-recipe refuses it."""
    try:
        return Native(dict(wire)).convert(options)
    except ConversionError as error:
        raise _refused(error) from None
    except UNREADABLE as error:
        raise _misshapen(wire, error) from None


def namespaces(wire: Mapping[str, Any], options: ConversionOptions) -> dict[str, tuple[str, str]]:
    """For each tool in a namespace, as the model knows it: its namespace, and its name there.

    Raises as `convert` does.
    """
    try:
        names: dict[str, tuple[str, str]] = Native(dict(wire)).namespace_tool_map(options)
    except ConversionError as error:
        raise _refused(error) from None
    except UNREADABLE as error:
        raise _misshapen(wire, error) from None
    return names


def echo(wire: Mapping[str, Any], converted: ConversationRequest) -> dict[str, Any]:
    """What every response object says of its request, as deepseek-recipe writes it.

    Args:
        wire: a bridged body that converts, with the other settings to be said.
        converted: any conversation request.
    """
    generator = Native.chunk_generator(converted, "", "").with_echo(Native(dict(wire)).echo())
    created, *_ = StreamProcessor(generator, ParsingOptions()).push(InferenceChunk.ready())
    response: dict[str, Any] = msgspec.json.decode(created.to_json())["response"]
    return {name: value for name, value in response.items() if name not in _OWN}


def _objects(values: Any, param: str, most: int) -> list[dict[str, Any]]:
    if not isinstance(values, list):
        raise ParameterInvalid(param, f"'{param}' must be a list", malformed=True)
    if len(values) > most:
        raise ParameterInvalid(param, f"'{param}' must hold at most {most}")
    for place, value in enumerate(values):
        if not isinstance(value, dict):
            raise ParameterInvalid(f"{param}[{place}]", "It must be an object", malformed=True)
    return values


def _kind(value: Mapping[str, Any], otherwise: str = "") -> str:
    kind = value.get("type") or otherwise
    return kind[: parameters.KIND_CHARS_MAX] if isinstance(kind, str) else ""


def _items(items: Sequence[dict[str, Any]], dropped: set[str]) -> Iterator[dict[str, Any]]:
    for place, item in enumerate(items):
        kind = _kind(item, "message" if "role" in item else "item_reference")
        if kind == "web_search_call":  # its results are nowhere in it: nothing is lost
            dropped.add(kind)
            continue
        if kind not in _ITEMS:
            raise ParameterUnsupported(f"input[{place}]", f"Items of type {kind!r} are not served")
        changed = dict(item)
        for name in ("content", "output"):
            if isinstance(parts := item.get(name), list):
                changed[name] = [_part(part, f"input[{place}].{name}[{at}]") for at, part in enumerate(parts)]
        yield changed


def _part(part: Any, param: str) -> Any:
    """A part of a message; what an assistant has refused with is what it has said."""
    if not isinstance(part, dict):
        raise ParameterInvalid(param, "It must be an object", malformed=True)
    if part.get("type") == "input_file":
        raise ParameterUnsupported(param, "Files are not read: send their text as 'input_text'")
    if part.get("type") == "refusal":
        return {"type": "output_text", "text": part.get("refusal")}
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return {**part, "image_url": in_base64(part["image_url"])}
    return part


def _tools(tools: Sequence[dict[str, Any]], dropped: set[str]) -> Iterator[dict[str, Any]]:
    for place, tool in enumerate(tools):
        kind = _kind(tool)
        if kind.startswith(_SEARCH):
            dropped.add(_SEARCH)
            continue
        if kind not in ("function", "namespace", "custom"):
            raise ParameterUnsupported(f"tools[{place}]", f"Tools of type {kind!r} are not served")
        if kind == "custom" and tool.get("name") != CUSTOM_TOOL:
            raise ParameterUnsupported(f"tools[{place}]", f"No custom tool but {CUSTOM_TOOL!r} is served")
        yield tool


def _refused(error: ConversionError) -> ParameterInvalid:
    message = sentence(error)
    if place := _PLACE.search(message):
        return ParameterInvalid(place.group(), message)
    return ParameterInvalid(next((name for words, name in _SPEAKS_OF if words in message), "input"), message)


def _misshapen(wire: Mapping[str, Any], error: Exception) -> ParameterInvalid:
    message = str(error).removeprefix(SHAPE_PREFIX)[:MESSAGE_CHARS_MAX]
    param = next(_misshapen_in(wire), "input")
    return ParameterInvalid(param, f"'{param}' is malformed: {message}", malformed=True)


def _misshapen_in(wire: Mapping[str, Any]) -> Iterator[str]:
    """What deepseek-recipe cannot read: item by item, tool by tool, then whole parameters."""
    for name, empty in (("input", {}), ("tools", {"input": ""})):
        values = wire.get(name)
        for place, value in enumerate(values if isinstance(values, list) else ()):
            if not _readable({**empty, name: [value]}):
                yield f"{name}[{place}]"
    for name in CONVERTED:
        if name in wire and not _readable({"input": "", name: wire[name]}):
            yield name


def _readable(part: Mapping[str, Any]) -> bool:
    try:
        Native({"model": MODEL, **part})
    except UNREADABLE:
        return False
    return True
