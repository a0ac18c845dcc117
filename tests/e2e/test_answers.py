"""A stranger's first minutes: `kvitto up --detach`, credentials.json, the openai package, `kvitto chat`."""

import json
import stat
from decimal import Decimal
from typing import Any

import pytest

QUESTION = "What is the capital of France?"
MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def client(stack: Any) -> Any:
    """The openai package with the demo key of credentials.json."""
    return stack.client(stack.credentials["api_key"])


def test_credentials_are_for_this_user_alone(stack: Any) -> None:
    assert stat.S_IMODE((stack.data_dir / "credentials.json").stat().st_mode) == 0o600
    assert set(stack.credentials) == {"base_url", "api_key", "console_url", "admin_email", "admin_password"}
    assert stack.credentials["base_url"] == f"http://127.0.0.1:{stack.port}/v1"


def test_a_sensible_answer_comes_whole(client: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": QUESTION}])
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert 0 < answer.usage.completion_tokens <= 64
    assert answer.model == MODEL


def test_the_same_answer_comes_streamed(client: Any) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    chunks = list(client.chat.completions.create(**asked, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole
    assert len([delta for delta in deltas if delta.content]) > 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]


def test_the_model_is_listed_with_and_without_v1(stack: Any, client: Any) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    with stack.http(stack.credentials["api_key"]) as http:
        assert [model["id"] for model in http.get("/models").json()["data"]] == [MODEL]


def test_the_short_path_of_chat_completions_serves_too(stack: Any) -> None:
    with stack.http(stack.credentials["api_key"]) as http:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        answer = http.post("/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"]


def test_health_and_metrics_answer_and_name_no_tenant(stack: Any) -> None:
    with stack.http() as http:
        assert http.get("/livez").status_code == 200
        assert http.get("/readyz").status_code == 200
        metrics = http.get("/metrics")
    assert metrics.status_code == 200
    assert "# TYPE" in metrics.text
    assert "ten_" not in metrics.text


def test_chat_streams_and_prints_buckets_rate_charge_and_time_to_first_token(stack: Any) -> None:
    printed = stack.done("chat", QUESTION, "--max-tokens", "32")
    assert "Paris" in printed
    for part in (
        "cache hit",
        "cache miss",
        "output",
        "USD per 1M",
        "charge",
        "price row",
        "window",
        "first token",
    ):
        assert part in printed


def test_chat_tells_machines_exactly_what_its_usage_event_says(stack: Any) -> None:
    told = stack.told("chat", "Say hello.", "--max-tokens", "8", "--temperature", "0")
    (row,) = [
        row for row in stack.told("usage", "--tenant", "demo") if row["request_id"] == told["request_id"]
    ]
    assert {key: told[key] for key in row} == row
    assert told["charge"] == told["charge_by_price_book"]
    assert told["output"] == told["usage"]["completion_tokens"]
    assert told["first_token_s"] > 0
    sums = (
        told["cache_miss"] * Decimal(told["rates"]["miss"])
        + (told["cache_hit"] + told["cache_owed"]) * Decimal(told["rates"]["hit"])
        + told["output"] * Decimal(told["rates"]["output"])
    )
    assert Decimal(told["charge"]) == sums / 1_000_000


def test_a_usage_row_has_the_keys_of_the_contract_and_an_exact_charge(stack: Any, tenant: Any) -> None:
    stack.ask(tenant, "Hello", max_tokens=4)
    (row,) = stack.usage(tenant)
    assert list(row) == [
        "request_id", "tenant", "key", "model", "rated_at", "status",
        "cache_hit", "cache_owed", "cache_write", "cache_miss", "output", "charge", "currency",
    ]  # fmt: skip
    assert isinstance(row["charge"], str)
    assert set(row["charge"]) <= set("0123456789.")


def test_status_shows_every_part_ready_and_logs_speak(stack: Any) -> None:
    parts = stack.parts()
    assert {"postgres", "valkey", "gateway", "jobs"} <= set(parts)
    assert [part for part in parts.values() if part["state"] != "ready"] == []
    assert sum(part["memory_bytes"] for part in parts.values()) < 10 * 2**30
    worker = "decode-1"
    told = {name: parts[worker][name] for name in ("role", "draining", "running", "waiting")}
    assert told == {"role": "decode", "draining": False, "running": 0, "waiting": 0}
    assert stack.done("logs", worker).strip()


def test_no_secret_is_in_any_log(stack: Any, tenant: Any) -> None:
    stack.ask(tenant, "Canary", max_tokens=2)
    logs = stack.done("logs")
    for secret in (tenant.secret, stack.credentials["api_key"], json.dumps(stack.settings.salt_secret.hex())):
        assert secret.strip('"') not in logs
