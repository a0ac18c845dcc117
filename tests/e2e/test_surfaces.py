"""Each surface on the whole stack: real answers, in the form asked for, billed as their usage says."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anthropic
import jsonschema
import pytest

MODEL = "smollm2-135m-instruct"
ASKED = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "minimum": 0}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def claude(stack: Any, tenant: Any) -> anthropic.Anthropic:
    base = stack.credentials["base_url"].removesuffix("/v1")
    return anthropic.Anthropic(
        base_url=f"{base}/anthropic", api_key=tenant.secret, max_retries=0, timeout=120
    )


def billed(stack: Any, tenant: Any) -> tuple[int, int, int]:
    """Hits, misses and output of the tenant's one request; it was charged."""
    (row,) = stack.usage(tenant)
    assert (row["status"], row["model"]) == ("completed", MODEL)
    assert Decimal(row["charge"]) > 0
    return row["cache_hit"] + row["cache_owed"], row["cache_miss"], row["output"]


def test_responses_are_answered_by_an_alias_and_billed_as_they_say(stack: Any, tenant: Any) -> None:
    with tenant.client.responses.stream(model="gpt-5", input=ASKED, max_output_tokens=32) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    assert "Paris" in answer.output_text
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    usage = answer.usage
    hit = usage.input_tokens_details.cached_tokens
    assert billed(stack, tenant) == (hit, usage.input_tokens - hit, usage.output_tokens)


def test_messages_are_answered_by_an_alias_and_billed_as_they_say(
    stack: Any, tenant: Any, claude: anthropic.Anthropic
) -> None:
    asked: Any = {"model": "claude-latest", "messages": ASKED}
    counted = claude.messages.count_tokens(**asked)
    with claude.messages.stream(**asked, max_tokens=32, stop_sequences=[" is"]) as stream:
        answer = stream.get_final_message()
    (block,) = answer.content
    assert block.type == "text"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " is")
    assert " is" not in block.text
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert billed(stack, tenant) == (usage.cache_read_input_tokens, usage.input_tokens, usage.output_tokens)


def test_a_raw_text_is_continued_and_billed_as_it_says(stack: Any, tenant: Any) -> None:
    answer = tenant.client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0
    )
    assert "Paris" in answer.choices[0].text
    assert answer.usage.completion_tokens <= 8
    assert billed(stack, tenant) == (0, answer.usage.prompt_tokens, answer.usage.completion_tokens)


def by_chat(tenant: Any, _: anthropic.Anthropic) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    stream = tenant.client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=128, response_format=form, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def by_responses(tenant: Any, _: anthropic.Anthropic) -> str:
    form = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}
    answer = tenant.client.responses.create(model=MODEL, input=ASKED, max_output_tokens=128, text=form)
    return str(answer.output_text)


def by_messages(_: Any, claude: anthropic.Anthropic) -> str:
    asked: Any = {"model": MODEL, "messages": ASKED, "max_tokens": 128}
    answer = claude.messages.create(
        **asked, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}
    )
    return "".join(block.text for block in answer.content if block.type == "text")


@pytest.mark.parametrize("ask", [by_chat, by_responses, by_messages])
def test_an_answer_follows_its_schema_on_every_surface(
    ask: Callable[[Any, anthropic.Anthropic], str], tenant: Any, claude: anthropic.Anthropic
) -> None:
    jsonschema.validate(json.loads(ask(tenant, claude)), SCHEMA)


def test_a_forced_tool_is_called_and_its_result_answered(stack: Any, tenant: Any) -> None:
    create = tenant.client.chat.completions.create
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    called = create(model=MODEL, messages=messages, tools=[TOOL], tool_choice=named, max_tokens=128)
    choice = called.choices[0]
    assert choice.finish_reason == "tool_calls"
    messages.append(choice.message.to_dict())
    for call in choice.message.tool_calls:
        jsonschema.validate(json.loads(call.function.arguments), TOOL["function"]["parameters"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny"}'})
    answer = create(model=MODEL, messages=messages, tools=[TOOL], tool_choice="none", max_tokens=16)
    assert answer.choices[0].message.tool_calls is None
    assert {row["output"] for row in stack.usage(tenant)} == {
        called.usage.completion_tokens,
        answer.usage.completion_tokens,
    }


def test_log_probabilities_are_told_of_each_token_of_the_answer(tenant: Any) -> None:
    answer = tenant.client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=8, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    told = choice.logprobs.content
    assert "".join(token.token for token in told) == choice.message.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in told)
    # The model answers greedily unless asked: what it draws is the likeliest.
    assert all(token.top_logprobs[0].token == token.token for token in told)


def test_an_answer_goes_on_with_what_the_client_began(tenant: Any) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "The capital of France is", "prefix": True}]
    answer = tenant.client.chat.completions.create(model=MODEL, messages=begun, max_tokens=4, temperature=0)
    assert answer.choices[0].message.content.startswith(" Paris")


def test_a_schema_that_is_not_enforced_is_refused_by_its_place(stack: Any, tenant: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {**SCHEMA, "not": {}}}}
    with stack.http(tenant.secret) as http:
        body = {"model": MODEL, "messages": ASKED, "response_format": form}
        refused = http.post("/v1/chat/completions", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "response_format")
    assert "not" in error["message"]
    assert stack.usage(tenant) == []
