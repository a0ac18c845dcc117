"""LangChain's `langchain-openai`, over chat completions and over responses."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.conformance.client import At, City, Client, Refused, Said, weather


@tool
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
class LangChain(Client):
    """`ChatOpenAI`."""

    name: str = "langchain-openai"
    surface: str = "/chat/completions"
    cases: frozenset[str] = frozenset(
        {"plain", "stream", "errors", "tools", "tools_stream", "schema", "forced_tool"}
    )
    forced: str = "City"
    responses: bool = False

    def _model(self, at: At) -> ChatOpenAI:
        options: dict[str, Any] = {"use_responses_api": True} if self.responses else {}
        return ChatOpenAI(
            model=at.model,
            base_url=f"{at.url}/v1",
            api_key=at.key,  # type: ignore[arg-type]  # the package turns it into its secret type
            max_retries=at.retries,
            stream_usage=True,
            **options,
        )

    async def plain(self, at: At, text: str) -> Said:
        """See `Client`."""
        with telling():
            return _said(await self._model(at).ainvoke(text))

    async def stream(self, at: At, text: str) -> Said:
        """See `Client`."""
        with telling():
            chunks = [chunk async for chunk in self._model(at).astream(text)]
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        said = _said(whole)
        said.pieces = sum(bool(chunk.text) for chunk in chunks)
        return said

    async def tools(self, at: At, text: str) -> str:
        """See `Client`."""
        model, messages = self._model(at).bind_tools([get_weather]), [HumanMessage(text)]
        return await _looped(messages, model.ainvoke)

    async def tools_stream(self, at: At, text: str) -> str:
        """See `Client`."""
        model = self._model(at).bind_tools([get_weather])

        async def gathered(messages: list[BaseMessage]) -> AIMessage:
            chunks: Any = [chunk async for chunk in model.astream(messages)]
            whole = chunks[0]
            for chunk in chunks[1:]:
                whole += chunk
            return whole

        return await _looped([HumanMessage(text)], gathered)

    async def schema(self, at: At, text: str) -> City:
        """See `Client`."""
        city = await self._model(at).with_structured_output(City, method="json_schema").ainvoke(text)
        assert isinstance(city, City)
        return city

    async def forced_tool(self, at: At, text: str) -> City:
        """See `Client`."""
        model = self._model(at).with_structured_output(City, method="function_calling")
        city = await model.ainvoke(text)
        assert isinstance(city, City)
        return city


async def _looped(messages: list[Any], ask: Any) -> str:
    for _ in range(2):
        message = await ask(messages)
        messages.append(message)
        if not message.tool_calls:
            break
        messages += [
            ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
            for call in message.tool_calls
        ]
    return str(message.text)


def _said(message: Any) -> Said:
    usage = message.usage_metadata
    told = message.response_metadata
    return Said(
        text=str(message.text),
        finish=told.get("finish_reason") or told.get("status"),
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
    )
