"""A worker's double at the process border: an HTTP server on a Unix socket that answers what it is told."""

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine import mac
from engine.api import Deadlines, Engine, EngineOptions, GenerateRequest, Role, Sampling, WorkerAddress
from engine.proof.attestation import Attestation, DecodeAttestation, Ended, PrefillAttestation, commitment
from engine.proof.certificate import DeploymentKey
from engine.proof.ring import DeploymentRing
from engine.wire import (
    ABORT_PATH,
    ACKNOWLEDGE_PATH,
    ATTESTATIONS_PATH,
    DRAIN_PATH,
    GENERATE_PATH,
    HEALTH_PATH,
    IMAGES,
    JOURNAL_PATH,
    REPORT_PATH,
    AnswerParams,
    JournalLine,
    RequestParams,
    WorkerReport,
)

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

DEADLINES = Deadlines(
    connect_s=2,
    prefill_s=2,
    first_token_s=2,
    token_gap_s=2,
    abort_s=2,
    health_interval_s=0.02,
    health_s=2,
    retry_after_s=7,
)


NOW_S = 1_790_000_000


class WorkerDouble:
    """Attests 64 hit tokens and answers tokens 11, 12, 13, unless a test replaces what it does.

    Output is the same along every path: what it draws hangs on how much was carried, as a greedy model's
    would. A prefill whose token is not the client's draws 99.
    """

    def __init__(self, name: str, role: Role, socket: Path, deployment: DeploymentKey) -> None:
        self.address = WorkerAddress(name, role, socket)
        self.deployment = deployment
        self.key = Ed25519PrivateKey.generate()
        self.certificate = deployment.certify(name, self.key.public_key(), 1_790_000_000)
        self.on_prefill: Handler = self.attested
        self.on_decode: Handler = self.answered
        self.healthy = True
        self.stalled = False
        self.report: WorkerReport | None = None  # None: as an engine without our routes
        self.report_status = 200
        self.on_report: Callable[[web.Request], None] = lambda _: None
        self.tokens: Sequence[int] = (11, 12, 13)
        self.chunk_tokens = 2
        self.secret: bytes | None = None
        self.draining: list[bool] = []
        self.lines: list[JournalLine] = []
        self.acknowledged: list[int] = []
        self.on_journal: Callable[[web.Request], Awaitable[web.StreamResponse]] = self.journalled
        self.attests_streams = True
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.told = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get(HEALTH_PATH, self._health)
        app.router.add_get(REPORT_PATH, self._report)
        app.router.add_post(GENERATE_PATH, self._generate)
        app.router.add_post(ABORT_PATH, self._abort)
        app.router.add_get(JOURNAL_PATH, self._journal)
        app.router.add_post(ACKNOWLEDGE_PATH, self._acknowledge)
        app.router.add_get(ATTESTATIONS_PATH, self._find)
        app.router.add_post(DRAIN_PATH, self._drain)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.address.socket)).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self.address.socket.unlink(missing_ok=True)
            self._runner = None

    def attestation(self, body: dict[str, Any], **changes: Any) -> PrefillAttestation:
        asked = RequestParams.from_params(body["kv_transfer_params"])
        prompt = body["token_ids"][: len(body["token_ids"]) - asked.output_from]
        hit = min(64, (len(prompt) - 1) // 64 * 64)
        images = [
            (image["offset"], hashlib.sha256(base64.b64decode(image["data"])).hexdigest())
            for image in body.get(IMAGES, ())
        ]
        fields: dict[str, Any] = {
            "request_id": asked.request_id,
            "attempt": asked.attempt,
            "stage": asked.stage,
            "worker": self.address.name,
            "namespace": "ns",
            "prompt_tokens": len(prompt),
            "hit_tokens": hit,
            "owed_tokens": 0,
            "hit_device_tokens": 0,
            "hit_store_tokens": hit,
            "block_tokens": 64,
            "retention_class": asked.retention_class,
            "promised_until": None,
            "prompt_commitment": commitment(asked.nonce, prompt, images),
            "cached_prefix_commitment": commitment(asked.nonce, prompt[:hit], images),
            "memo": asked.memo,
            "attested_at_ns": 1,
            "output_to": int(asked.first_token),
        }
        return PrefillAttestation(**{**fields, **changes})

    def decode_attestation(self, body: dict[str, Any], generated: int, ended: Ended) -> DecodeAttestation:
        asked = RequestParams.from_params(body["kv_transfer_params"])
        assert asked.stage != "prefill"
        return DecodeAttestation(
            request_id=asked.request_id,
            attempt=asked.attempt,
            stage=asked.stage,
            worker=self.address.name,
            namespace="ns",
            prompt_tokens=len(body["token_ids"]) - asked.output_from,
            handoff_tokens=0,
            output_from=asked.output_from,
            output_to=asked.output_from + generated,
            ended=ended,
            memo=asked.memo,
            attested_at_ns=2,
        )

    def keep(self, attestation: Attestation) -> str:
        """Journal an attestation; its signed text."""
        text = attestation.sign(self.key)
        self.lines.append(JournalLine(len(self.lines) + 1, text, self.certificate))
        return text

    def prefill_answer(self, text: str | None, token_id: int = 99, finish: str = "length") -> dict[str, Any]:
        params = AnswerParams(text, self.certificate).to_params() if text is not None else None
        choice = {"index": 0, "token_ids": [token_id], "finish_reason": finish}
        return {"request_id": "generate-tokens-x", "choices": [choice], "kv_transfer_params": params}

    async def attested(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text = self.keep(self.attestation(body))
        token_id = self.tokens[0] if body["kv_transfer_params"]["first_token"] else 99
        finish = "stop" if token_id in body["sampling_params"].get("stop_token_ids", ()) else "length"
        return web.json_response(self.prefill_answer(text, token_id, finish))

    def drawn(self, body: dict[str, Any]) -> tuple[list[int], Ended]:
        """What a stream generates, and how it ends."""
        carried = body["kv_transfer_params"]["output_from"]
        token_ids = list(self.tokens[carried : carried + body["sampling_params"]["max_tokens"]])
        for count, token_id in enumerate(token_ids, 1):
            if token_id in body["sampling_params"]["stop_token_ids"]:
                return token_ids[:count], "stop"
        return token_ids, "stop" if len(token_ids) < body["sampling_params"]["max_tokens"] else "length"

    async def answered(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Stream all of it: a token by itself, then `chunk_tokens` at a time."""
        if body["kv_transfer_params"]["stage"] == "both" and self.attests_streams:
            self.keep(self.attestation(body))
        token_ids, ended = self.drawn(body)
        starts = [0, *range(1, len(token_ids), self.chunk_tokens)]
        parts = [token_ids[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
        lines = [self.chunk(part) for part in parts[:-1]] + [self.chunk(parts[-1], ended)]
        response = await self.stream(request, [*lines, b"data: [DONE]\n\n"])
        self.keep(self.decode_attestation(body, len(token_ids), ended))
        return response

    @staticmethod
    def chunk(token_ids: Sequence[int], finish: str | None = None) -> bytes:
        choice = {"index": 0, "logprobs": None, "finish_reason": finish, "token_ids": list(token_ids)}
        return (
            b"data: " + json.dumps({"request_id": "x", "choices": [choice], "usage": None}).encode() + b"\n\n"
        )

    @staticmethod
    def error(message: str, code: int = 500) -> bytes:
        body = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": code}}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    @staticmethod
    async def stream(request: web.Request, lines: Sequence[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        return response

    async def hang(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    def streaming_then(self, lines: Sequence[bytes], *, die: bool) -> Handler:
        """A handler that writes lines and then breaks the connection or falls silent."""

        async def handler(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = await self.stream(request, lines)
            if die:
                assert request.transport is not None
                request.transport.close()
                return response
            return await self.hang(request, body)

        return handler

    async def _health(self, request: web.Request) -> web.Response:
        if self.stalled:
            await asyncio.Event().wait()
        return web.Response(status=200 if self.healthy else 503)

    async def _report(self, request: web.Request) -> web.Response:
        self.on_report(request)
        if self.report is None or self.report_status != 200:
            return web.Response(status=404 if self.report is None else self.report_status)
        return web.json_response(self.report.to_json())

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.entered.set()
        try:
            return await (self.on_decode if body["stream"] else self.on_prefill)(request, body)
        finally:
            self.left.set()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse calls without the secret's word, as a worker does whose spec names a secret."""
        if self.secret is not None and request.path != HEALTH_PATH:
            header, body = request.headers.get(mac.MAC_HEADER, ""), await request.read()
            if not mac.holds(self.secret, header, request.method, request.path_qs, body, NOW_S):
                return web.Response(status=401, body=self.error("who are you", 401)[len(b"data: ") :])
        response: web.StreamResponse = await handler(request)
        return response

    async def _journal(self, request: web.Request) -> web.StreamResponse:
        return await self.on_journal(request)

    async def journalled(self, request: web.Request) -> web.StreamResponse:
        after, limit = int(request.query["after"]), int(request.query["limit"])
        after = max([after, *self.acknowledged])
        lines = [line.to_json() for line in self.lines if line.sequence > after][:limit]
        return web.json_response({"lines": lines})

    async def _acknowledge(self, request: web.Request) -> web.Response:
        self.acknowledged.append((await request.json())["through"])
        return web.Response()

    async def _find(self, request: web.Request) -> web.Response:
        assert float(request.query["wait_s"]) == 2
        for line in self.lines:
            payload = json.loads(line.attestation)["payload"]
            kind = payload["kind"].removeprefix("kvitto.").split("-")[0]
            if (payload["request_id"], str(payload["attempt"]), kind) == tuple(
                request.query[name] for name in ("request_id", "attempt", "kind")
            ):
                return web.json_response(line.to_json())
        return web.Response(status=404)

    async def _drain(self, request: web.Request) -> web.Response:
        self.draining.append((await request.json())["draining"])
        if self.report is not None:
            self.report = dataclasses.replace(self.report, draining=self.draining[-1])
        return web.Response()

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted += (await request.json())["request_ids"]
        self.told.set()
        return web.Response()


# Each role its own stage and every token from decode, unless a test says otherwise.
PLAIN: dict[str, Any] = {"elastic": False, "first_token": False}


class OpenEngine(Protocol):
    """Starts the doubles and an engine over them."""

    def __call__(
        self, *doubles: WorkerDouble, deadlines: Deadlines = ..., worker_requests_max: int = ..., **more: Any
    ) -> contextlib.AbstractAsyncContextManager[Engine]: ...


@pytest.fixture
def deployment() -> DeploymentKey:
    return DeploymentKey.generate()


@pytest.fixture
def make_worker(short_folder: Path, deployment: DeploymentKey) -> Callable[..., WorkerDouble]:
    return lambda name, role: WorkerDouble(name, role, short_folder / f"{name}.sock", deployment)


@pytest.fixture
def prefiller(make_worker: Callable[..., WorkerDouble]) -> WorkerDouble:
    return make_worker("p0", "prefill")


@pytest.fixture
def decoder(make_worker: Callable[..., WorkerDouble]) -> WorkerDouble:
    return make_worker("d0", "decode")


@pytest.fixture
def deadlines() -> Deadlines:
    return DEADLINES


@pytest.fixture
def open_engine(deployment: DeploymentKey) -> OpenEngine:
    @contextlib.asynccontextmanager
    async def opened(
        *doubles: WorkerDouble, deadlines: Deadlines = DEADLINES, worker_requests_max: int = 8, **more: Any
    ) -> AsyncIterator[Engine]:
        options = EngineOptions(
            **{**PLAIN, **more},
            workers=tuple(double.address for double in doubles),
            salt_secret=b"s" * 32,
            deployment=DeploymentRing.of(deployment.public),
            deadlines=deadlines,
            worker_requests_max=worker_requests_max,
        )
        for double in doubles:
            await double.start()
        engine = Engine(options)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()
            for double in doubles:
                await double.stop()

    return opened


@pytest.fixture
def journal_options(deployment: DeploymentKey) -> Callable[..., EngineOptions]:
    """Options over doubles that a test starts itself."""
    return lambda *doubles: EngineOptions(
        workers=tuple(double.address for double in doubles),
        salt_secret=b"s" * 32,
        deployment=DeploymentRing.of(deployment.public),
        deadlines=DEADLINES,
    )


@pytest.fixture
def generate_request() -> GenerateRequest:
    return GenerateRequest(
        request_id="0197f3f2-8c00-7000-8000-000000000001",
        tenant="ten_0123456789abcdef01234567",
        scope="",
        prompt_ids=tuple(range(1, 131)),
        sampling=Sampling(max_tokens=8, temperature=0.0, stop_token_ids=(2,)),
        retention_class="chat",
        nonce=b"n" * 32,
        memo='{"key":"key_1"}',
    )
