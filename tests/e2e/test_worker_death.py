"""A worker killed while it generates: its stream breaks, nobody pays, the next client is told to wait."""

import os
import signal
from decimal import Decimal
from typing import Any

import openai

MODEL = "smollm2-135m-instruct"
RECOVERY_TIMEOUT_S = 120.0
CHUNKS_BEFORE_KILL = 5


def test_a_dead_decode_worker_is_503_with_retry_after_and_comes_back(stack: Any, tenant: Any) -> None:
    before = stack.parts()
    (victim,) = [name for name in before if name.startswith("decode")]
    stream = tenant.client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "Tell me a very long story about a railway station in the snow."}
        ],
        temperature=0,
        stream=True,
        max_tokens=1_500,
    )
    for _ in range(CHUNKS_BEFORE_KILL):
        next(stream)
    os.kill(before[victim]["pid"], signal.SIGKILL)

    broken = breaks_off(stream)
    assert "[DONE]" not in broken
    refused = status_of(stack, tenant)
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["message"]
    stack.until(lambda: stack.open_holds(tenant) == 0, "holds of the failed requests released")

    stack.until(lambda: status_of(stack, tenant).status_code == 200, "an answer again", RECOVERY_TIMEOUT_S)
    stack.until(lambda: stack.parts()[victim]["state"] == "ready", "a ready worker", RECOVERY_TIMEOUT_S)
    after = stack.parts()
    assert after[victim]["pid"] != before[victim]["pid"]
    assert after[victim]["restarts"] == 1
    assert {n: p["pid"] for n, p in after.items() if n != victim} == {
        n: p["pid"] for n, p in before.items() if n != victim
    }

    rows = stack.usage(tenant)
    assert [row["status"] for row in rows if Decimal(row["charge"])] == ["completed"]
    assert [row["output"] for row in rows if row["status"] != "completed"] == [0] * (len(rows) - 1)
    spent = sum(Decimal(row["charge"]) for row in rows)
    assert stack.balance(tenant) == tenant.credit - spent
    assert stack.open_holds(tenant) == 0
    assert stack.requests_in_workers() == 0
    assert stack.faults_in_ledger() == []


def breaks_off(stream: Any) -> str:
    """Read the stream to its end, which must be an error; the error's text."""
    try:
        for _ in stream:
            pass
    except openai.APIError as error:
        return str(error)
    raise AssertionError("the stream of a killed worker ended as if nothing had happened")


def status_of(stack: Any, tenant: Any) -> Any:
    with stack.http(tenant.secret) as http:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        return http.post("/v1/chat/completions", json=body)
