"""HTTP to one worker over its Unix socket."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.http_exceptions import LineTooLong

from engine.cluster import answer
from engine.cluster.answer import AnswerGarbled, WorkerDown
from engine.cluster.options import Deadlines, WorkerAddress
from engine.cluster.request import TokenChunk
from engine.errors import PromptRefused, WorkerAnswerInvalid
from engine.wire import (
    ABORT_PATH,
    ENGINE_ID_PREFIX,
    GENERATE_PATH,
    HEALTH_PATH,
    REPORT_PATH,
    WireInvalid,
    WorkerReport,
)

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

_BROKEN = (aiohttp.ClientError, OSError, TimeoutError)

# Headers that prove a call to be the deployment's, from its method, path with query, and body.
Sign = Callable[[str, str, bytes], Mapping[str, str]]


def _unsigned(_method: str, _path: str, _body: bytes) -> Mapping[str, str]:
    return {}


class WorkerClient:
    """One worker's endpoint. Every call opens its own connection: closing it is how a request is given up.

    A kept connection that the worker closes at the same moment would look like a death; a new one on a Unix
    socket costs less than deciding which it was.
    """

    def __init__(self, address: WorkerAddress, deadlines: Deadlines, sign: Sign = _unsigned) -> None:
        self.address = address
        self._deadlines = deadlines
        self._sign = sign
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Prepare the session; connects to nothing yet."""
        self._session = aiohttp.ClientSession(
            base_url="http://worker",
            connector=aiohttp.UnixConnector(path=str(self.address.socket), limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._deadlines.connect_s),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def healthy(self) -> bool:
        """Ask the worker whether its engine lives. A draining worker still says yes."""
        try:
            async with asyncio.timeout(self._deadlines.health_s), self._opened.get(HEALTH_PATH) as response:
                return response.status == HTTPStatus.OK
        except _BROKEN:
            return False

    async def report(self) -> WorkerReport | None:
        """Ask the worker what it says of itself; None when it does not say, as stock engines do not.

        Raises:
            WorkerDown: it does not answer, or refuses us: it would refuse every call of ours.
        """
        headers = self._sign("GET", REPORT_PATH, b"")
        try:
            async with (
                asyncio.timeout(self._deadlines.health_s),
                self._opened.get(REPORT_PATH, headers=headers) as response,
            ):
                if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                    raise WorkerDown(f"HTTP {response.status}: it does not take us for the deployment")
                if response.status != HTTPStatus.OK:
                    return None
                return WorkerReport.from_json(msgspec.json.decode(await response.read()))
        except (msgspec.DecodeError, RecursionError, WireInvalid):
            return None
        except _BROKEN as error:
            raise WorkerDown(_reason(error, "report")) from error

    async def prefill(self, body: dict[str, Any]) -> dict[str, Any]:
        """Run a request to its end and return the parameters that came back with it.

        Raises:
            WorkerDown: dead, draining, silent past the deadline, its engine failed, or not ours to blame.
            WorkerAnswerInvalid: garbage.
            PromptRefused: the worker refused the request.
        """
        try:
            async with (
                asyncio.timeout(self._deadlines.prefill_s),
                self._post(GENERATE_PATH, body) as response,
            ):
                text = await response.content.read(ANSWER_BYTES_MAX)
                while not response.content.at_eof() and len(text) < ANSWER_BYTES_MAX:
                    text += await response.content.read(ANSWER_BYTES_MAX - len(text))
                self._check(response.status, text)
            return answer.read_prefill(text)
        except AnswerGarbled as error:
            raise WorkerAnswerInvalid(self.address.name, str(error)) from error
        except _BROKEN as error:
            raise WorkerDown(_reason(error, "prefill")) from error

    async def decode(self, body: dict[str, Any]) -> AsyncGenerator[TokenChunk]:
        """Stream a request's chunks; the last one has `finish`.

        Raises as `prefill` does; WorkerDown also for a stream that ends before its finish.
        """
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._deadlines.first_token_s) as deadline:
                    response = await stack.enter_async_context(self._post(GENERATE_PATH, body))
                    if response.status != HTTPStatus.OK:
                        self._check(response.status, await response.content.read(ANSWER_BYTES_MAX))
                    chunk = await self._next(response)
                    deadline.reschedule(None)
                while True:
                    yield chunk
                    if chunk.finish is not None:
                        return
                    async with asyncio.timeout(self._deadlines.token_gap_s):
                        chunk = await self._next(response)
        except AnswerGarbled as error:
            raise WorkerAnswerInvalid(self.address.name, str(error)) from error
        except _BROKEN as error:
            raise WorkerDown(_reason(error, "decode")) from error

    async def abort(self, request_id: str) -> bool:
        """Tell the worker to stop a request; whether it said it would. Unknown ids are fine."""
        body = {"request_ids": [ENGINE_ID_PREFIX + request_id]}
        try:
            async with asyncio.timeout(self._deadlines.abort_s), self._post(ABORT_PATH, body) as response:
                return response.status == HTTPStatus.OK
        except _BROKEN:
            return False

    async def _next(self, response: aiohttp.ClientResponse) -> TokenChunk:
        try:
            while line := await response.content.readline():
                if (chunk := answer.read_line(line)) is not None:
                    return chunk
        except LineTooLong as error:
            raise AnswerGarbled(f"a line without end: {error}") from error
        raise WorkerDown("the stream ended before its finish")

    def _check(self, status: int, body: bytes) -> None:
        if status == HTTPStatus.OK:
            return
        message = answer.read_refusal(body)
        if status in answer.REFUSALS:
            raise PromptRefused(message)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            raise WorkerDown(f"HTTP {status}: {message}")
        raise WorkerAnswerInvalid(self.address.name, f"HTTP {status}: {message}")

    def _post(
        self, path: str, body: dict[str, Any]
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        content = msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", **self._sign("POST", path, content)}
        return self._opened.post(path, data=content, headers=headers)

    @property
    def _opened(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the engine is not open"
        return self._session


def _reason(error: Exception, stage: str) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in time ({stage})"
    return f"{type(error).__name__} ({stage}): {error}"
