"""The `openai` package for Python: chat completions, responses, completions."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
from openai.lib.streaming.responses import ResponseTextDeltaEvent

from tests.conformance.client import TOOL, TOOL_ABOUT, TOOL_SCHEMA, At, City, Client, Refused, Said, weather

CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": TOOL, "description": TOOL_ABOUT, "parameters": TOOL_SCHEMA},
}
RESPONSES_TOOL: Any = {"type": "function", "name": TOOL, "description": TOOL_ABOUT, "parameters": TOOL_SCHEMA}
BOTH = frozenset({"plain", "stream", "errors"})


@asynccontextmanager
async def connected(at: At) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client; its errors are told as Refused."""
    async with openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key=at.key, max_retries=at.retries) as client:
        try:
            yield client
        except openai.APIStatusError as error:
            raise Refused(error.status_code, str(error)) from error
        except openai.APIError as error:
            raise Refused(None, str(error)) from error


@dataclass(frozen=True)
class OpenAiChat(Client):
    """Chat completions."""

    name: str = "openai-python"
    surface: str = "/chat/completions"
    cases: frozenset[str] = BOTH | {"tools", "tools_stream", "schema", "forced_tool", "thinking", "image"}
    forced: str = "City"

    async def plain(self, at: At, text: str) -> Said:
        """See `Client`."""
        return await self._whole(at, text)

    async def image(self, at: At, text: str, data_url: str) -> Said:
        """See `Client`."""
        shown = {"type": "image_url", "image_url": {"url": data_url}}
        return await self._whole(at, [{"type": "text", "text": text}, shown])

    async def _whole(self, at: At, content: Any) -> Said:
        async with connected(at) as client:
            answer = await client.chat.completions.create(
                model=at.model, messages=[{"role": "user", "content": content}]
            )
        (choice,), usage = answer.choices, answer.usage
        assert usage is not None
        return Said(
            text=choice.message.content or "",
            thoughts=getattr(choice.message, "reasoning_content", None) or "",
            finish=choice.finish_reason,
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
        )

    async def stream(self, at: At, text: str) -> Said:
        """See `Client`."""
        said = Said()
        async with connected(at) as client:
            stream = await client.chat.completions.create(
                model=at.model,
                messages=[{"role": "user", "content": text}],
                stream=True,
                stream_options={"include_usage": True},
            )
            async for chunk in stream:
                if chunk.usage:
                    said.input_tokens = chunk.usage.prompt_tokens
                    said.output_tokens = chunk.usage.completion_tokens
                for choice in chunk.choices:
                    thought = getattr(choice.delta, "reasoning_content", None)
                    said.text += choice.delta.content or ""
                    said.thoughts += thought or ""
                    said.pieces += bool(choice.delta.content or thought)
                    said.finish = choice.finish_reason or said.finish
        return said

    async def tools(self, at: At, text: str) -> str:
        """See `Client`."""
        messages: list[Any] = [{"role": "user", "content": text}]
        async with connected(at) as client:
            for _ in range(2):
                answer = await client.chat.completions.create(
                    model=at.model, messages=messages, tools=[CHAT_TOOL]
                )
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    break
                assert answer.choices[0].finish_reason == "tool_calls"
                messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": _called(call.function)}
                    for call in message.tool_calls
                ]
        return message.content or ""

    async def tools_stream(self, at: At, text: str) -> str:
        """See `Client`: by the package's own accumulation of deltas."""
        messages: list[Any] = [{"role": "user", "content": text}]
        async with connected(at) as client:
            for _ in range(2):
                async with client.chat.completions.stream(
                    model=at.model, messages=messages, tools=[CHAT_TOOL]
                ) as stream:
                    message = (await stream.get_final_completion()).choices[0].message
                messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
                if not message.tool_calls:
                    break
                messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": _called(call.function)}
                    for call in message.tool_calls
                ]
        return message.content or ""

    async def schema(self, at: At, text: str) -> City:
        """See `Client`."""
        async with connected(at) as client:
            answer = await client.chat.completions.parse(
                model=at.model, messages=[{"role": "user", "content": text}], response_format=City
            )
        city = answer.choices[0].message.parsed
        assert city is not None
        return city

    async def forced_tool(self, at: At, text: str) -> City:
        """See `Client`: strict, and chosen by name."""
        async with connected(at) as client:
            answer = await client.chat.completions.parse(
                model=at.model,
                messages=[{"role": "user", "content": text}],
                tools=[openai.pydantic_function_tool(City)],
                tool_choice={"type": "function", "function": {"name": "City"}},
            )
        (call,) = answer.choices[0].message.tool_calls or ()
        city = call.function.parsed_arguments
        assert isinstance(city, City)
        return city


