"""Bodies that real clients sent, read in place where the recordings are at hand."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.protocols.chat import ChatRequest, read
from recipe.registry import Recipe

RECORDINGS = Path(__file__).parents[3] / "shared" / "cases" / "clients"
# What these ask for is not served, and each is refused by name: file to parameter.
REFUSED = {
    "openai-python/custom_tool.json": "tools",
    "openai-python/file_part.json": "messages[0]",
}


def chat_bodies() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in sorted(RECORDINGS.glob("*/*.json")):
        recording = msgspec.json.decode(path.read_bytes())
        if recording["path"].endswith("/chat/completions"):
            found.append((f"{path.parent.name}/{path.name}", recording["body"]))
    return found


BODIES = chat_bodies()
by_name = pytest.mark.parametrize(("name", "body"), BODIES, ids=[name for name, _ in BODIES])


def read_again(name: str, body: dict[str, Any]) -> ChatRequest | None:
    raw = msgspec.json.encode(body)
    if name not in REFUSED:
        return read(raw)
    with pytest.raises(ParameterInvalid) as caught:
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


@by_name
def test_a_recorded_body_is_rendered_or_refused_for_a_reason(
    name: str, body: dict[str, Any], smol: Recipe
) -> None:
    request = read_again(name, body)
    if request is None:
        return
    spoken = [message for message in body["messages"] if isinstance(message.get("content"), str)]
    unserved = {"tools", "functions", "response_format"} & body.keys()
    if unserved or len(spoken) < len(body["messages"]):
        with pytest.raises(ParameterUnsupported):
            smol.render(request)
        return
    prompt = smol.render(request)
    text = smol.tokenizer.decode_bytes(prompt.token_ids).decode()
    assert all(message["content"] in text for message in spoken)
