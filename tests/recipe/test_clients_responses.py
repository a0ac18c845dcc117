"""Responses bodies that real clients sent, read in place where the recordings are at hand."""

from typing import Any

import msgspec
import pytest

from recipe.errors import ParameterUnsupported
from recipe.protocols.responses import ResponsesRequest, read
from recipe.registry import Recipe
from tests.recipe.recordings import sent_to

# What these ask for is not served, and each is refused by name: file to parameter.
REFUSED = {
    "openai-python/responses_background.json": "background",
    "openai-python/responses_builtin_tools.json": "tools[1]",
    "openai-python/responses_prev.json": "previous_response_id",
}


BODIES = sent_to("/responses", "/responses/input_tokens")
by_name = pytest.mark.parametrize(("name", "body"), [(one.name, one.body) for one in BODIES])


def read_again(name: str, body: dict[str, Any]) -> ResponsesRequest | None:
    raw = msgspec.json.encode(body)
    if name not in REFUSED:
        return read(raw)
    with pytest.raises(ParameterUnsupported) as caught:
        read(raw)
    assert caught.value.param == REFUSED[name]
    return None


def texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]


@by_name
def test_a_recorded_body_is_read_in_full(name: str, body: dict[str, Any]) -> None:
    request = read_again(name, body)
    if request is None:
        return
    items = body["input"]
    listed = [{"content": items}] if isinstance(items, str) else items
    # Reasoning is rendered by models that think, and `conversation` does only where the body says so.
    spoken = [item for item in listed if item.get("type") != "reasoning"]
    heard = [message.content for message in request.conversation.messages]
    for text in (text for item in spoken for text in texts(item.get("content", []))):
        assert any(text in one for one in heard)
    assert request.max_tokens == body.get("max_output_tokens")
    assert request.stream == body.get("stream", False)
    assert request.sampling.temperature == body.get("temperature", 1.0)
    tools = [tool for tool in body.get("tools", ()) if tool["type"] != "web_search"]
    assert len(request.conversation.tools) == sum(len(tool.get("tools", [tool])) for tool in tools)
    assert ("web_search" in request.ignored_params) == (len(tools) < len(body.get("tools", ())))


@by_name
def test_a_recorded_body_is_rendered_or_refused_for_a_reason(
    name: str, body: dict[str, Any], roomy: Recipe
) -> None:
    request = read_again(name, body)
    if request is None:
        return
    if any(message.image_sources for message in request.conversation.messages):
        with pytest.raises(ParameterUnsupported):
            roomy.render(request)
        return
    text = roomy.tokenizer.decode_bytes(roomy.render(request).token_ids).decode()
    items = body["input"]
    listed = [{"content": items}] if isinstance(items, str) else items
    spoken = [item for item in listed if item.get("type") != "reasoning"]
    assert all(said in text for item in spoken for said in texts(item.get("content", [])))
