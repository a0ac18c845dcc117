"""Bodies that real clients sent, read in place where the recordings are at hand."""

from typing import Any

import msgspec
import pytest

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.protocols.chat import ChatRequest, read
from recipe.registry import Recipe
from tests.recipe.recordings import every, sent_to

# What these ask for is not served, and each is refused by name: file to parameter.
REFUSED = {
    "openai-python/chat_kitchen_sink.json": "logit_bias",
    "openai-python/custom_tool.json": "tools",
    "openai-python/file_part.json": "messages[0]",
}


BODIES = sent_to("/chat/completions")
by_name = pytest.mark.parametrize(("name", "body"), [(one.name, one.body) for one in BODIES])


def test_every_recording_is_replayed_by_a_surface_or_asks_for_nothing_but_an_answer() -> None:
    """`gateway` tests ask `HEAD /` and the list of models."""
    surfaces = ("/chat/completions", "/responses", "/input_tokens", "/messages", "/count_tokens")
    others = {one.path for one in every()} - {one.path for one in sent_to(*surfaces)}
    assert others <= {"/", "/v1/models", "/v1/completions"}


def read_again(name: str, body: dict[str, Any]) -> ChatRequest | None:
    raw = msgspec.json.encode(body)
    if name not in REFUSED:
        return read(raw)
    with pytest.raises((ParameterInvalid, ParameterUnsupported)) as caught:
        read(raw)
    assert caught.value.param == REFUSED[name]
    return None


@by_name
def test_a_recorded_body_is_read_in_full(name: str, body: dict[str, Any]) -> None:
    request = read_again(name, body)
    if request is None:
        return
    assert len(request.conversation.messages) == len(body["messages"])
    assert request.max_tokens == body.get("max_completion_tokens", body.get("max_tokens"))
    assert request.stream == body.get("stream", False)
    assert request.include_usage == body.get("stream_options", {}).get("include_usage", False)
    assert request.sampling.temperature == body.get("temperature", 1.0)
    assert request.sampling.seed == body.get("seed")
    assert len(request.conversation.tools) == len(body.get("tools", body.get("functions", [])))


def refusal(body: dict[str, Any]) -> str | None:
    """The parameter that no model here can honour."""
    content = [message.get("content") for message in body["messages"]]
    parts = [part for one in content if isinstance(one, list) for part in one]
    if any(part["type"] == "image_url" for part in parts):
        return "messages"
    return None


@by_name
def test_a_recorded_body_is_rendered_or_refused_for_a_reason(
    name: str, body: dict[str, Any], roomy: Recipe
) -> None:
    request = read_again(name, body)
    if request is None:
        return
    if param := refusal(body):
        with pytest.raises(ParameterUnsupported) as caught:
            roomy.render(request)
        assert caught.value.param == param
        return
    prompt = roomy.render(request)
    text = roomy.tokenizer.decode_bytes(prompt.token_ids).decode()
    tools = [tool["function"] for tool in body.get("tools", ())] + body.get("functions", [])
    calls = [call["function"] for message in body["messages"] for call in message.get("tool_calls") or ()]
    for message in body["messages"]:
        content = message.get("content")
        parts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
        assert all(part in text for part in parts)
    assert all(function["name"] in text for function in (*tools, *calls))
    assert all(
        str(value) in text for call in calls for value in msgspec.json.decode(call["arguments"]).values()
    )
    assert (prompt.calls == "none") == (not tools)
    forced = body.get("tool_choice") not in (None, "auto")
    if "response_format" in body or (forced and roomy.served_name == "chatml"):
        assert prompt.constraint is not None
    assert not forced or prompt.constraint is not None or prompt.opens_calls
