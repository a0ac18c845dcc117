"""Bodies that real clients sent to Anthropic's Messages, read in place where the recordings are at hand."""

from typing import Any

import msgspec
import pytest

from recipe.errors import ParameterUnsupported
from recipe.protocols.messages import read, read_counted
from recipe.registry import Recipe
from recipe.request import Request
from tests.recipe.recordings import sent_to

# What these ask for runs on Anthropic's own servers, and each is refused by name: file to parameter.
REFUSED = {
    "anthropic-python/bash_tool.json": "tools[0]",
    "anthropic-python/web_search_tool.json": "tools[0]",
}


BODIES = sent_to("/messages", "/messages/count_tokens")
by_name = pytest.mark.parametrize(
    ("name", "path", "body"), [(one.name, one.path, one.body) for one in BODIES]
)


def read_again(name: str, path: str, body: dict[str, Any]) -> Request | None:
    raw = msgspec.json.encode(body)
    reading = read_counted if path.endswith("/count_tokens") else read
    if name not in REFUSED:
        return reading(raw)
    with pytest.raises(ParameterUnsupported) as caught:
        reading(raw)
    assert caught.value.param == REFUSED[name]
    return None


@by_name
def test_a_recorded_body_is_read_in_full(name: str, path: str, body: dict[str, Any]) -> None:
    request = read_again(name, path, body)
    if request is None:
        return
    assert request.max_tokens == body.get("max_tokens")
    assert request.stream == body.get("stream", False)
    assert request.stop == tuple(body.get("stop_sequences", ()))
    assert len(request.conversation.tools) == len(body.get("tools", []))
    thinking = body.get("thinking", {"type": "disabled"})
    assert request.conversation.thinking_mode == (thinking["type"] != "disabled")
    whole = "".join(message.content for message in request.conversation.messages)
    assert all(text in whole for text in texts(body.get("system", [])))
    assert all(text in whole for message in body["messages"] for text in texts(message["content"]))


@by_name
def test_a_recorded_body_is_rendered_or_refused_for_a_reason(
    name: str, path: str, body: dict[str, Any], roomy: Recipe
) -> None:
    request = read_again(name, path, body)
    if request is None:
        return
    if any(message.image_sources for message in request.conversation.messages):
        with pytest.raises(ParameterUnsupported):
            roomy.render(request)
        return
    text = roomy.tokenizer.decode_bytes(roomy.render(request).token_ids).decode()
    assert all(spoken in text for message in body["messages"] for spoken in texts(message["content"]))


def texts(content: Any) -> list[str]:
    """The texts that a model must see of a content."""
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content if block["type"] == "text"]
