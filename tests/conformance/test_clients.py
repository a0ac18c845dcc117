"""Real clients against a running gateway: each case once for each client that can do it."""

import json
from dataclasses import replace

import pytest

from billing.reports.usage_row import UsageRow
from tests.conformance.client import PATIENCE, TOOL, WEATHER, At, City, Client, Refused
from tests.conformance.clients import node
from tests.conformance.clients.anthropic_python import AnthropicMessages
from tests.conformance.clients.langchain import LangChain
from tests.conformance.clients.llama_index import LlamaIndex
from tests.conformance.clients.openai_python import OpenAiChat, OpenAiCompletions, OpenAiResponses
from tests.conformance.clients.pydantic_ai import PydanticAi
from tests.conformance.stack import THOUGHTS, Stack
from tests.pictures import data_url, png

HERE = (
    OpenAiChat(),
    OpenAiResponses(),
    OpenAiCompletions(),
    AnthropicMessages(),
    LangChain(),
    LangChain("langchain-openai-responses", "/responses", responses=True),
    PydanticAi(),
    PydanticAi("pydantic-ai-responses", "/responses", protocol="responses"),
    PydanticAi("pydantic-ai-anthropic", "/messages", protocol="messages"),
    LlamaIndex(),
)
SAID = "Grüße aus Zürich: 世界 🌍!"
QUESTION = "What is the weather like in Paris?"
CITY = City(name="Zürich", inhabitants=447_082)
ENDS = {"stop", "end_turn", "completed"}


def able(case: str) -> pytest.MarkDecorator:
    """Once for each client that can do it."""
    clients = [client for client in (*HERE, *node.CLIENTS) if case in client.cases]
    marks = pytest.mark.skipif(not node.installed(), reason=node.MISSING)
    return pytest.mark.parametrize(
        "client",
        [
            pytest.param(client, marks=marks if isinstance(client, node.NodeClient) else ())
            for client in clients
        ],
        ids=[client.name for client in clients],
    )


def prompt_tokens(row: UsageRow) -> int:
    return row.cache_hit + row.cache_owed + row.cache_write + row.cache_miss


def at(stack: Stack) -> At:
    return At(stack.house.url, stack.house.key, stack.model)


@able("plain")
async def test_a_plain_answer_with_its_usage(client: Client, stack: Stack) -> None:
    stack.source.script = lambda _: stack.dialect.says(SAID)
    said = await client.plain(at(stack), "Say hello")
    assert said.text == SAID
    assert said.finish in ENDS
    (row,) = await stack.house.settled()
    assert (said.input_tokens, said.output_tokens) == (prompt_tokens(row), row.output)
    assert "Say hello" in stack.source.prompts[0]


@able("stream")
async def test_a_streamed_answer_behind_heartbeats(client: Client, stack: Stack) -> None:
    stack.source.script = lambda _: stack.dialect.says(SAID)
    stack.source.silent_s = 0.4
    said = await client.stream(at(stack), "Say hello")
    assert said.text == SAID
    assert said.pieces > 3
    assert said.finish in ENDS
    (row,) = await stack.house.settled()
    if said.input_tokens is not None:
        assert (said.input_tokens, said.output_tokens) == (prompt_tokens(row), row.output)


@able("image")
async def test_an_image_is_seen_and_billed_as_a_part_of_the_prompt(client: Client, eyes: Stack) -> None:
    eyes.source.script = lambda _: eyes.dialect.says(SAID)
    said = await client.image(at(eyes), "What is this?", data_url(png(64, 48)))
    assert SAID in said.text
    [generation] = eyes.source.generations
    [image] = generation.request.images
    assert image.data == png(64, 48)
    (row,) = await eyes.house.settled()
    assert said.input_tokens == prompt_tokens(row) == len(generation.request.prompt_ids)
    assert image.tokens > 9
    assert "What is this?" in eyes.source.prompts[0]


