"""One chat completion over the HTTP API, streamed: what `kvitto chat` and any other client see of it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import aiohttp

from admin.cli.errors import UNREACHABLE, CommandFailed

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API is and the key to call it with."""

    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A completed stream.

    Attributes:
        request_id: from the header `x-request-id`; the id of the usage event.
        usage: the usage object of the last chunk that had one.
        first_token_s: from sending the request to the first piece of text; None when there was none.
    """

    request_id: str
    model: str
    text: str
    finish_reason: str | None
    usage: dict[str, Any]
    first_token_s: float | None
    total_s: float


async def model_of(endpoint: Endpoint) -> str:
    """The first model the API offers."""
    async with _session(endpoint) as session, _sent(session.get(f"{endpoint.base_url}/models")) as response:
        await _check(response)
        models = (await response.json())["data"]
    if not models:
        raise CommandFailed(
            "the API offers no model yet: `kvitto status` shows whether the workers are ready"
        )
    return str(models[0]["id"])


async def complete(endpoint: Endpoint, body: dict[str, Any], on_text: Callable[[str], None]) -> Answer:
    """Stream one chat completion.

    Args:
        body: chat-completions body; `stream` and usage are asked for here.
        on_text: called with each piece of text as it arrives.

    Raises:
        CommandFailed: not reachable, refused, or broken off; its text says which.
    """
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    started = perf_counter()
    first_token_s: float | None = None
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    finish: str | None = None
    async with (
        _session(endpoint) as session,
        _sent(session.post(f"{endpoint.base_url}/chat/completions", json=asked)) as response,
    ):
        await _check(response)
        async for chunk in _chunks(response):
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                finish = choice.get("finish_reason") or finish
                text = choice["delta"].get("content") or ""
                if text:
                    first_token_s = first_token_s or perf_counter() - started
                    pieces.append(text)
                    on_text(text)
    return Answer(
        request_id=response.headers.get("x-request-id", ""),
        model=str(body["model"]),
        text="".join(pieces),
        finish_reason=finish,
        usage=usage,
        first_token_s=first_token_s,
        total_s=perf_counter() - started,
    )


def _session(endpoint: Endpoint) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
    return aiohttp.ClientSession(timeout=timeout, headers={"Authorization": f"Bearer {endpoint.api_key}"})


@asynccontextmanager
async def _sent(
    request: AbstractAsyncContextManager[aiohttp.ClientResponse],
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A request whose transport errors become one line for people."""
    answered = False
    try:
        async with request as response:
            answered = True
            yield response
    except (aiohttp.ClientError, TimeoutError) as error:
        if not answered:
            raise CommandFailed(f"the API does not answer: {UNREACHABLE}") from error
        raise CommandFailed(f"the answer broke off ({error or 'timeout'})") from error


async def _check(response: aiohttp.ClientResponse) -> None:
    """Turn an error answer (`{"error": {message, type, param, code}}`) into one line."""
    if response.status < 400:
        return
    text = await response.text()
    try:
        error = json.loads(text)["error"]
        reason = f"{error['message']} ({error.get('code') or error['type']})"
    except (ValueError, KeyError, TypeError):
        reason = text[:200] or str(response.reason)
    wait = response.headers.get("retry-after")
    raise CommandFailed(
        f"the API answered {response.status}: {reason}{f'; try again in {wait} s' if wait else ''}"
    )


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The events of the stream, up to `[DONE]`; comments are skipped, an error event ends it."""
    async for line in response.content:
        field, _, value = line.decode().strip().partition(":")
        if field != "data":
            continue
        if value.strip() == "[DONE]":
            return
        chunk: dict[str, Any] = json.loads(value)
        if "error" in chunk:
            raise CommandFailed(f"the answer broke off: {chunk['error'].get('message')}")
        yield chunk
    raise CommandFailed("the answer broke off before its end")
