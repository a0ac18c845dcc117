"""Content blocks of Messages, spelled as deepseek-recipe reads them.

Documents become text, since deepseek-recipe puts a stub in their place. What an earlier answer's maker hid
(`redacted_thinking`) is left out. What only server tools make is refused.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.protocols import parameters

BLOCKS_MAX: Final = 20_000
_DOCUMENTS: Final = "Documents are read as plain text alone: 'source' must be of type 'text' or 'content'"


class Blocks:
    """Spells the blocks of one body; ``ignored`` names what had no effect in them."""

    __slots__ = ("_left", "ignored")

    def __init__(self) -> None:
        self.ignored: set[str] = set()
        self._left = BLOCKS_MAX

    def message(self, message: Mapping[str, Any], at: str) -> dict[str, Any]:
        """A message with its blocks spelled.

        Args:
            message: as it was sent.
            at: its path in the body.

        Raises:
            ParameterInvalid: a block is no object, or there are too many.
            ParameterUnsupported: a block is of a kind that is not served.
        """
        content = message.get("content")
        if not isinstance(content, list):
            return dict(message)
        spelled: list[dict[str, Any]] = []
        for place, block in enumerate(content):
            spelled += self._block(self._seen(block, at), f"{at}.content[{place}]")
        if message.get("role") == "user":
            spelled = _joined(spelled)
        if content and not spelled:
            spelled = [_text("")]
        return {**message, "content": spelled}

    def system(self, system: Any) -> Any:
        """The system prompt as it is."""
        for block in system if isinstance(system, list) else ():
            self._seen(block, "system")
        return system

    def _seen(self, block: Any, at: str) -> dict[str, Any]:
        """A block, counted; what it says about caching is noted."""
        if not isinstance(block, dict):
            raise ParameterInvalid(at, "A content block must be an object", malformed=True)
        self._left -= 1
        if self._left < 0:
            raise ParameterInvalid("messages", f"A body must hold at most {BLOCKS_MAX} content blocks")
        if block.get("cache_control") is not None:
            self.ignored.add("cache_control")
        return block

    def _block(self, block: dict[str, Any], at: str) -> list[dict[str, Any]]:
        kind = block.get("type")
        if kind == "redacted_thinking":
            return []
        if kind == "document":
            return self._document(block, at)
        if kind == "tool_result":
            return [self._tool_result(block, at)]
        if kind == "tool_use" and not isinstance(block.get("input"), dict):
            raise ParameterInvalid(f"{at}.input", "The input of a tool must be an object", malformed=True)
        if isinstance(kind, str) and kind.endswith(("_tool_use", "_tool_result")):
            named = kind[: parameters.KIND_CHARS_MAX]
            raise ParameterUnsupported(at, f"No server tools are served, nor their blocks: {named!r}")
        return [block]

    def _tool_result(self, block: dict[str, Any], at: str) -> dict[str, Any]:
        """A result whose documents are text, and which says that it is an error where it is one."""
        content = block.get("content")
        spelled: list[Any] = [] if content is None else [_text(content)]
        if isinstance(content, list):
            spelled = []
            for place, inner in enumerate(content):
                seen = self._seen(inner, at)
                document = seen.get("type") == "document"
                spelled += self._document(seen, f"{at}.content[{place}]") if document else [seen]
        if block.get("is_error") is True:
            spelled = [_text("Error:"), *spelled]
        return {**block, "content": spelled}

    def _document(self, block: dict[str, Any], at: str) -> list[dict[str, Any]]:
        """A document of text as text blocks between tags, images in it where they stand."""
        citations = block.get("citations")
        if isinstance(citations, dict) and citations.get("enabled"):
            self.ignored.add("citations")
        source = block.get("source")
        kind = source.get("type") if isinstance(source, dict) else None
        if not isinstance(source, dict) or kind not in ("text", "content"):
            raise ParameterUnsupported(f"{at}.source", _DOCUMENTS)
        held = source.get("data" if kind == "text" else "content")
        inner = held if kind == "content" and isinstance(held, list) else [_text(held)]
        spelled = [_text("<document>")]
        spelled += [
            _text(f"{name}: {_string(block[name], f'{at}.{name}')}")
            for name in ("title", "context")
            if block.get(name) is not None
        ]
        for part in inner:
            seen = self._seen(part, f"{at}.source")
            if seen.get("type") == "text":
                seen = _text(_string(seen.get("text"), f"{at}.source"))
            elif seen.get("type") != "image":
                raise ParameterUnsupported(f"{at}.source", "A document holds text and images alone")
            spelled.append(seen)
        return [*spelled, _text("</document>")]


def _text(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _string(text: Any, param: str) -> str:
    if not isinstance(text, str):
        raise ParameterInvalid(param, f"'{param}' must be a string", malformed=True)
    return text


def _joined(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring texts as one block: deepseek-recipe makes a message of each, for other models too."""
    joined: list[dict[str, Any]] = []
    for are_text, run in groupby(blocks, _is_text):
        run_of = list(run)
        joined += [_text("\n\n".join(block["text"] for block in run_of))] if are_text else run_of
    return joined


def _is_text(block: dict[str, Any]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)
