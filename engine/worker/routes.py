"""What a worker answers beside vLLM: its journal, its report, and draining. Who may call it at all.

A pure ASGI middleware, outermost in vLLM's API server. vLLM makes it from an import path and passes nothing
but the application, so `engine.worker.launch` puts the worker's desk on the class before the server starts.
"""

import asyncio
import dataclasses
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, cast
from urllib.parse import parse_qs

from engine import mac, wire
from engine.shapes.shape import SpecInvalid, WorkerSpec
from engine.worker import clock, images, report
from engine.worker.journal import JournalReader

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX: Final = 64 * 1024**2
LINES_MAX: Final = 1000
WAIT_S_MAX: Final = 5.0
_POLL_S: Final = 0.05
_RETRY_AFTER_S: Final = 5
_LAST_WORDS_S: Final = 1.0
_OPEN_PATHS: Final = (wire.HEALTH_PATH, "/metrics")


class Refused(Exception):
    """A call that is answered with an error, in the shape that vLLM gives its own."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status

    def body(self) -> dict[str, Any]:
        """The answer's body."""
        kind = self.status.phrase.title().replace(" ", "") + "Error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.status.value}}


class Desk:
    """What the API server's process knows of its worker.

    Args:
        folder: the journal's folder.
        secret: what callers must know; None: nobody is asked.
    """

    def __init__(self, folder: Path, secret: bytes | None = None) -> None:
        self.folder = folder
        self.secret = secret
        self.journal = JournalReader(folder)
        self.draining = False
        self.sees = False
        self.stopped = asyncio.Event()

    def attend(self, state: Any) -> None:
        """Learn what vLLM's application serves, from its ``state``; in the server's event loop.

        When its engine (an `EngineClient`) is stopped the worker drains. vLLM would go on taking calls, and
        those that its engine core did not take in before it ended would wait until their callers lose
        patience.
        """
        self.sees = images.serve(state)
        engine, loop = state.engine_client, asyncio.get_running_loop()
        stop = engine.shutdown

        def stopping(*words: Any, **named: Any) -> None:
            self.draining = True
            try:
                stop(*words, **named)
            finally:
                loop.call_soon_threadsafe(self.stopped.set)

        engine.shutdown = stopping

    @classmethod
    def of(cls, spec: WorkerSpec) -> Self:
        """A worker's desk before its engine starts; raises SpecInvalid for a secret that is none."""
        report.clear(spec.journal_dir)
        return cls(
            spec.journal_dir, None if spec.call_secret_file is None else _secret(spec.call_secret_file)
        )

    def report(self) -> wire.WorkerReport:
        """What the worker says of itself now."""
        return dataclasses.replace(report.read(self.folder).report, draining=self.draining)


