"""What clients saw, what is billed, and what is left: equal to the token and the femto-unit."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import openai
import pytest

MODEL = "smollm2-135m-instruct"
CHUNKS_BEFORE_KILL = 20
ANSWER_TOKENS_MAX = 1_500

# A client of its own process: killed, it closes nothing in an orderly way.
CLIENT = """
import os, openai
client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0)
stream = client.chat.completions.create(
    model=os.environ["MODEL"],
    messages=[{"role": "user", "content": "Tell me a very long story about a lighthouse and its keeper."}],
    temperature=0, stream=True, max_tokens=int(os.environ["TOKENS"]),
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print("chunk", flush=True)
"""


def test_usage_equals_what_clients_saw_times_the_price_book(stack: Any, tenant: Any, letter: Any) -> None:
    replies = [
        stack.ask(tenant, letter(21)),
        stack.ask_streamed(tenant, letter(21)),
        stack.ask_streamed(tenant, "Name a colour.", max_tokens=8),
        stack.ask(tenant, "Name a colour.", max_tokens=8, extra_body={"user_id": "u1"}),
        stack.ask(tenant, letter(21), max_tokens=40),
    ]
    with ThreadPoolExecutor(4) as clients:
        replies += clients.map(
            lambda n: stack.ask_streamed(tenant, f"Count to {n}.", max_tokens=12), range(4)
        )

    rows = {row["request_id"]: row for row in stack.usage(tenant)}
    assert set(rows) == {reply.request_id for reply in replies}
    for reply in replies:
        row = rows[reply.request_id]
        assert row["status"] == "completed"
        assert row["cache_hit"] + row["cache_owed"] == reply.hit
        assert row["cache_write"] + row["cache_miss"] == reply.miss
        assert row["output"] == reply.output
        assert Decimal(row["charge"]) == stack.charge_by_hand(reply, row)

    spent = sum((Decimal(row["charge"]) for row in rows.values()), Decimal(0))
    assert spent > 0
    assert stack.balance_in_books(tenant) == tenant.credit - spent
    assert stack.balance(tenant) == tenant.credit - spent
    assert stack.open_holds(tenant) == 0
    assert stack.faults_in_ledger() == []


def test_a_killed_client_is_charged_once_for_what_the_gateway_had_received(stack: Any, tenant: Any) -> None:
    told = {
        "BASE_URL": stack.credentials["base_url"],
        "API_KEY": tenant.secret,
        "MODEL": MODEL,
        "TOKENS": str(ANSWER_TOKENS_MAX),
    }
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT], env=os.environ | told, stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout is not None
        seen = [client.stdout.readline() for _ in range(CHUNKS_BEFORE_KILL)]
        assert stack.open_holds(tenant) == 1
    finally:
        client.send_signal(signal.SIGKILL)
        client.communicate()
    assert seen == ["chunk\n"] * CHUNKS_BEFORE_KILL, "the stream ended before it could be killed"

    stack.until(lambda: stack.usage(tenant) != [], "a usage event of the killed client")
    stack.until(lambda: stack.open_holds(tenant) == 0, "its hold released")
    stack.until(lambda: stack.requests_in_workers() == 0, "workers with nothing running")
    (row,) = stack.usage(tenant)
    assert row["status"] == "aborted"
    assert CHUNKS_BEFORE_KILL <= row["output"] < ANSWER_TOKENS_MAX
    assert stack.balance(tenant) == tenant.credit - Decimal(row["charge"])
    assert stack.faults_in_ledger() == []


def test_a_tenant_without_credit_is_refused_and_served_as_soon_as_it_has_some(stack: Any) -> None:
    poor = stack.tenant(credit="0")
    with pytest.raises(openai.APIStatusError) as refused:
        stack.ask(poor, "Hello")
    assert refused.value.status_code == 402
    assert refused.value.code == "insufficient_balance"
    stack.told("credit", "grant", poor.name, "0.5")
    assert stack.ask(poor, "Hello").output > 0
    assert len(stack.usage(poor)) == 1


def test_a_revoked_key_is_refused_within_two_seconds(stack: Any, tenant: Any) -> None:
    stack.ask(tenant, "Hello", max_tokens=1)
    stack.told("key", "revoke", tenant.key_id)

    def refused() -> bool:
        with stack.http(tenant.secret) as http:
            return bool(http.get("/v1/models").status_code == 401)

    stack.until(refused, "a revoked key refused", timeout_s=2.0)


LONG = [{"role": "user", "content": "word " * 20_000}]
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
BAD_BODIES = {
    "an unknown model": (CHAT | {"model": "no-such-model"}, {404}, "model"),
    "a model that is no text": (CHAT | {"model": 7}, {400, 422}, "model"),
    "no messages": (CHAT | {"messages": []}, {400, 422}, "messages"),
    "messages missing": ({"model": MODEL}, {400, 422}, "messages"),
    "a prompt beyond the context": ({"model": MODEL, "messages": LONG}, {400, 422}, "context"),
    "no tokens to answer with": (CHAT | {"max_tokens": 0}, {400, 422}, "max_tokens"),
    "more tokens than the context": (CHAT | {"max_tokens": 10**9}, {400, 422}, "max_tokens"),
    "negative max_tokens": (CHAT | {"max_tokens": -1}, {400, 422}, "max_tokens"),
    "max_tokens in words": (CHAT | {"max_tokens": "many"}, {400, 422}, "max_tokens"),
    "a negative temperature": (CHAT | {"temperature": -1}, {400, 422}, "temperature"),
    "a temperature in words": (CHAT | {"temperature": "hot"}, {400, 422}, "temperature"),
    "top_p beyond one": (CHAT | {"top_p": 7}, {400, 422}, "top_p"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bystander(stack: Any) -> Any:
    return stack.tenant()


@pytest.mark.parametrize(("body", "statuses", "named"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_bad_input_is_refused_by_name_and_costs_nothing(
    stack: Any, bystander: Any, body: dict[str, Any], statuses: set[int], named: str
) -> None:
    with stack.http(bystander.secret) as http:
        answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code in statuses, answer.text
    error = answer.json()["error"]
    assert named in error["message"] + str(error["param"])
    assert answer.headers["x-request-id"]
    assert stack.open_holds(bystander) == 0


def test_malformed_and_oversized_bodies_and_wrong_keys_cost_nothing(stack: Any, bystander: Any) -> None:
    path = "/v1/chat/completions"
    with stack.http(bystander.secret) as http:
        statuses = [http.post(path, content=b'{"model": ').status_code]
        statuses.append(http.post(path, content=b'{"x": "' + b"a" * (9 * 2**20) + b'"}').status_code)
    wrong = bystander.secret[:-1] + ("a" if bystander.secret[-1] != "a" else "b")
    for secret in (None, "kv_live_", bystander.secret[:-3], wrong, "sk-something"):
        with stack.http(secret) as http:
            answer = http.post(path, json=CHAT)
            statuses.append(answer.status_code)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert statuses == [400, 413, 401, 401, 401, 401, 401]
    assert stack.usage(bystander) == []
    assert stack.open_holds(bystander) == 0
    assert stack.balance(bystander) == bystander.credit
