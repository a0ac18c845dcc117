"""A worker killed while it generates: its stream goes on elsewhere where it can; else it breaks, unpaid."""

import os
import signal
from decimal import Decimal
from typing import Any

import openai

MODEL = "smollm2-135m-instruct"
RECOVERY_TIMEOUT_S = 180.0
CHUNKS_BEFORE_KILL = 5
WORKERS = ("prefill-1", "decode-1")


def streamed(tenant: Any, **more: Any) -> Any:
    story = "Tell me a very long story about a railway station in the snow."
    return tenant.client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": story}],
        stream=True,
        stream_options={"include_usage": True},
        **more,
    )


def kill(stack: Any, *names: str) -> dict[str, Any]:
    """Kill workers at once; the parts as they were before."""
    before: dict[str, Any] = stack.parts()
    for name in names:
        os.kill(before[name]["pid"], signal.SIGKILL)
    return before


def recovered(stack: Any, before: dict[str, Any], *names: str) -> None:
    """See those workers started again, once, and nothing else touched."""
    for name in names:
        stack.until(
            lambda name=name: (
                stack.parts()[name]["restarts"] == before[name]["restarts"] + 1
                and stack.parts()[name]["state"] == "ready"
            ),
            f"{name} ready again",
            RECOVERY_TIMEOUT_S,
        )
    after = stack.parts()
    others = set(before) - set(names)
    assert {name: after[name]["pid"] for name in others} == {name: before[name]["pid"] for name in others}


def test_a_stream_whose_worker_dies_goes_on_elsewhere_and_is_billed_once(stack: Any, tenant: Any) -> None:
    raw = streamed(tenant, temperature=0, max_tokens=200)
    stream = iter(raw.parse())
    chunks = [next(stream) for _ in range(CHUNKS_BEFORE_KILL)]
    (victim,) = [name for name, part in stack.parts().items() if part["running"]]
    before = kill(stack, victim)
    chunks += list(stream)

    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    usage = [chunk.usage for chunk in chunks if chunk.usage][-1]
    (row,) = stack.usage(tenant)
    assert (row["status"], row["output"]) == ("completed", usage.completion_tokens)
    attempts = stack.receipt(row["request_id"]).attempts
    assert len({attempt.worker for attempt in attempts}) == 2
    assert max(attempt.output_to for attempt in attempts) == row["output"]
    assert stack.balance(tenant) == tenant.credit - Decimal(row["charge"])
    recovered(stack, before, victim)
    assert stack.requests_in_workers() == 0


def test_with_all_workers_dead_it_is_503_with_retry_after_until_they_are_back(
    stack: Any, tenant: Any
) -> None:
    raw = streamed(tenant, temperature=0.8, seed=7, max_tokens=1_500)
    stream = iter(raw.parse())
    for _ in range(CHUNKS_BEFORE_KILL):
        next(stream)
    before = kill(stack, *WORKERS)

    broken = breaks_off(stream)
    assert "[DONE]" not in broken
    refused = status_of(stack, tenant)
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["message"]
    stack.until(lambda: stack.open_holds(tenant) == 0, "holds of the failed requests released")

    recovered(stack, before, *WORKERS)
    stack.until(lambda: status_of(stack, tenant).status_code == 200, "an answer again", RECOVERY_TIMEOUT_S)
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
