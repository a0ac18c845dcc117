"""The way to an imitated Stripe: forms in, JSON out, idempotency keys, faults; on a real socket.

Keys behave as Stripe documents: what an endpoint that began has answered is kept, its failures too, and is
said again to the same key and body; another body is refused. What was refused before it began is not kept.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl

import uvicorn

Fault = Literal[
    "500_before", "500_after", "429", "reset_before", "reset_after", "silence_after", "garbage_after"
]
FAULTS: tuple[Fault, ...] = Fault.__args__  # type: ignore[attr-defined]  # of a Literal
Answered = tuple[int, dict[str, Any]]
Endpoint = Callable[..., dict[str, Any]]

FAILED: Answered = (500, {"error": {"type": "api_error", "message": "An unknown error occurred"}})
LIMITED: Answered = (
    429,
    {"error": {"type": "invalid_request_error", "code": "rate_limit", "message": "Slow"}},
)


class Refused(Exception):
    """What Stripe answers instead; ``begun``: kept under the idempotency key."""

    def __init__(self, status: int, error: dict[str, Any], *, begun: bool = True) -> None:
        super().__init__(status, error)
        self.answer: Answered = status, {"error": error}
        self.begun = begun


@dataclass
class Wire:
    """An application of ASGI in front of endpoints by method and path."""

    secret_key: str
    endpoints: dict[tuple[str, str], Endpoint] = field(default_factory=dict)
    kept: dict[str, tuple[Any, Answered]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    """By number of the call, from 1."""
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message.get("body", b"")
        body += message.get("body", b"")
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.calls.append((scope["method"], scope["path"]))
        fault = self.faults.get(len(self.calls))
        status, answer = self.answer(scope, headers, body, fault)
        if fault == "silence_after":
            await self.silent.wait()
        text = b"<html>" if fault == "garbage_after" else json.dumps(answer).encode()
        headed = [(b"request-id", b"req_1"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headed})
        if fault in {"reset_before", "reset_after"}:
            return  # uvicorn closes the connection within the answer
        await send({"type": "http.response.body", "body": text})

    def answer(self, scope: Any, headers: dict[str, str], body: bytes, fault: Fault | None) -> Answered:
        if headers.get("authorization") != f"Bearer {self.secret_key}":
            return 401, {"error": {"type": "invalid_request_error", "message": "Invalid API Key: sk_…"}}
        if fault in {"429", "reset_before"}:
            return LIMITED
        if scope["method"] == "GET":
            failing = fault in {"500_before", "500_after"}
            return FAILED if failing else self.run(scope, unfolded(scope["query_string"].decode()))[0]
        is_json = headers.get("content-type") == "application/json"
        said = json.loads(body or b"{}") if is_json else unfolded(body.decode())
        return self.once(headers["idempotency-key"], scope, said, fault)

    def once(self, key: str, scope: Any, said: dict[str, Any], fault: Fault | None) -> Answered:
        """A write, once for its key."""
        self.keys.append(key)
        asked = scope["path"], said
        if key in self.kept:
            before, answer = self.kept[key]
            error = {"type": "idempotency_error", "message": f"Keys are for one call: {key}"}
            return answer if before == asked else (400, {"error": error})
        answer, begun = (FAILED, True) if fault == "500_before" else self.run(scope, said)
        if fault == "500_after":
            answer = FAILED
        if begun:
            self.kept[key] = asked, answer
        return answer

    def run(self, scope: Any, said: dict[str, Any]) -> tuple[Answered, bool]:
        for (method, pattern), endpoint in self.endpoints.items():
            found = re.fullmatch(pattern.replace("{id}", "([^/]+)"), scope["path"])
            if found and method == scope["method"]:
                try:
                    return (200, endpoint(*found.groups(), **said)), True
                except Refused as refused:
                    return refused.answer, refused.begun
        message = f"Unrecognized request URL ({scope['method']}: {scope['path']})."
        return (404, {"error": {"type": "invalid_request_error", "message": message}}), False

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve on a loopback port; its address."""
        config = uvicorn.Config(
            self, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        try:
            async with asyncio.timeout(10):
                while not server.started:
                    await asyncio.sleep(0.005)
            self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            yield self.url
        finally:
            self.silent.set()
            server.should_exit = True
            await serving


def unfolded(form: str) -> dict[str, Any]:
    """``a[b][c]=d`` as nested dictionaries."""
    found: dict[str, Any] = {}
    for name, value in parse_qsl(form, keep_blank_values=True):
        first, *rest = re.findall(r"[^\[\]]+", name)
        place = found
        for part in (first, *rest)[:-1]:
            place = place.setdefault(part, {})
        place[(first, *rest)[-1]] = value
    return found
