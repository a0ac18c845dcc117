"""`pydantic-ai`: its agents over each of the three protocols."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anthropic
import openai
from pydantic_ai import Agent, NativeOutput, PartDeltaEvent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPartDelta, ThinkingPart, ThinkingPartDelta
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.conformance.client import At, City, Client, Refused, Said, weather

CAN = frozenset({"plain", "stream", "errors", "tools", "tools_stream", "schema", "forced_tool", "thinking"})


def get_weather(city: str) -> str:
    """Tell what the weather is like."""
    return weather(city)


@dataclass(frozen=True)
class PydanticAi(Client):
    """An agent over a protocol."""

    name: str = "pydantic-ai"
    surface: str = "/chat/completions"
    cases: frozenset[str] = CAN
    forced: str = "final_result"
    protocol: Literal["chat", "responses", "messages"] = "chat"

    @asynccontextmanager
    async def _model(self, at: At) -> AsyncIterator[Model]:
        try:
            if self.protocol == "messages":
                async with anthropic.AsyncAnthropic(
                    base_url=at.url, api_key=at.key, max_retries=at.retries
                ) as client:
                    yield AnthropicModel(
                        at.model,
                        provider=AnthropicProvider(anthropic_client=client),
                        profile=AnthropicModelProfile(supports_json_schema_output=True),
                    )
                return
            async with openai.AsyncOpenAI(
                base_url=f"{at.url}/v1", api_key=at.key, max_retries=at.retries
            ) as client:
                provider = OpenAIProvider(openai_client=client)
                if self.protocol == "responses":
                    yield OpenAIResponsesModel(at.model, provider=provider)
                else:
                    profile = OpenAIModelProfile(openai_chat_thinking_field="reasoning_content")
                    yield OpenAIChatModel(at.model, provider=provider, profile=profile)
        except ModelHTTPError as error:
            raise Refused(error.status_code, str(error)) from error

    async def plain(self, at: At, text: str) -> Said:
        """See `Client`."""
        async with self._model(at) as model:
            answer = await Agent(model).run(text)
        return _said(answer.output, answer.all_messages()[-1])

    async def stream(self, at: At, text: str) -> Said:
        """See `Client`."""
        pieces = 0
        thinking: Any = {"type": "adaptive"}
        settings = (
            AnthropicModelSettings(anthropic_thinking=thinking) if self.protocol == "messages" else None
        )
        async with self._model(at) as model, Agent(model).iter(text, model_settings=settings) as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as events:
                        async for event in events:
                            delta = event.delta if isinstance(event, PartDeltaEvent) else None
                            pieces += isinstance(delta, TextPartDelta | ThinkingPartDelta)
            assert run.result is not None
            said = _said(run.result.output, run.result.all_messages()[-1])
        said.pieces = pieces
        return said

    async def tools(self, at: At, text: str) -> str:
        """See `Client`."""
        async with self._model(at) as model:
            return (await Agent(model, tools=[get_weather]).run(text)).output

    async def tools_stream(self, at: At, text: str) -> str:
        """See `Client`."""
        async with self._model(at) as model, Agent(model, tools=[get_weather]).run_stream(text) as answer:
            return await answer.get_output()

    async def schema(self, at: At, text: str) -> City:
        """See `Client`."""
        async with self._model(at) as model:
            return (await Agent(model, output_type=NativeOutput(City)).run(text)).output

    async def forced_tool(self, at: At, text: str) -> City:
        """See `Client`: what it does by itself for a type."""
        async with self._model(at) as model:
            return (await Agent(model, output_type=City).run(text)).output


def _thoughts(part: ThinkingPart) -> str:
    """What a model thought; responses tell it apart from a summary of it."""
    return part.content or "".join((part.provider_details or {}).get("raw_content", ()))


def _said(text: str, message: Any) -> Said:
    assert isinstance(message, ModelResponse)
    return Said(
        text=text,
        thoughts="".join(_thoughts(part) for part in message.parts if isinstance(part, ThinkingPart)),
        finish=message.finish_reason,
        input_tokens=message.usage.input_tokens,
        output_tokens=message.usage.output_tokens,
    )
