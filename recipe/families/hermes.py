"""Tools for models whose chat template knows none: Hermes's way, which most open models are trained on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from recipe.marks import CALL, CALL_END

_SYSTEM: Final = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within "
    f"{CALL}{CALL_END} XML tags:\n{CALL}\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n'
    f"{CALL_END}"
)


def spelled(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The same messages with tools, calls and results in their text; roles are system, user and assistant."""
    texts = list(_texts(messages))
    if tools:
        listed = _SYSTEM.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if texts and texts[0]["role"] == "system":
            texts[0]["content"] += "\n\n" + listed
        else:
            texts.insert(0, {"role": "system", "content": listed})
    return texts


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
        content = [message["content"]] if message["content"] or not calls else []
        yield {**message, "content": "\n".join([*content, *calls]), "tool_calls": []}
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _call(function: Mapping[str, Any]) -> str:
    """As the model wrote it, so that the blocks of its answer are found again."""
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{CALL}\n{{"name": {name}, "arguments": {function["arguments"]}}}\n{CALL_END}'
