"""Bad input: its status, a message that names the parameter, nothing charged, nothing held."""

import json
from typing import Any

import pytest

from billing.tenancy import keys
from tests.gateway.conftest import EPOCH, House, until
from tests.gateway.doubles import CONTEXT_TOKENS, MODEL

LONG = [{"role": "user", "content": "x" * CONTEXT_TOKENS}]
BODIES: dict[str, tuple[dict[str, Any], int, str]] = {
    "unknown model": ({"model": "gpt-9"}, 404, "model"),
    "no model": ({"model": None}, 400, "model"),
    "empty messages": ({"messages": []}, 400, "messages"),
    "no messages": ({"messages": None}, 400, "messages"),
    "messages of the wrong type": ({"messages": "Hi"}, 400, "messages"),
    "a prompt longer than the context": ({"messages": LONG}, 400, "messages"),
    "max_tokens zero": ({"max_tokens": 0}, 422, "max_tokens"),
    "max_tokens negative": ({"max_tokens": -5}, 422, "max_tokens"),
    "max_tokens beyond the context": ({"max_tokens": CONTEXT_TOKENS + 1}, 422, "max_tokens"),
    "max_tokens that do not fit behind the prompt": ({"max_tokens": CONTEXT_TOKENS - 1}, 400, "messages"),
    "max_tokens no number": ({"max_tokens": "many"}, 400, "max_tokens"),
    "temperature no number": ({"temperature": "hot"}, 400, "temperature"),
    "temperature negative": ({"temperature": -1}, 422, "temperature"),
    "top_p out of range": ({"top_p": 1.5}, 422, "top_p"),
    "seed negative": ({"seed": -1}, 422, "seed"),
    "two choices": ({"n": 2}, 400, "n"),
    "stream no flag": ({"stream": "yes"}, 400, "stream"),
    "a tier that nobody has": ({"service_tier": "priority"}, 422, "service_tier"),
    "the tier of a batch": ({"service_tier": "batch"}, 422, "service_tier"),
    "a tier without a price": ({"service_tier": "flex"}, 400, "service_tier"),
    "a tier that is no text": ({"service_tier": 1}, 400, "service_tier"),
}


@pytest.mark.parametrize(("body", "status", "param"), BODIES.values(), ids=BODIES.keys())
async def test_a_bad_parameter_is_refused_by_name(
    house: House, body: dict[str, Any], status: int, param: str
) -> None:
    async with house.chat(**body) as answer:
        error = (await answer.json())["error"]
    assert answer.status == status, error
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert "x-request-id" in answer.headers
    assert await house.nothing_happened()
    assert not house.engine.generations


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"model": NaN}', b"\xff\xfe", b"[" * 5000])
async def test_what_is_no_json_object_is_400(house: House, body: bytes) -> None:
    url = f"{house.url}/chat/completions"
    async with house.session.post(url, data=body, headers=house.headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"]
    assert await house.nothing_happened()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413(house: House, chunked: bool) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * 200_000}]}).encode()

    async def pieces() -> Any:
        yield body

    payload = pieces() if chunked else body
    url = f"{house.url}/v1/chat/completions"
    async with house.session.post(url, data=payload, headers=house.headers) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == "body_too_large"
    assert await house.nothing_happened()


async def refused(house: House, headers: dict[str, str]) -> dict[str, Any]:
    async with house.session.get(f"{house.url}/v1/models", headers=headers) as answer:
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        error: dict[str, Any] = (await answer.json())["error"]
    assert error["type"] == "authentication_error"
    return error


async def test_a_missing_wrong_or_truncated_key_is_401_and_is_not_repeated(house: House) -> None:
    wrong = keys.secret_of(b"w" * 32)
    for headers in (
        {},
        {"authorization": ""},
        {"authorization": house.key},
        {"authorization": f"Basic {house.key}"},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {house.key[:-1]}"},
        {"authorization": f"Bearer {house.key}x"},
        {"authorization": f"Bearer {wrong}"},
        {"authorization": "Bearer kv_live_é"},
    ):
        error = await refused(house, headers)
        assert house.key[:-1] not in json.dumps(error)
        assert wrong not in json.dumps(error)


async def test_a_revoked_key_stops_within_two_seconds_even_when_nobody_is_told(house: House) -> None:
    async with house.session.get(f"{house.url}/v1/models", headers=house.headers) as answer:
        assert answer.status == 200
    await house.parts.tenancy.revoke_key(house.key_id, EPOCH)

    async def stopped() -> bool:
        async with house.session.get(f"{house.url}/v1/models", headers=house.headers) as answer:
            return bool(answer.status == 401)

    await until(stopped, 2.5)
    async with house.chat() as answer:
        assert answer.status == 401
    assert await house.nothing_happened()


async def test_a_balance_that_does_not_cover_the_worst_case_is_402(house: House) -> None:
    await house.spend(leaving=100)
    async with house.chat() as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (402, "insufficient_balance")
        assert "retry-after" not in answer.headers
    assert not house.engine.generations
    assert not (await house.held()).holds
