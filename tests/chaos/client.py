"""Clients of a storm: each asks once, reads to the end, or leaves at a moment of its own."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

Ending = Literal["complete", "left", "error"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks, with which headers beside its key. ``leave_s`` None stays to the end."""

    number: int
    tenant: str
    secret: str
    text: str
    max_tokens: int
    streamed: bool
    leave_s: float | None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Seen:
    """What a client saw: how it ended, the text until then, and the usage where one came.

    ``status`` is None where no answer began. ``pieces`` are deltas with text: each is a token at least.
    ``replayed``: the answer says that it was given before.
    """

    question: Question
    ending: Ending = "error"
    request_id: str | None = None
    status: int | None = None
    replayed: bool = False
    pieces: int = 0
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    from_s: float = 0.0
    to_s: float = 0.0


async def ask(http: httpx.AsyncClient, model: str, question: Question, now_s: Callable[[], float]) -> Seen:
    """Ask, and say what was seen; never raises for what the service does."""
    seen = Seen(question, from_s=now_s())
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question.text}],
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "stream": question.streamed,
    }
    if question.streamed:
        body["stream_options"] = {"include_usage": True}
    try:
        async with asyncio.timeout(question.leave_s):
            await _read(http, question, body, seen)
    except TimeoutError:
        seen.ending = "left"
    except httpx.HTTPError as error:
        seen.error = f"{type(error).__name__}: {error}"
    seen.to_s = now_s()
    return seen


async def _read(http: httpx.AsyncClient, question: Question, body: dict[str, Any], seen: Seen) -> None:
    headers = {"Authorization": f"Bearer {question.secret}", **question.headers}
    async with http.stream("POST", "/chat/completions", json=body, headers=headers) as response:
        seen.request_id, seen.status = response.headers.get("x-request-id"), response.status_code
        seen.replayed = "idempotent-replayed" in response.headers
        if response.status_code != 200:
            seen.error = f"{response.status_code} {(await response.aread()).decode()[:200]}"
            return
        if question.streamed:
            async for line in response.aiter_lines():
                _take(line, seen)
        else:
            answer = json.loads(await response.aread())
            (choice,) = answer["choices"]
            seen.text, seen.finish = choice["message"]["content"] or "", choice["finish_reason"]
            seen.usage, seen.ending = answer["usage"], "complete"


def _take(line: str, seen: Seen) -> None:
    """Take in one line of a stream; only the end of all makes it complete."""
    payload = line.removeprefix("data:").strip()
    if not line.startswith("data:"):
        return
    if payload == "[DONE]":
        if seen.finish and seen.usage and not seen.error:
            seen.ending = "complete"
        return
    event = json.loads(payload)
    if "error" in event:
        seen.error = json.dumps(event["error"])[:200]
        return
    seen.usage = event.get("usage") or seen.usage
    for choice in event["choices"]:
        text = choice["delta"].get("content") or ""
        seen.text, seen.pieces = seen.text + text, seen.pieces + bool(text)
        with contextlib.suppress(KeyError):
            seen.finish = choice["finish_reason"] or seen.finish
