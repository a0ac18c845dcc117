"""What clients and browsers do around a request: probes, preflights, slashes, two headers for a key."""

import asyncio

import pytest

from billing.tenancy.limits import Limit
from billing.tenancy.rules.rule import Owner
from billing.tenancy.rules.service import Rules
from gateway import browsers, paths
from tests.gateway.conftest import EPOCH, House
from tests.gateway.doubles import MODEL, Play

PAGE = {"origin": "https://example.com"}
ASKED = {
    **PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("path", paths.LIVE)
async def test_probes_are_answered_without_a_key(house: House, path: str) -> None:
    """headroom#2032, CLIProxyAPI#5905: a 405 reads as an endpoint that is down."""
    for method in ("GET", "HEAD"):
        async with house.session.request(method, house.url + path) as answer:
            assert (answer.status, await answer.read()) == (200, b"")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/user/balance", "/v1/organization/keys", "/nope"])
async def test_a_browser_may_ask_for_any_path_whatever_it_wants_to_send(house: House, path: str) -> None:
    """ollama#4388, opencodex#1773, pollinations#10165, aprender#671: a preflight carries no key."""
    async with house.session.options(house.url + path, headers=ASKED) as answer:
        assert (answer.status, await answer.read()) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-methods"] == "POST"
        assert answer.headers["access-control-allow-headers"] == ASKED["access-control-request-headers"]
        assert int(answer.headers["access-control-max-age"]) > 0
        assert "access-control-allow-credentials" not in answer.headers
        assert answer.headers["x-request-id"]


async def test_a_page_may_read_every_answer_also_one_that_refuses(house: House) -> None:
    """ollama#4388: without these headers a browser hides even the status."""
    asked = [("POST", "/v1/chat/completions", house.headers, 200), ("GET", "/user/balance", {}, 401)]
    asked += [("GET", "/nope", {}, 404), ("GET", "/v1/chat/completions", {}, 405)]
    for method, path, headers, status in asked:
        sent = BODY if method == "POST" else None
        async with house.session.request(
            method, house.url + path, json=sent, headers={**headers, **PAGE}
        ) as answer:
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == "*"
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert {"x-request-id", "retry-after", "x-ignored-params", "idempotent-replayed"} <= set(exposed)
            assert "x-ratelimit-remaining-tokens" in exposed


@pytest.mark.parametrize("path", browsers.UNSHARED)
async def test_what_the_house_says_of_itself_is_no_pages_to_read(house: House, path: str) -> None:
    async with house.session.get(house.url + path, headers=PAGE) as answer:
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions//", "/beta/chat/completions"],
)
async def test_a_slash_too_many_and_every_prefix_are_served_and_never_redirected(
    house: House, path: str
) -> None:
    """letta#3189, GinkGO#5389: who is redirected drops the key."""
    async with house.session.post(
        house.url + path, json=BODY, headers=house.headers, allow_redirects=False
    ) as answer:
        assert answer.status == 200, path
        assert (await answer.json())["model"] == MODEL


async def test_event_streams_are_neither_compressed_nor_kept_back(house: House) -> None:
    """tower-http#419, encode/starlette#2753: compression holds events back until there are enough."""
    accepts = {**house.headers, "accept-encoding": "zstd, gzip, br"}
    async with house.session.post(
        f"{house.url}/v1/chat/completions",
        json={**BODY, "stream": True},
        headers=accepts,
        auto_decompress=False,
    ) as answer:
        assert "content-encoding" not in answer.headers
        assert answer.headers["x-accel-buffering"] == "no"
        assert "no-transform" in answer.headers["cache-control"]
        assert (await answer.content.readline()).startswith(b"data: ")


async def test_the_head_of_a_stream_comes_before_its_first_event(house: House) -> None:
    """agentcore-public-stack#1133: a layer that waits for the first event holds back the status, too."""
    gate = asyncio.Event()
    house.engine.play = Play(prefill=gate)
    async with house.chat(stream=True) as answer:
        assert answer.status == 200
        gate.set()
        await answer.read()


async def test_every_refusal_has_the_one_shape(house: House) -> None:
    """ray#64833, sglang#7487: 404, 405, 400 and 422 as much as those of our own."""
    asked: tuple[tuple[str, str, object, int], ...] = (
        ("GET", "/nope", None, 404),
        ("PUT", "/v1/chat/completions", BODY, 405),
        ("POST", "/v1/chat/completions", [], 400),
        ("POST", "/v1/chat/completions", {**BODY, "max_tokens": 0}, 422),
        ("POST", "/v1/chat/completions", {**BODY, "model": "nobody"}, 404),
        ("GET", "/v1/organization/keys?limit=x", None, 403),
    )
    for method, path, body, status in asked:
        async with house.session.request(
            method, house.url + path, json=body, headers=house.headers
        ) as answer:
            assert answer.status == status, path
            assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}


async def test_a_limit_says_when_to_come_back_and_an_empty_purse_does_not(house: House) -> None:
    """openhuman#6504, pi#4991, pi#9595: Retry-After is for what waiting helps, and at most a minute."""
    await house.spend(leaving=0)
    async with house.chat() as answer:
        assert (answer.status, answer.headers.get("retry-after")) == (402, None)
    rules, owner = Rules(house.parts.database), Owner(house.tenant_id)
    limit = Limit("tenant", house.tenant_id, "tokens_per_day", 120)
    await rules.set_limit(owner, limit, EPOCH, actor="test")
    house.desk.keys.forget(house.tenant_id)
    await house.spend(leaving=10**15)
    for status in (200, 429):
        async with house.chat() as answer:
            assert answer.status == status
            await answer.read()
    assert 0 < int(answer.headers["retry-after"]) <= 60


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "{key}"}, 200),
        ({"x-api-key": " {key} ", "authorization": ""}, 200),
        ({"x-api-key": "{key}", "authorization": "Bearer {key}"}, 200),
        ({"x-api-key": "", "authorization": "bearer {key}"}, 200),
        ({"x-api-key": "{key}", "authorization": "Bearer {key}x"}, 401),
        ({"x-api-key": "{key}", "authorization": "Basic {key}"}, 401),
        ({"x-api-key": "Bearer {key}"}, 401),
        ({}, 401),
    ],
)
async def test_a_key_comes_in_either_header_and_in_both_only_if_it_is_the_same(
    house: House, headers: dict[str, str], status: int
) -> None:
    sent = {name: value.replace("{key}", house.key) for name, value in headers.items()}
    for path in ("/v1/models", "/user/balance"):
        async with house.session.get(house.url + path, headers=sent) as answer:
            assert answer.status == status
            if headers.get("authorization") == "Bearer {key}x":
                assert "different keys" in (await answer.json())["error"]["message"]


async def test_who_speaks_anthropic_is_refused_in_anthropics_words(house: House) -> None:
    version = {"anthropic-version": "2023-06-01"}
    for path, headers in (("/v1/models", version), ("/anthropic/v1/models", {}), ("/anthropic/nope", {})):
        async with house.session.get(house.url + path, headers=headers) as answer:
            body = await answer.json()
            kind = "not_found_error" if path.endswith("nope") else "authentication_error"
            assert (answer.status, body["type"], body["error"]["type"]) == (
                404 if kind == "not_found_error" else 401,
                "error",
                kind,
            )
            assert set(body) == {"type", "error", "request_id"}
            assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    wrong = {**BODY, "max_tokens": 0}
    async with house.session.post(
        f"{house.url}/v1/chat/completions", json=wrong, headers={**house.headers, **version}
    ) as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (400, "invalid_request_error")
