"""One request's way through the workers: prefill, its attestation, decode; one retry of each."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from engine.cluster.accept import Acceptance
from engine.cluster.answer import WorkerDown
from engine.cluster.bodies import Bodies
from engine.cluster.request import GenerateRequest, TokenChunk
from engine.cluster.router import Placement, Router, Worker
from engine.cluster.worker_client import WorkerClient
from engine.errors import EngineFailed, EngineUnavailable, WorkerAnswerInvalid
from engine.proof.attestation import PrefillAttestation
from engine.wire import Stage

ATTEMPTS_MAX: Final = 2


@dataclass(slots=True)
class Whereabouts:
    """What of a request runs now, so that a cancel knows whom to tell; None between two calls."""

    running: tuple[WorkerClient, str] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One stage of one request, sent to one worker."""

    worker: Worker
    stage: Stage
    request: GenerateRequest
    body: dict[str, Any]


class _Tries:
    """The workers that one stage of one request has tried, and why they failed."""

    def __init__(self, router: Router, stage: Stage, retry_after_s: int) -> None:
        self._router = router
        self._stage = stage
        self._retry_after_s = retry_after_s
        self._tried: list[Worker] = []
        self._failure: EngineUnavailable | WorkerAnswerInvalid | None = None

    @property
    def attempt(self) -> int:
        """Number of the present try, from 0."""
        return len(self._tried)

    def next_worker(self) -> Worker:
        """Choose a worker that has not failed yet; raises the last failure when none or no try is left."""
        worker = self._router.choose(self._stage, self._tried) if self.attempt < ATTEMPTS_MAX else None
        if worker is None:
            raise self._failure or self._unavailable(
                f"no worker that can {self._stage} is ready and has room"
            )
        return worker

    def failed(self, worker: Worker, error: WorkerDown | WorkerAnswerInvalid) -> None:
        """Note that a worker failed before the first token. A dead one gets nothing until seen alive."""
        self._tried.append(worker)
        if isinstance(error, WorkerDown):
            worker.ready = False
            self._failure = self._unavailable(f"{worker.name}: {error}")
        else:
            self._failure = error

    def _unavailable(self, reason: str) -> EngineUnavailable:
        return EngineUnavailable(reason, retry_after_s=self._retry_after_s)


class Dispatcher:
    """Runs the stages of requests on workers. Stateless but for the router's ledger."""

    def __init__(self, router: Router, bodies: Bodies, acceptance: Acceptance, retry_after_s: int) -> None:
        self._router = router
        self._bodies = bodies
        self._acceptance = acceptance
        self._retry_after_s = retry_after_s

    async def prefill(self, request: GenerateRequest, at: Whereabouts) -> tuple[PrefillAttestation, str]:
        """Have the prompt's blocks computed and published; return what the worker attests, verified.

        Raises:
            EngineUnavailable, WorkerAnswerInvalid: as the last of at most two workers failed.
            PromptRefused: no worker will take it.
        """
        tries = _Tries(self._router, "prefill", self._retry_after_s)
        while True:
            worker, attempt = tries.next_worker(), tries.attempt
            body = self._bodies.prefill(request, attempt)
            try:
                with self._at(Call(worker, "prefill", request, body), at):
                    returned = await worker.client.prefill(body)
                return self._acceptance.accept(worker.name, request, attempt, returned)
            except (WorkerDown, WorkerAnswerInvalid) as error:
                tries.failed(worker, error)

    async def decode(self, request: GenerateRequest, at: Whereabouts) -> AsyncGenerator[TokenChunk]:
        """Stream the answer. The first token is drawn here; the one that prefill drew is never seen.

        Raises:
            EngineUnavailable, WorkerAnswerInvalid, PromptRefused: before the first chunk, as `prefill` does.
            EngineFailed: after it, whatever went wrong.
        """
        tries = _Tries(self._router, "decode", self._retry_after_s)
        while True:
            worker = tries.next_worker()
            body = self._bodies.decode(request, tries.attempt)
            received = 0
            try:
                with self._at(Call(worker, "decode", request, body), at) as lease:
                    async with contextlib.aclosing(worker.client.decode(body)) as chunks:
                        async for chunk in chunks:
                            received = _count(worker, request, received, chunk)
                            lease.tokens = len(request.prompt_ids) + received
                            yield chunk
            except (WorkerDown, WorkerAnswerInvalid) as error:
                if received:
                    worker.ready = worker.ready and not isinstance(error, WorkerDown)
                    raise EngineFailed(worker.name, str(error)) from error
                tries.failed(worker, error)
            else:
                return

    @contextlib.contextmanager
    def _at(self, call: Call, at: Whereabouts) -> Iterator[Placement]:
        """Hold a lease and say where the request is; the place is kept when it is cancelled there."""
        with self._router.lease(call.worker, call.stage, len(call.request.prompt_ids)) as lease:
            at.running = (call.worker.client, call.body["request_id"])
            yield lease
            at.running = None


def _count(worker: Worker, request: GenerateRequest, received: int, chunk: TokenChunk) -> int:
    """Return the tokens received by now; refuses an end without a token, and more tokens than asked for."""
    received += len(chunk.token_ids)
    if received == 0:
        raise WorkerDown("the answer ended before its first token")
    if received > request.sampling.max_tokens:
        raise WorkerAnswerInvalid(
            worker.name, f"more than the {request.sampling.max_tokens} tokens asked for"
        )
    return received
