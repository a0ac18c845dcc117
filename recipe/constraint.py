"""What an engine must enforce on an answer's tokens, made from what a request asks for.

All of it is xgrammar's structural tag, so that white space is bounded (a weak model otherwise fills its
answer with it) and so that reasoning may come first. Nothing here is dropped in silence: what cannot be
enforced in full, or costs too much to compile, is refused by name and place (`recipe.schema`,
`recipe.regex`).

The functions take ``after``, the spelling with which reasoning ends (``"</think>"``): the model reasons
freely until then, and its answer begins behind it, or behind up to two newlines more. None: the answer
begins at once. ``param`` is the parameter of the body that refusals name.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from deepseek_recipe import ToolDefinition

from recipe import regex, schema
from recipe.conversation import Conversation
from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.marks import CALL, CALL_END
from recipe.prompt import Constraint

# Enough for a newline and the indentation of a few levels.
WHITESPACE_MAX: Final = 16
TOOLS_MAX: Final = 128
REGEX_EXPANDED_MAX: Final = 512
_RESPONSE_FORMAT: Final = "response_format"
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_ANY_OBJECT: Final = {"type": "object"}

Format = dict[str, Any]


def of_response_format(
    conversation: Conversation, *, after: str | None = None, param: str = _RESPONSE_FORMAT
) -> Constraint | None:
    """What a conversation's response format asks for; None for text.

    Raises:
        ParameterInvalid, ParameterUnsupported: as `json_schema` and `matching` do.
    """
    match conversation.response_format:
        case "json_object":
            return json_object(after=after)
        case "json_schema":
            return json_schema(conversation.response_schema, after=after, param=param)
        case "regex":
            return matching(conversation.response_regex or "", after=after, param=param)
    return None


def json_object(*, after: str | None = None) -> Constraint:
    """Any JSON object."""
    return _constraint(_json(_ANY_OBJECT), after)


def json_schema(document: Any, *, after: str | None = None, param: str = _RESPONSE_FORMAT) -> Constraint:
    """A JSON value that the schema describes.

    Raises:
        ParameterInvalid: no schema, one that no value matches, or beyond a bound of `recipe.schema`.
        ParameterUnsupported: it asks for what is not enforced.
    """
    return _constraint(_json(_checked(document, schema.Budget(), param, "schema")), after)


def matching(pattern: str, *, after: str | None = None, param: str = _RESPONSE_FORMAT) -> Constraint:
    """A text that a regular expression matches as a whole; raises ParameterUnsupported (`recipe.regex`)."""
    try:
        size = regex.check(pattern)
    except regex.RegexRefused as error:
        raise ParameterUnsupported(param, f"This regular expression is not served: {error}") from None
    if size.expanded > REGEX_EXPANDED_MAX:
        what = f"it stands for more than {REGEX_EXPANDED_MAX} characters"
        raise ParameterUnsupported(param, f"This regular expression is not served: {what}")
    return _constraint({"type": "regex", "pattern": pattern}, after)


def forced_call(
    tools: Sequence[ToolDefinition],
    *,
    name: str | None = None,
    single: bool = False,
    after: str | None = None,
    param: str = "tools",
) -> Constraint:
    """A call of a tool in Hermes' form, or several, and nothing else.

    A call is ``<tool_call>\\n{"name": "...", "arguments": {...}}\\n</tool_call>``; several are parted by a
    newline. Arguments match the tool's schema. Where that cannot be enforced, a tool that is ``strict`` is
    refused, and any other is held to some JSON object.

    Args:
        name: the tool that must be called; None: any of them.
        single: exactly one call; else at least one.

    Raises:
        ParameterInvalid: no such tool, no tools, more than `TOOLS_MAX`, a name that has no plain spelling.
        ParameterInvalid, ParameterUnsupported: a strict tool's schema, as in `json_schema`.
    """
    chosen = [tool for tool in tools if name in (None, tool.name)]
    if not chosen:
        raise ParameterInvalid(
            "tool_choice", f"'tool_choice' names no tool of 'tools': {(name or '')[:80]!r}"
        )
    calls = list(_calls(chosen, tools, param))
    return _constraint(
        {
            "type": "tags_with_separator",
            "tags": calls,
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": single,
        },
        after,
    )


def offered_call(
    tools: Sequence[ToolDefinition], *, single: bool = False, after: str | None = None, param: str = "tools"
) -> Constraint:
    """Text in which each ``<tool_call>`` begins a call as in `forced_call`: for strict tools nobody forces.

    With ``single`` the answer ends behind the first call. Raises as `forced_call` does.
    """
    return _constraint(
        {
            "type": "triggered_tags",
            "triggers": [CALL],
            "tags": list(_calls(tools, tools, param)),
            "at_least_one": False,
            "stop_after_first": single,
        },
        after,
    )


def _calls(chosen: Sequence[ToolDefinition], tools: Sequence[ToolDefinition], param: str) -> Iterator[Format]:
    if not chosen or len(chosen) > TOOLS_MAX:
        raise ParameterInvalid(param, f"'{param}' must hold between 1 and {TOOLS_MAX} tools to call one")
    budget = schema.Budget()
    for place, tool in enumerate(tools):
        if tool not in chosen:
            continue
        if not _TOOL_NAME.fullmatch(tool.name):
            raise ParameterInvalid(f"{param}[{place}]", "A tool that is called needs a plain name")
        yield {
            "type": "tag",
            "begin": f'{CALL}\n{{"name": "{tool.name}", "arguments": ',
            "content": _json(_arguments(tool, budget, f"{param}[{place}]")),
            "end": f"}}\n{CALL_END}",
        }


def _arguments(tool: ToolDefinition, budget: schema.Budget, param: str) -> schema.Schema:
    parameters = tool.parameters
    if parameters is None:
        return _ANY_OBJECT
    if tool.strict:
        return _checked({"type": "object", **parameters}, budget, param, "parameters")
    try:
        return schema.enforced({"type": "object", **parameters}, budget)
    except (schema.SchemaRefused, TypeError):
        return _ANY_OBJECT


def _checked(document: Any, budget: schema.Budget, param: str, what: str) -> schema.Schema:
    try:
        return schema.enforced(document, budget)
    except schema.SchemaRefused as refused:
        message = f"The {what} of '{param}' cannot be served with {refused}"
        if refused.unsupported:
            raise ParameterUnsupported(param, message) from None
        raise ParameterInvalid(param, message) from None


def _json(described: schema.Schema) -> Format:
    return {"type": "json_schema", "json_schema": described, "max_whitespace_cnt": WHITESPACE_MAX}


def _constraint(answer: Format, after: str | None) -> Constraint:
    whole = answer
    if after is not None:
        reasoning = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": after}
        gap = {"type": "regex", "pattern": "\\n{0,2}"}
        whole = {"type": "sequence", "elements": [reasoning, gap, answer]}
    tag = {"type": "structural_tag", "format": whole}
    return Constraint("structural_tag", json.dumps(tag, ensure_ascii=False, separators=(",", ":")))
