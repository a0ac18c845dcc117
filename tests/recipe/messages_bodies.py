"""Bodies of Anthropic's Messages to read."""

from typing import Any

import msgspec

from recipe.protocols.messages import read
from recipe.request import Request

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
TEXT_DOCUMENT = {
    "type": "document",
    "title": "Report",
    "context": "of May",
    "source": {"type": "text", "media_type": "text/plain", "data": "All is well."},
}
PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
}


def body(**parameters: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": [USER], **parameters})


def request(**parameters: Any) -> Request:
    return read(body(**parameters))


def said(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def spoken(read_request: Request) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in read_request.conversation.messages]
