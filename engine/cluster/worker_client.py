"""HTTP to one worker over its Unix socket."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.http_exceptions import LineTooLong
from yarl import URL

from engine.cluster import answer
from engine.cluster.answer import AnswerGarbled, PrefillAnswer, Refused, WorkerBusy, WorkerDown
from engine.cluster.bodies import Call
from engine.cluster.options import Deadlines, WorkerAddress
from engine.cluster.request import TokenChunk
from engine.errors import ConstraintRefused, ImageRefused, PromptRefused, WorkerAnswerInvalid
from engine.mac import SKEW_S
from engine.wire import (
    ABORT_PATH,
    ACKNOWLEDGE_PATH,
    ATTESTATIONS_PATH,
    DRAIN_PATH,
    ENGINE_ID_PREFIX,
    GENERATE_PATH,
    HEALTH_PATH,
    IMAGE_REFUSED,
    JOURNAL_PATH,
    REPORT_PATH,
    AnswerParams,
    JournalLine,
    WireInvalid,
    WorkerReport,
)

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
# A prompt is attested before its first token leaves the worker, so this is patience with a slow disk.
ATTESTATION_WAIT_S: Final = 2.0

_BROKEN = (aiohttp.ClientError, OSError, TimeoutError)

# Headers that prove a call to be the deployment's, from its method, path with query, and body.
Sign = Callable[[str, str, bytes], Mapping[str, str]]


def _unsigned(_method: str, _path: str, _body: bytes) -> Mapping[str, str]:
    return {}


class WorkerClient:
    """One worker's endpoint. Every call opens its own connection: closing it is how a request is given up.

    A kept connection that the worker closes at the same moment would look like a death; a new one on a Unix
    socket costs less than deciding which it was. Every call but the health check is signed.
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
        with self._meaning("report"):
            async with (
                asyncio.timeout(self._deadlines.health_s),
                self._call("GET", URL(REPORT_PATH), None) as response,
            ):
                if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                    raise WorkerDown(f"HTTP {response.status}: it does not take us for the deployment")
                if response.status != HTTPStatus.OK:
                    return None
                text = await _whole(response)
        try:
            return WorkerReport.from_json(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError, WireInvalid):
            return None

    async def prefill(self, body: dict[str, Any]) -> PrefillAnswer:
        """Run a request of one token to its end.

        Raises:
            WorkerDown: dead, draining, silent past the deadline, its engine failed, or not ours to blame.
            WorkerAnswerInvalid: garbage, or the worker does not take our calls at all.
            PromptRefused, ConstraintRefused, ImageRefused: the worker refused the request, its constraint, or
                an image.
        """
        with self._meaning("prefill"):
            async with (
                asyncio.timeout(self._deadlines.prefill_s),
                self._call("POST", URL(GENERATE_PATH), body) as response,
            ):
                text = await _whole(response)
                self._check_generated(response.status, text, body)
            return answer.read_prefill(text, _top(body))

    async def encode(self, body: dict[str, Any]) -> None:
        """Have the images of a request encoded and left for others; raises as `prefill` does."""
        with self._meaning("encode"):
            async with (
                asyncio.timeout(self._deadlines.prefill_s),
                self._call("POST", URL(GENERATE_PATH), body) as response,
            ):
                self._check_generated(response.status, await _whole(response), body)

    async def stream(self, body: dict[str, Any], first_s: float) -> AsyncGenerator[TokenChunk]:
        """Stream a request's chunks, the first within ``first_s`` and never empty; the last has `finish`.

        Raises as `prefill` does; WorkerDown also for a stream that ends before its finish.
        """
        with self._meaning("stream", body):
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(first_s) as deadline:
                    response = await stack.enter_async_context(self._call("POST", URL(GENERATE_PATH), body))
                    if response.status != HTTPStatus.OK:
                        self._check_generated(response.status, await _whole(response), body)
                    chunk = await self._next(response, _top(body))
                    deadline.reschedule(None)
                if not chunk.token_ids:
                    raise WorkerDown("the answer ended before its first token")
                while True:
                    yield chunk
                    if chunk.finish is not None:
                        return
                    async with asyncio.timeout(self._deadlines.token_gap_s):
                        chunk = await self._next(response, _top(body))

    async def abort(self, request_id: str) -> bool:
        """Tell the worker to stop a request; whether it said it would. Unknown ids are fine."""
        body = {"request_ids": [ENGINE_ID_PREFIX + request_id]}
        try:
            await self._asked("POST", URL(ABORT_PATH), body, self._deadlines.abort_s)
        except (WorkerDown, WorkerAnswerInvalid):
            return False
        return True

    async def prefill_attested(self, call: Call) -> AnswerParams:
        """Fetch what the worker attests of a streamed call's prompt.

        Raises:
            WorkerDown: dead or silent.
            WorkerAnswerInvalid: garbage, or it attests nothing.
        """
        query = {
            "request_id": call.request.request_id,
            "attempt": str(call.attempt),
            "kind": "prefill",
            "wait_s": f"{ATTESTATION_WAIT_S:g}",
        }
        within_s = ATTESTATION_WAIT_S + self._deadlines.health_s
        with self._meaning("attestation"):
            return answer.read_attested(
                await self._asked("GET", URL(ATTESTATIONS_PATH).with_query(query), None, within_s)
            )

    async def journal(self, after: int, limit: int) -> list[JournalLine]:
        """Fetch lines of the worker's journal, the oldest first; raises as `prefill_attested` does."""
        url = URL(JOURNAL_PATH).with_query({"after": str(after), "limit": str(limit)})
        with self._meaning("journal"):
            return answer.read_lines(await self._asked("GET", url, None, self._deadlines.health_s), after)

    async def acknowledge(self, through: int) -> None:
        """Tell the worker that its journal is kept up to a line; raises as `prefill_attested` does."""
        await self._asked("POST", URL(ACKNOWLEDGE_PATH), {"through": through}, self._deadlines.health_s)

    async def drain(self, draining: bool) -> None:
        """Tell the worker to take no more requests, or to take them again; raises as `prefill_attested`."""
        await self._asked("POST", URL(DRAIN_PATH), {"draining": draining}, self._deadlines.abort_s)

    async def _asked(self, method: str, url: URL, body: dict[str, Any] | None, within_s: float) -> bytes:
        """Make a call that generates nothing, and return its answer."""
        with self._meaning(url.path):
            async with asyncio.timeout(within_s), self._call(method, url, body) as response:
                text = await _whole(response)
                self._check(response.status, text)
            return text

    async def _next(self, response: aiohttp.ClientResponse, top: int) -> TokenChunk:
        try:
            while line := await response.content.readline():
                if (chunk := answer.read_line(line, top)) is not None:
                    return chunk
        except LineTooLong as error:
            raise AnswerGarbled(f"a line without end: {error}") from error
        raise WorkerDown("the stream ended before its finish")

    def _check_generated(self, status: int, text: bytes, asked: dict[str, Any]) -> None:
        if status in answer.REFUSALS:
            raise _refusal(answer.read_refusal(text), asked)
        self._check(status, text)

    def _check(self, status: int, body: bytes) -> None:
        if status == HTTPStatus.OK:
            return
        message = f"HTTP {status}: {answer.read_refusal(body)}"
        if status == HTTPStatus.UNAUTHORIZED:
            message += (
                f" (the file that its spec names as call_secret_file must hold the secret this process was"
                f" given, and both clocks must agree to {SKEW_S} s)"
            )
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise WorkerBusy(message)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            raise WorkerDown(message)
        raise WorkerAnswerInvalid(self.address.name, message)

    @contextlib.contextmanager
    def _meaning(self, what: str, asked: dict[str, Any] | None = None) -> Iterator[None]:
        """Turn what breaks underneath into what it says about the worker, or of what it was asked."""
        try:
            yield
        except Refused as error:
            raise _refusal(str(error), asked or {}) from error
        except AnswerGarbled as error:
            raise WorkerAnswerInvalid(self.address.name, str(error)) from error
        except _BROKEN as error:
            raise WorkerDown(_reason(error, what)) from error

    def _call(
        self, method: str, url: URL, body: dict[str, Any] | None
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        content = b"" if body is None else msgspec.json.encode(body)
        headers = dict(self._sign(method, url.raw_path_qs, content))
        if body is not None:
            headers["Content-Type"] = "application/json"
        return self._opened.request(method, url, data=content or None, headers=headers)

    @property
    def _opened(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the engine is not open"
        return self._session


def _refusal(message: str, asked: dict[str, Any]) -> PromptRefused:
    if message.startswith(IMAGE_REFUSED):
        return ImageRefused(message)
    constrained = "structured_outputs" in asked.get("sampling_params", {})
    if constrained and answer.names_constraint(message):
        return ConstraintRefused(message)
    return PromptRefused(message)


def _top(body: dict[str, Any]) -> int:
    """How many of the likeliest tokens a request wants to know of: it asks for one more."""
    return max((body["sampling_params"].get("logprobs") or 0) - 1, 0)


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """Read an answer, at most `ANSWER_BYTES_MAX` of it."""
    text = bytearray()
    while len(text) < ANSWER_BYTES_MAX:
        part = await response.content.read(ANSWER_BYTES_MAX - len(text))
        if not part:
            break
        text += part
    return bytes(text)


def _reason(error: Exception, what: str) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in time ({what})"
    return f"{type(error).__name__} ({what}): {error}"
