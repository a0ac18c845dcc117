"""Tool calls from socket to ledger, as strict clients read them: the `openai` package among them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from engine.api import EngineFailed, TokenChunk
from tests.gateway.conftest import House
from tests.gateway.doubles import END, MODEL, Play, says
from tests.gateway.test_chat import events

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get.weather",
        "description": "Weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par"}}\n</tool_call>'
OVER = TokenChunk((END,), "stop")


def plays(text: str, *, at_once: int = 3) -> Play:
    """An answer in chunks of so many tokens."""
    chunks = [says(text[at : at + at_once]) for at in range(0, len(text), at_once)]
    return Play([*chunks, OVER])


@pytest.fixture
async def client(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=house.key, max_retries=0) as client:
        yield client


async def test_its_stream_helper_reads_the_calls(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = plays(f"Look.\n{CALL}\n{CALL}")
    stream = client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=[TOOL], max_tokens=300)
    async with stream as running:
        pieces = [
            event.arguments_delta
            async for event in running
            if event.type == "tool_calls.function.arguments.delta"
        ]
        answer = await running.get_final_completion()
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Look."
    calls = choice.message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("get.weather", '{"city": "Par"}')
    ] * 2
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") and len(call.id) <= 40 for call in calls)
    assert len(pieces) > 4
    (row,) = await house.settled()
    assert row.output == len(f"Look.\n{CALL}\n{CALL}") + 1


async def test_a_tool_loop_of_two_turns(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = plays(CALL)
    first = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[TOOL])
    message = first.choices[0].message
    assert (message.content, first.choices[0].finish_reason) == (None, "tool_calls")
    assert message.tool_calls is not None
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12"}
    house.engine.play = Play()
    turn = [*MESSAGES, message.to_dict(), result]
    second = await client.chat.completions.create(model=MODEL, messages=turn, tools=[TOOL])
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("Hello", "stop")
    assert house.engine.generations[1].request.retention_class == "agent"


async def test_every_chunk_of_a_call_has_what_the_strictest_client_needs(house: House) -> None:
    """vllm#18412, litellm#11407, opencode#37841, codex#7517: named once; pydantic-ai#6610, LibreChat#5563."""
    house.engine.play = plays(CALL, at_once=7)
    async with house.chat(stream=True, tools=[TOOL]) as answer:
        chunks = [chunk for chunk in await events(answer) if chunk != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert all(choice["index"] == 0 and "finish_reason" in choice for choice in choices)
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    head, *rest = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    request_id = answer.headers["x-request-id"].replace("-", "")
    assert head == {
        "index": 0,
        "id": f"call_{request_id}_0",
        "type": "function",
        "function": {"name": "get.weather", "arguments": ""},
    }
    assert all(
        call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"} for call in rest
    )
    assert json.loads("".join(call["function"]["arguments"] for call in rest)) == {"city": "Par"}
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert said == ""


async def test_a_client_of_functions_gets_a_function_call(house: House) -> None:
    house.engine.play = plays(CALL)
    async with house.chat(functions=[{**TOOL["function"], "name": "get_weather"}]) as answer:
        (choice,) = (await answer.json())["choices"]
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Par"}'}
    assert choice["finish_reason"] == "function_call"


async def test_where_one_call_is_allowed_the_generation_ends_behind_it(house: House) -> None:
    house.engine.play = Play([says(CALL), asyncio.Event()])
    async with house.chat(tools=[TOOL], parallel_tool_calls=False) as answer:
        (choice,) = (await answer.json())["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"
    assert (await house.settled())[0].output == len(CALL)
    await asyncio.wait_for(house.engine.generations[0].cancelled.wait(), 5)


async def test_a_stream_that_breaks_inside_a_call_ends_with_an_error(
    house: House, client: openai.AsyncOpenAI
) -> None:
    house.engine.play = Play([says(CALL[:50]), EngineFailed("decode-0", "killed")])
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[TOOL], stream=True)
    with pytest.raises(openai.APIError, match="worker failed"):
        async for _ in stream:
            pass
    assert (await house.settled())[0].status == "failed"


async def test_the_engine_is_told_what_the_answer_must_form(house: House) -> None:
    schema = {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    async with house.chat(response_format={"type": "json_schema", "json_schema": schema}) as answer:
        await answer.read()
    async with house.chat() as answer:
        await answer.read()
    held, free = (generation.request.sampling.constraint for generation in house.engine.generations)
    assert held is not None
    assert held.kind == "structural_tag"
    assert '"integer"' in held.text
    assert free is None


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("logit_bias", {"logit_bias": {"5": 3}}),
        ("tool_choice", {"tool_choice": "required"}),
        ("messages", {"messages": [*MESSAGES, {"role": "tool", "tool_call_id": "x", "content": "1"}]}),
    ],
)
async def test_what_cannot_be_honoured_is_refused_and_costs_nothing(
    house: House, param: str, body: dict[str, Any]
) -> None:
    async with house.chat(**body) as answer:
        error = (await answer.json())["error"]
    assert answer.status in (400, 422)
    assert error["param"] == param
    assert await house.nothing_happened()
