"""From the bodies that Anthropic's clients send to the bodies deepseek-recipe converts.

deepseek-recipe reads messages, tools and thinking. What it drops in silence is added to its conversation
behind it: ``any`` tool, strict tools, an answer's schema, and that an assistant's last message is continued.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Self

from deepseek_recipe import (
    AssistantMessage,
    ConversationRequest,
    ConversionOptions,
    MessagesRequest,
    ParsingOptions,
    SpecialToken,
    ThinkingInitialStage,
    ToolDefinition,
    UserMessage,
)

from recipe.conversation import Conversation, Message
from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.images import sources_of
from recipe.protocols import parameters
from recipe.protocols.conversion import MODEL, UNREADABLE, Dialect
from recipe.protocols.messages_blocks import Blocks
from recipe.request import Converted

_TOOL_KEYS: Final = frozenset({"name", "description", "input_schema", "type", "strict", "defer_loading"})
_OFF: Final = {"type": "disabled"}
_PLACES: Final = re.compile(r"(messages|tools)[.\[](\d+)")


@dataclass(frozen=True, slots=True)
class Completed:
    """What deepseek-recipe has read, with a conversation and a beginning of the answer made of more."""

    conversation: Conversation
    parsing_options: ParsingOptions
    read: ConversationRequest

    def resolve_max_tokens(self, prompt_tokens: int, context_limit: int) -> int:
        """See `recipe.request.Converted`."""
        tokens: int = self.read.resolve_max_tokens(prompt_tokens, context_limit)
        return tokens


@dataclass(frozen=True, slots=True)
class Additions:
    """What a body asks for beside what deepseek-recipe reads of it.

    Attributes:
        forces_tool: some tool must be called.
        strict: names of the tools whose arguments must follow their schemas.
        schema: of the answer; None where it is free.
        continues: the answer continues the last message.
    """

    forces_tool: bool = False
    strict: frozenset[str] = frozenset()
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    continues: bool = False

    def to(self, read: ConversationRequest, image_token: str) -> Completed:
        """What was read, with these."""
        known, begins = read.conversation, read.parsing_options
        messages = _with_images_in(known.messages, image_token)
        if self.continues and messages and messages[-1].role == "assistant":
            last = messages[-1]
            messages[-1] = AssistantMessage(last.content, last.reasoning_content, prefix=True)
            if known.thinking_mode and last.content:
                begins.thinking_initial_stage = ThinkingInitialStage.ContentContinuation
            elif known.thinking_mode and last.reasoning_content:
                begins.thinking_initial_stage = ThinkingInitialStage.ReasoningContinuation
        if self.forces_tool:
            begins.starts_in_tool_calls = True
        conversation = Conversation(
            messages,
            thinking_mode=known.thinking_mode,
            tools=[self._tool(tool) for tool in known.tools],
            tool_choice="required" if self.forces_tool else known.tool_choice,
            reasoning_effort=known.reasoning_effort,
            response_schema=self.schema,
        )
        return Completed(conversation, begins, read)

    def _tool(self, tool: ToolDefinition) -> ToolDefinition:
        if tool.name not in self.strict:
            return tool
        return ToolDefinition(tool.name, tool.description, tool.parameters, True, tool.defer_loading)


@dataclass(frozen=True, slots=True)
class Bridged:
    """A body in parts: what deepseek-recipe reads, what is added to that, what is left out of both.

    Attributes:
        wire: spelled deepseek-recipe's way.
        added: behind its conversion.
        ignored: parameters without effect below the top of the body, by path.
        forced_tool: see `recipe.request.Request`, as of the next.
    """

    wire: Mapping[str, Any]
    added: Additions
    ignored: frozenset[str]
    forced_tool: str | None
    parallel_calls: bool

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Take a body apart; it is left as it is.

        Raises:
            ParameterInvalid: a parameter is of the wrong type, or holds too much.
            ParameterUnsupported: a server tool, or a block that is not text, image or a tool's, is asked for.
        """
        blocks = Blocks()
        messages = [
            blocks.message(message, f"messages[{place}]")
            for place, message in enumerate(parameters.messages(body))
        ]
        wire: dict[str, Any] = {"model": MODEL, "messages": messages}
        if body.get("system") is not None:
            wire["system"] = blocks.system(body["system"])
        ignored = blocks.ignored
        if body.get("tools") is not None:
            wire["tools"] = [
                _tool(tool, f"tools[{place}]", ignored)
                for place, tool in enumerate(parameters.items(body, "tools", parameters.TOOLS_MAX))
            ]
        choice = _part(body, "tool_choice")
        kind = choice.get("type")
        if choice and kind != "any":
            wire["tool_choice"] = choice
        _think(body, wire, ignored, forced=kind in ("any", "tool"))
        if kind == "any" and not wire.get("tools"):
            raise ParameterInvalid("tool_choice", "'tool_choice' forces a tool, and there are none")
        added = Additions(
            forces_tool=kind == "any",
            strict=frozenset(tool["name"] for tool in wire.get("tools", ()) if _strict(tool)),
            schema=_schema(body),
            continues=messages[-1].get("role") == "assistant",
        )
        single = choice.get("disable_parallel_tool_use")
        if single is not None and not isinstance(single, bool):
            param = "tool_choice.disable_parallel_tool_use"
            raise ParameterInvalid(param, f"'{param}' must be true or false", malformed=True)
        forced_tool = choice["name"] if kind == "tool" and isinstance(choice.get("name"), str) else None
        return cls(wire, added, frozenset(ignored), forced_tool, parallel_calls=not single)

    def convert(self, options: ConversionOptions) -> Converted:
        """See `recipe.request.Request`."""
        read = _MESSAGES.convert(self.wire, options)
        whole = self.added == Additions() and not sources_of(read.conversation)
        return read if whole else self.added.to(read, options.special_tokens.token(SpecialToken.Image))


