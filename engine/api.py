"""What others import of the engine: submit token ids, stream token chunks, cancel; errors as a tree."""

import asyncio

from engine.cluster.accept import Prefilled
from engine.cluster.answer import WorkerDown
from engine.cluster.counts import Counts
from engine.cluster.dispatch import Dispatcher
from engine.cluster.generation import Generation
from engine.cluster.journal import Attested, Drained, Journals
from engine.cluster.options import (
    Deadlines,
    EngineOptions,
    Role,
    ScriptRunner,
    WorkerAddress,
    WorkerSnapshot,
)
from engine.cluster.request import (
    Constraint,
    ConstraintKind,
    FinishReason,
    GenerateRequest,
    ImageInput,
    Sampling,
    TokenChunk,
    TokenLogprobs,
)
from engine.cluster.router import Router, Worker
from engine.cluster.watch import Watch
from engine.cluster.worker_client import WorkerClient
from engine.errors import (
    ConstraintRefused,
    EngineError,
    EngineFailed,
    EngineUnavailable,
    GenerationCancelled,
    ImageRefused,
    PromptRefused,
    WorkerAnswerInvalid,
)
from engine.wire import IMAGES_BYTES_MAX, LOGPROBS_MAX, WorkerReport

__all__ = [
    "IMAGES_BYTES_MAX",
    "LOGPROBS_MAX",
    "Attested",
    "Constraint",
    "ConstraintKind",
    "ConstraintRefused",
    "Counts",
    "Deadlines",
    "Drained",
    "Engine",
    "EngineError",
    "EngineFailed",
    "EngineOptions",
    "EngineUnavailable",
    "FinishReason",
    "GenerateRequest",
    "Generation",
    "GenerationCancelled",
    "ImageInput",
    "ImageRefused",
    "Journals",
    "Prefilled",
    "PromptRefused",
    "Role",
    "Sampling",
    "ScriptRunner",
    "TokenChunk",
    "TokenLogprobs",
    "WorkerAddress",
    "WorkerAnswerInvalid",
    "WorkerReport",
    "WorkerSnapshot",
]


class Engine:
    """The cluster as one process sees it. Open, use and close it in one event loop.

    Raises:
        ValueError: two workers of one name, no worker, or a short salt secret.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._workers = tuple(
            Worker(WorkerClient(address, options.deadlines, options.call_headers))
            for address in options.workers
        )
        self._router = Router(self._workers, options)
        self._watch = Watch(self._workers, options.deadlines)
        self._dispatcher = Dispatcher(self._router, options)
        self._retry_after_s = options.deadlines.retry_after_s
        self._generations: set[Generation] = set()

    async def open(self) -> None:
        """Connect, look after every worker once and go on watching; does not wait for them (see `ready`)."""
        for worker in self._workers:
            await worker.client.open()
        await self._watch.open()
        await self._router.open()

    async def close(self) -> None:
        """Cancel what still runs and disconnect. Whoever wants a generation to end waits for it first."""
        await self._watch.close()
        await asyncio.gather(*(generation.cancel() for generation in self._generations))
        await self._router.close()
        for worker in self._workers:
            await worker.client.close()

    @property
    def ready(self) -> bool:
        """Whether at least one worker that prefills and one that decodes answer their health checks."""
        return self._router.ready

    @property
    def counts(self) -> Counts:
        """What its router did since the process began; the numbers only rise."""
        return self._router.counts

    def submit(self, request: GenerateRequest) -> Generation:
        """Begin a request; failures come out of the generation, never out of this call."""
        generation = Generation(request, self._dispatcher)
        self._generations.add(generation)
        generation.task.add_done_callback(lambda _: self._generations.discard(generation))
        return generation

    def snapshot(self) -> tuple[WorkerSnapshot, ...]:
        """Return every worker's state, in the order of the options."""
        return tuple(worker.snapshot() for worker in self._workers)

    async def report(self, name: str) -> WorkerReport | None:
        """What a worker says of itself now; None when it says nothing. Raises KeyError for no worker."""
        try:
            return await self._named(name).client.report()
        except WorkerDown:
            return None

    async def drain(self, name: str, draining: bool = True) -> None:
        """Tell a worker to take no more requests and end those it has, or to take them again.

        Other gateways learn it from the worker's report. It says that it is healthy all the while.

        Raises:
            KeyError: no worker has the name.
            EngineUnavailable, WorkerAnswerInvalid: it could not be told, or does not listen to us.
        """
        worker = self._named(name)
        try:
            await worker.client.drain(draining)
        except WorkerDown as error:
            raise EngineUnavailable(f"{name}: {error}", retry_after_s=self._retry_after_s) from error
        await self._watch.check(worker)

    def _named(self, name: str) -> Worker:
        return {worker.name: worker for worker in self._workers}[name]