class WorkerRoutes:
    """The middleware. ``desk`` is the process's own worker."""

    desk: ClassVar[Desk]

    def __init__(self, app: App) -> None:
        self._app = app
        self._answers: dict[str, tuple[str, Callable[[_Call], Awaitable[Any]]]] = {
            wire.JOURNAL_PATH: ("GET", self._lines),
            wire.ACKNOWLEDGE_PATH: ("POST", self._acknowledge),
            wire.ATTESTATIONS_PATH: ("GET", self._attestation),
            wire.REPORT_PATH: ("GET", self._report),
            wire.DRAIN_PATH: ("POST", self._drain),
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            self.desk.attend(scope["app"].state)
        if scope["type"] == "websocket" and self.desk.secret is not None:
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Message, receive: Receive, send: Send) -> None:
        method, answer = self._answers.get(scope["path"], (None, None))
        generates = scope["path"] == wire.GENERATE_PATH
        if self.desk.secret is None and answer is None and not generates:
            await self._answered(self._app(scope, receive, send))
            return
        try:
            body = await _body(scope, receive)
            if body is None:
                return  # the caller has gone
            call = _Call(scope, body)
            self._check(call, method)
            if answer is not None:
                await _respond(send, HTTPStatus.OK, await answer(call))
                return
            if generates:
                body = self._without_images(body)
        except Refused as refused:
            await _respond(send, refused.status, refused.body())
            return
        await self._answered(self._app(scope, _replayed(body, receive), send))

    async def _answered(self, answering: Awaitable[None]) -> None:
        """See vLLM's answer through, and break it off when its engine has stopped without an end to it."""
        answer, stopped = asyncio.ensure_future(answering), asyncio.ensure_future(self.desk.stopped.wait())
        try:
            await asyncio.wait((answer, stopped), return_when=asyncio.FIRST_COMPLETED)
            ended, _ = await asyncio.wait((answer,), timeout=_LAST_WORDS_S)
            if ended:
                await answer
        finally:
            answer.cancel()
            stopped.cancel()

    def _without_images(self, body: bytes) -> bytes:
        """A call as vLLM knows it; the images wait for it in this task's context."""
        try:
            return images.take(body, self.desk.sees)
        except images.ImagesRefused as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error

    def _check(self, call: "_Call", method: str | None) -> None:
        secret = self.desk.secret
        if secret is not None and not mac.holds(
            secret, call.header(mac.MAC_HEADER), call.method, call.path, call.body, clock.now_s()
        ):
            raise Refused(
                HTTPStatus.UNAUTHORIZED, f"{mac.MAC_HEADER} is missing, too old, or of another call"
            )
        if self.desk.draining and call.route == wire.GENERATE_PATH:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "this worker is draining")
        if method not in (None, call.method):
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"only {method} is allowed")

    async def _lines(self, call: "_Call") -> dict[str, Any]:
        after, limit = call.count("after", 0), call.count("limit", LINES_MAX)
        lines = await asyncio.to_thread(self.desk.journal.lines, after, min(limit, LINES_MAX))
        return {"lines": [line.to_json() for line in lines]}

    async def _acknowledge(self, call: "_Call") -> dict[str, Any]:
        match call.json():
            case {"through": int(through)} if through >= 0:
                try:
                    self.desk.journal.acknowledge(through)
                except OSError as error:
                    raise Refused(HTTPStatus.INSUFFICIENT_STORAGE, f"not kept: {error}") from error
                return {"acknowledged": self.desk.journal.acknowledged}
        raise Refused(HTTPStatus.BAD_REQUEST, "through is no sequence")

    async def _attestation(self, call: "_Call") -> dict[str, Any]:
        request_id, attempt, kind = call.text("request_id"), call.count("attempt"), call.text("kind")
        if kind not in ("prefill", "decode"):
            raise Refused(HTTPStatus.BAD_REQUEST, "kind is neither prefill nor decode")
        until_s = clock.monotonic_s() + min(call.seconds("wait_s", 0.0), WAIT_S_MAX)
        while True:
            line = self.desk.journal.find(request_id, attempt, cast('Literal["prefill", "decode"]', kind))
            if line is not None:
                return line.to_json()
            if clock.monotonic_s() >= until_s:
                raise Refused(HTTPStatus.NOT_FOUND, "nothing is attested of this call")
            await asyncio.sleep(_POLL_S)

    async def _report(self, _: "_Call") -> dict[str, Any]:
        return self.desk.report().to_json()

    async def _drain(self, call: "_Call") -> dict[str, Any]:
        match call.json():
            case {"draining": bool(draining)}:
                self.desk.draining = draining
                return {"draining": draining}
        raise Refused(HTTPStatus.BAD_REQUEST, "draining is neither true nor false")


class _Call:
    """One call, read; its fields raise Refused when they are not what they should be."""

    def __init__(self, scope: Message, body: bytes) -> None:
        query = scope["query_string"].decode("latin-1")
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        self.route = str(scope["path"])
        self.method = str(scope["method"])
        self.path = f"{path}?{query}" if query else path
        self.body = body
        self._headers = scope["headers"]
        self._fields = parse_qs(query, keep_blank_values=True)

    def header(self, name: str) -> str:
        """A header; empty when it is missing."""
        return _header(self._headers, name).decode("latin-1")

    def text(self, name: str, otherwise: str | None = None) -> str:
        """A field of the query."""
        texts = self._fields.get(name, [])
        if not texts and otherwise is None:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is missing")
        return texts[-1] if texts else str(otherwise)

    def count(self, name: str, otherwise: int | None = None) -> int:
        """A field of the query that counts something."""
        text = self.text(name, None if otherwise is None else str(otherwise))
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is no count")
        return int(text)

    def seconds(self, name: str, otherwise: float) -> float:
        """A field of the query that is a time."""
        try:
            seconds = float(self.text(name, str(otherwise)))
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is no time in seconds")
        return seconds

    def json(self) -> object:
        """The body."""
        try:
            return cast("object", json.loads(self.body))
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is no JSON") from error


def _secret(path: Path) -> bytes:
    try:
        secret = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise SpecInvalid(f"call_secret_file: {error}") from error
    if len(secret) < mac.SECRET_BYTES_MIN:
        raise SpecInvalid(f"call_secret_file holds {len(secret)} bytes, fewer than {mac.SECRET_BYTES_MIN}")
    return secret


def _header(headers: list[tuple[bytes, bytes]], name: str) -> bytes:
    return next((value for key, value in headers if key == name.encode()), b"")


async def _body(scope: Message, receive: Receive) -> bytes | None:
    """All of a body, None when its sender has gone; raises Refused for one that is too large."""
    too_large = Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {BODY_BYTES_MAX} bytes")
    announced = _header(scope["headers"], "content-length")
    if announced.isdigit() and int(announced) > BODY_BYTES_MAX:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What is received, once more from the body on."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


async def _respond(send: Send, status: HTTPStatus, body: Mapping[str, Any]) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", str(_RETRY_AFTER_S).encode()))
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": content})