def _with_images_in(messages: list[Message], image_token: str) -> list[Message]:
    """A user's turn with images in it as one message: deepseek-recipe makes one of each block."""
    joined: list[Message] = []
    for role, run in groupby(messages, lambda message: message.role):
        turn = list(run)
        sources = [source for message in turn for source in message.image_sources]
        if role == "user" and sources:
            content = "\n\n".join(message.content for message in turn)
            turn = [UserMessage(content, sources, image_token=image_token)]
        joined += turn
    return joined


def _tool(tool: Any, at: str, ignored: set[str]) -> dict[str, Any]:
    """A client's tool; the names of what has no effect in it join ``ignored``."""
    if not isinstance(tool, dict):
        raise ParameterInvalid(at, "A tool must be an object", malformed=True)
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        name, said = (str(each)[: parameters.KIND_CHARS_MAX] for each in (tool.get("name"), kind))
        named = f"{name!r} of type {said!r}"
        raise ParameterUnsupported(at, f"Server tools are not served: {named}")
    if tool.get("strict") is not None and not isinstance(tool["strict"], bool):
        raise ParameterInvalid(f"{at}.strict", f"'{at}.strict' must be true or false", malformed=True)
    sent = {name for name, value in tool.items() if value is not None}
    ignored |= {name if name == "cache_control" else f"tools.{name}" for name in sent - _TOOL_KEYS}
    return {name: value for name, value in tool.items() if name in _TOOL_KEYS and name != "type"}


def _strict(tool: Mapping[str, Any]) -> bool:
    return tool.get("strict") is True and isinstance(tool.get("name"), str)


def _think(body: Mapping[str, Any], wire: dict[str, Any], ignored: set[str], *, forced: bool) -> None:
    """Write into ``wire`` whether to think, and how hard. Without a word of the body the model does not.

    A forced tool and thinking exclude each other there; the force is the more definite wish.
    """
    config, thinking = _part(body, "output_config"), _part(body, "thinking")
    ignored |= {
        f"thinking.{name}" for name, value in thinking.items() if name != "type" and value is not None
    }
    known = ("effort", "format")
    ignored |= {
        f"output_config.{name}" for name, value in config.items() if name not in known and value is not None
    }
    effort = config.get("effort")
    if effort is not None and not forced:
        wire["output_config"] = {"effort": effort}
    if forced or (not thinking and effort is None):
        wire["thinking"] = _OFF
    elif thinking:
        wire["thinking"] = thinking
    if forced and thinking and thinking.get("type") != "disabled":
        ignored.add("thinking")
    if effort is not None and wire.get("thinking", {}).get("type") == "disabled":
        ignored.add("output_config.effort")


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of the answer, under either of its names."""
    sent = {"output_config.format": _part(body, "output_config").get("format")}
    sent |= {"output_format": body.get("output_format")}
    formats = {param: form for param, form in sent.items() if form is not None}
    if len(formats) == 2 and sent["output_config.format"] != sent["output_format"]:
        raise ParameterInvalid("output_format", "'output_format' contradicts 'output_config.format'")
    for param, form in formats.items():
        schema = form.get("schema") if isinstance(form, dict) else None
        if not isinstance(schema, dict) or form.get("type") != "json_schema":
            message = f"'{param}' must be of type 'json_schema' and hold a 'schema'"
            raise ParameterInvalid(param, message, malformed=True)
        try:
            Conversation(response_schema=schema)
        except UNREADABLE as error:
            raise ParameterInvalid(param, f"'{param}' is malformed: {error}", malformed=True) from None
        return schema
    return None


def _part(body: Mapping[str, Any], param: str) -> dict[str, Any]:
    """An object, empty where there is none."""
    value = body.get(param)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ParameterInvalid(param, f"'{param}' must be an object", malformed=True)
    return value


def _param_in(message: str) -> str:
    if place := _PLACES.search(message):
        return f"{place[1]}[{place[2]}]"
    if "tool_choice" in message or "'tool_call'" in message:
        return "tool_choice"
    return "tools" if "tool" in message.lower() or "function" in message else "messages"


_MESSAGES: Final = Dialect(
    MessagesRequest,
    {
        **{name: name for name in ("system", "tools", "tool_choice", "thinking")},
        "output_config": "output_config.effort",
    },
    _param_in,
)