def _called(function: Any) -> str:
    assert function.name == TOOL
    return weather(**json.loads(function.arguments))


@dataclass(frozen=True)
class OpenAiResponses(Client):
    """Responses."""

    name: str = "openai-python-responses"
    surface: str = "/responses"
    cases: frozenset[str] = BOTH | {"tools", "tools_stream", "schema", "thinking", "image"}

    async def plain(self, at: At, text: str) -> Said:
        """See `Client`."""
        async with connected(at) as client:
            answer = await client.responses.create(model=at.model, input=text)
        return _said(answer)

    async def image(self, at: At, text: str, data_url: str) -> Said:
        """See `Client`."""
        shown = {"type": "input_image", "image_url": data_url, "detail": "auto"}
        parts: Any = [{"type": "input_text", "text": text}, shown]
        async with connected(at) as client:
            answer = await client.responses.create(model=at.model, input=[{"role": "user", "content": parts}])
        return _said(answer)

    async def stream(self, at: At, text: str) -> Said:
        """See `Client`."""
        pieces: list[str] = []
        async with connected(at) as client, client.responses.stream(model=at.model, input=text) as stream:
            pieces += [event.delta async for event in stream if isinstance(event, ResponseTextDeltaEvent)]
            said = _said(await stream.get_final_response())
        assert "".join(pieces) == said.text
        said.pieces = len(pieces)
        return said

    async def tools(self, at: At, text: str) -> str:
        """See `Client`."""
        turns: list[Any] = [{"role": "user", "content": text}]
        async with connected(at) as client:
            for _ in range(2):
                answer = await client.responses.create(model=at.model, input=turns, tools=[RESPONSES_TOOL])
                if not _add_outputs(answer, turns):
                    break
        return str(answer.output_text)

    async def tools_stream(self, at: At, text: str) -> str:
        """See `Client`."""
        turns: list[Any] = [{"role": "user", "content": text}]
        async with connected(at) as client:
            for _ in range(2):
                async with client.responses.stream(
                    model=at.model, input=turns, tools=[RESPONSES_TOOL]
                ) as stream:
                    answer = await stream.get_final_response()
                if not _add_outputs(answer, turns):
                    break
        return str(answer.output_text)

    async def schema(self, at: At, text: str) -> City:
        """See `Client`."""
        async with connected(at) as client:
            answer = await client.responses.parse(model=at.model, input=text, text_format=City)
        assert answer.output_parsed is not None
        return answer.output_parsed


def _said(answer: Any) -> Said:
    thoughts = [
        piece.text
        for item in answer.output
        if item.type == "reasoning"
        for piece in (*(item.content or ()), *item.summary)
    ]
    return Said(
        text=answer.output_text,
        thoughts="".join(thoughts),
        finish=answer.status,
        input_tokens=answer.usage.input_tokens,
        output_tokens=answer.usage.output_tokens,
    )


def _add_outputs(answer: Any, turns: list[Any]) -> bool:
    """Whether tools were called; what they say is added to the turns."""
    calls = [item for item in answer.output if item.type == "function_call"]
    turns += [item.to_dict(mode="json") for item in answer.output]
    turns += [
        {"type": "function_call_output", "call_id": call.call_id, "output": _called(call)} for call in calls
    ]
    return bool(calls)


@dataclass(frozen=True)
class OpenAiCompletions(Client):
    """Legacy completions: the prompt is text."""

    name: str = "openai-python-completions"
    surface: str = "/completions"
    cases: frozenset[str] = field(default=BOTH)

    async def plain(self, at: At, text: str) -> Said:
        """See `Client`."""
        async with connected(at) as client:
            answer = await client.completions.create(model=at.model, prompt=text, max_tokens=100)
        (choice,), usage = answer.choices, answer.usage
        assert usage is not None
        return Said(
            text=choice.text,
            finish=choice.finish_reason,
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
        )

    async def stream(self, at: At, text: str) -> Said:
        """See `Client`."""
        said = Said()
        async with connected(at) as client:
            stream = await client.completions.create(
                model=at.model,
                prompt=text,
                max_tokens=100,
                stream=True,
                stream_options={"include_usage": True},
            )
            async for chunk in stream:
                if chunk.usage:
                    said.input_tokens = chunk.usage.prompt_tokens
                    said.output_tokens = chunk.usage.completion_tokens
                for choice in chunk.choices:
                    said.text += choice.text
                    said.pieces += bool(choice.text)
                    said.finish = choice.finish_reason or said.finish
        return said
