"""The `anthropic` package for Python."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic

from tests.conformance.client import TOOL, TOOL_ABOUT, TOOL_SCHEMA, At, City, Client, Refused, Said, weather

TOOLS: Any = [{"name": TOOL, "description": TOOL_ABOUT, "input_schema": TOOL_SCHEMA}]
CITY_TOOL: Any = [{"name": "City", "description": "A city.", "input_schema": City.model_json_schema()}]


@asynccontextmanager
async def connected(at: At) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """A client; its errors are told as Refused."""
    async with anthropic.AsyncAnthropic(base_url=at.url, api_key=at.key, max_retries=at.retries) as client:
        try:
            yield client
        except anthropic.APIStatusError as error:
            raise Refused(error.status_code, str(error)) from error


def _user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@dataclass(frozen=True)
class AnthropicMessages(Client):
    """Messages."""

    name: str = "anthropic-python"
    surface: str = "/messages"
    cases: frozenset[str] = frozenset(
        {"plain", "stream", "errors", "tools", "tools_stream", "schema", "forced_tool", "thinking", "count"}
        | {"image"}
    )
    forced: str = "City"

    async def plain(self, at: At, text: str) -> Said:
        """See `Client`."""
        async with connected(at) as client:
            return _said(await client.messages.create(model=at.model, max_tokens=200, messages=_user(text)))

    async def stream(self, at: At, text: str) -> Said:
        """See `Client`: it thinks where the model can."""
        pieces = 0
        async with (
            connected(at) as client,
            client.messages.stream(
                model=at.model, max_tokens=200, messages=_user(text), thinking={"type": "adaptive"}
            ) as stream,
        ):
            async for event in stream:
                pieces += event.type in ("text", "thinking")
            said = _said(await stream.get_final_message())
        said.pieces = pieces
        return said

    async def tools(self, at: At, text: str) -> str:
        """See `Client`."""
        messages = _user(text)
        async with connected(at) as client:
            for _ in range(2):
                answer = await client.messages.create(
                    model=at.model, max_tokens=200, messages=messages, tools=TOOLS
                )
                if not _add_results(answer, messages):
                    break
        return _said(answer).text

    async def tools_stream(self, at: At, text: str) -> str:
        """See `Client`."""
        messages = _user(text)
        async with connected(at) as client:
            for _ in range(2):
                async with client.messages.stream(
                    model=at.model, max_tokens=200, messages=messages, tools=TOOLS
                ) as stream:
                    answer = await stream.get_final_message()
                if not _add_results(answer, messages):
                    break
        return _said(answer).text

    async def schema(self, at: At, text: str) -> City:
        """See `Client`."""
        async with connected(at) as client:
            answer = await client.messages.parse(
                model=at.model, max_tokens=200, messages=_user(text), output_format=City
            )
        assert answer.parsed_output is not None
        return answer.parsed_output

    async def forced_tool(self, at: At, text: str) -> City:
        """See `Client`."""
        async with connected(at) as client:
            answer = await client.messages.create(
                model=at.model,
                max_tokens=200,
                messages=_user(text),
                tools=CITY_TOOL,
                tool_choice={"type": "any"},
            )
        (call,) = (block for block in answer.content if block.type == "tool_use")
        assert call.name == "City"
        return City.model_validate(call.input)

    async def image(self, at: At, text: str, data_url: str) -> Said:
        """See `Client`."""
        source: Any = {"type": "base64", "media_type": "image/png", "data": data_url.partition(",")[2]}
        content: Any = [{"type": "image", "source": source}, {"type": "text", "text": text}]
        async with connected(at) as client:
            return _said(
                await client.messages.create(
                    model=at.model, max_tokens=200, messages=[{"role": "user", "content": content}]
                )
            )

    async def count(self, at: At, text: str) -> int:
        """See `Client`."""
        async with connected(at) as client:
            return (await client.messages.count_tokens(model=at.model, messages=_user(text))).input_tokens


def _said(answer: Any) -> Said:
    usage = answer.usage
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Said(
        text="".join(block.text for block in answer.content if block.type == "text"),
        thoughts="".join(block.thinking for block in answer.content if block.type == "thinking"),
        finish=answer.stop_reason,
        input_tokens=usage.input_tokens + cached,
        output_tokens=usage.output_tokens,
    )


def _add_results(answer: Any, messages: list[Any]) -> bool:
    """Whether tools were called; answer and results are added to the messages."""
    calls = [block for block in answer.content if block.type == "tool_use"]
    messages.append(
        {"role": "assistant", "content": [block.to_dict(mode="json") for block in answer.content]}
    )
    if calls:
        assert answer.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    return bool(calls)
