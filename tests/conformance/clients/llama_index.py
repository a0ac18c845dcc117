"""LlamaIndex's `OpenAILike`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.conformance.client import At, City, Client, Refused, Said, weather


def get_weather(city: str) -> str:
    """Tell what the weather is like."""
    return weather(city)


@contextmanager
def telling() -> Iterator[None]:
    """Errors of the package beneath are told as Refused."""
    try:
        yield
    except openai.APIStatusError as error:
        raise Refused(error.status_code, str(error)) from error


@dataclass(frozen=True)
class LlamaIndex(Client):
    """`OpenAILike`; its types come by way of a forced tool."""

    name: str = "llama-index"
    surface: str = "/chat/completions"
    cases: frozenset[str] = frozenset({"plain", "stream", "errors", "tools", "tools_stream", "forced_tool"})
    forced: str = "City"

    def _model(self, at: At) -> OpenAILike:
        return OpenAILike(
            model=at.model,
            api_base=f"{at.url}/v1",
            api_key=at.key,
            is_chat_model=True,
            is_function_calling_model=True,
            context_window=8192,
            max_retries=at.retries,
        )

    async def plain(self, at: At, text: str) -> Said:
        """See `Client`."""
        with telling():
            answer = await self._model(at).achat([ChatMessage(content=text)])
        return _said(answer.message.content, answer.raw)

    async def stream(self, at: At, text: str) -> Said:
        """See `Client`."""
        pieces, finish = [], None
        with telling():
            stream = await self._model(at).astream_chat([ChatMessage(content=text)])
            async for chunk in stream:
                pieces.append(chunk.delta or "")
                for choice in chunk.raw.choices:  # type: ignore[union-attr]  # the package's own type
                    finish = choice.finish_reason or finish
        return Said("".join(pieces), finish=finish, pieces=sum(map(bool, pieces)))

    async def tools(self, at: At, text: str) -> str:
        """See `Client`."""
        model = self._model(at)

        async def asked(messages: list[ChatMessage]) -> Any:
            return await model.achat_with_tools([_tool()], chat_history=messages)

        return await _looped(model, text, asked)

    async def tools_stream(self, at: At, text: str) -> str:
        """See `Client`."""
        model = self._model(at)

        async def gathered(messages: list[ChatMessage]) -> Any:
            stream = await model.astream_chat_with_tools([_tool()], chat_history=messages)
            return [chunk async for chunk in stream][-1]

        return await _looped(model, text, gathered)

    async def forced_tool(self, at: At, text: str) -> City:
        """See `Client`."""
        city = await self._model(at).astructured_predict(City, PromptTemplate(text))
        assert isinstance(city, City)
        return city


def _tool() -> FunctionTool:
    return FunctionTool.from_defaults(fn=get_weather)


async def _looped(model: OpenAILike, text: str, ask: Any) -> str:
    messages = [ChatMessage(content=text)]
    for _ in range(2):
        answer = await ask(messages)
        messages.append(answer.message)
        calls = model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
        if not calls:
            break
        messages += [
            ChatMessage(
                content=get_weather(**call.tool_kwargs),
                role=MessageRole.TOOL,
                additional_kwargs={"tool_call_id": call.tool_id},
            )
            for call in calls
        ]
    return answer.message.content or ""


def _said(text: str | None, raw: Any) -> Said:
    return Said(
        text=text or "",
        finish=raw.choices[0].finish_reason,
        input_tokens=raw.usage.prompt_tokens,
        output_tokens=raw.usage.completion_tokens,
    )