@able("tools")
async def test_a_tool_loop_of_two_turns(client: Client, stack: Stack) -> None:
    await looped(client, stack, streamed=False)


@able("tools_stream")
async def test_a_streamed_tool_loop_of_two_turns(client: Client, stack: Stack) -> None:
    await looped(client, stack, streamed=True)


async def looped(client: Client, stack: Stack, *, streamed: bool) -> None:
    """The model calls the tool; once its result is in the prompt, it answers."""
    call = stack.dialect.calls(TOOL, city="Paris")
    stack.source.script = lambda prompt: stack.dialect.says(SAID) if WEATHER in prompt else call
    ask = client.tools_stream if streamed else client.tools
    assert await ask(at(stack), QUESTION) == SAID
    assert len(stack.asked) == 2
    assert all(exchange.streamed == streamed for exchange in stack.asked)
    assert TOOL in stack.source.prompts[0]
    assert len(await stack.house.settled(2)) == 2


@able("schema")
async def test_an_answer_of_a_schema_is_the_clients_own_type(client: Client, stack: Stack) -> None:
    stack.source.script = lambda _: stack.dialect.says(CITY.model_dump_json())
    assert await client.schema(at(stack), "The largest city of Switzerland, as JSON") == CITY


@able("forced_tool")
async def test_a_forced_tool_gives_the_clients_own_type(client: Client, stack: Stack) -> None:
    stack.source.script = lambda _: stack.dialect.calls(client.forced, **CITY.model_dump())
    assert await client.forced_tool(at(stack), "The largest city of Switzerland") == CITY


@able("thinking")
async def test_thoughts_come_apart_from_the_answer(client: Client, thinker: Stack) -> None:
    thinker.source.script = lambda _: thinker.dialect.says(SAID)
    said = await client.stream(at(thinker), "Say hello")
    assert (said.thoughts, said.text) == (THOUGHTS, SAID)


@able("tools_stream")
async def test_a_model_that_thinks_loops_with_tools(client: Client, thinker: Stack) -> None:
    await looped(client, thinker, streamed=True)


@able("count")
async def test_a_prompt_is_counted_as_it_would_be_billed(client: Client, stack: Stack) -> None:
    stack.source.script = lambda _: stack.dialect.says(SAID)
    counted = await client.count(at(stack), "Say hello")
    assert await stack.house.nothing_happened()
    assert counted == (await client.plain(at(stack), "Say hello")).input_tokens


@able("errors")
async def test_an_unknown_key_is_told_as_401(client: Client, stack: Stack) -> None:
    with pytest.raises(Refused) as refused:
        await client.plain(replace(at(stack), key=stack.house.key[:-1]), "Hi")
    assert refused.value.status == 401


@able("errors")
async def test_an_empty_balance_is_told_as_402_and_not_asked_again(client: Client, stack: Stack) -> None:
    await stack.house.spend(leaving=0)
    with pytest.raises(Refused) as refused:
        await client.plain(replace(at(stack), retries=PATIENCE), "Hi")
    assert refused.value.status == 402
    assert "balance" in refused.value.message
    assert len(stack.asked) == 1


@able("errors")
async def test_an_unknown_model_is_told_as_404(client: Client, stack: Stack) -> None:
    with pytest.raises(Refused) as refused:
        await client.stream(replace(at(stack), model="gpt-9"), "Hi")
    assert refused.value.status == 404
    assert "gpt-9" in refused.value.message


@able("errors")
async def test_a_limit_is_waited_for_as_long_as_retry_after_says(client: Client, limited: Stack) -> None:
    limited.source.script = lambda _: limited.dialect.says(SAID)
    await limited.exhaust()
    said = await client.plain(replace(at(limited), retries=PATIENCE), "Say hello")
    assert said.text == SAID
    refused, answered = limited.asked
    assert (refused.status, answered.status) == (429, 200)
    assert json.loads(refused.answer)["error"]["message"]
    assert answered.at - refused.at >= int(refused.headers["retry-after"]) >= 1
