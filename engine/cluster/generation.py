"""One submitted request as its owner holds it: an attestation to await, chunks to iterate, a way to stop."""

import asyncio
from collections.abc import AsyncGenerator

from engine.cluster.accept import Prefilled
from engine.cluster.course import Course
from engine.cluster.dispatch import Dispatcher
from engine.cluster.request import GenerateRequest, TokenChunk
from engine.errors import GenerationCancelled
from engine.proof.coverage import Attempt


class Generation:
    """One submitted request, run by a task of its own whether or not anybody looks.

    Chunks wait for their reader without bound; there are at most `max_tokens` of them.
    """

    def __init__(self, request: GenerateRequest, dispatcher: Dispatcher) -> None:
        self.request = request
        self._course = Course(request)
        self._course.prefilled.add_done_callback(lambda future: future.exception())  # an owner may never ask
        self._taken = 0
        self._cancelling: asyncio.Task[None] | None = None
        self.task = asyncio.create_task(self._run(dispatcher), name=f"generation {request.request_id}")

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The accepted calls, with the ranges of output that the owner has taken; no gap and no overlap."""
        return self._course.attempts(self._taken)

    @property
    def called(self) -> bool:
        """Whether a worker was called: it may attest what the owner has never heard of."""
        return self._course.called

    async def prefilled(self) -> Prefilled:
        """Wait for what the prefill attests, verified, and its signed text. May be awaited often, by several.

        Raises:
            EngineUnavailable, WorkerAnswerInvalid, PromptRefused: the prefill failed.
            GenerationCancelled: `cancel` came first.
        """
        return await asyncio.shield(self._course.prefilled)

    async def __aiter__(self) -> AsyncGenerator[TokenChunk]:
        """Yield chunks until one has `finish`. Iterate once.

        After `cancel` it ends at once, without `finish`; chunks nobody had taken are dropped.

        Raises:
            EngineUnavailable, WorkerAnswerInvalid, PromptRefused: before the first chunk, also from prefill.
            EngineFailed: after it.
        """
        while self._cancelling is None:
            match await self._course.chunks.get():
                case TokenChunk() as chunk if self._cancelling is None:
                    self._taken += len(chunk.token_ids)
                    yield chunk
                    if chunk.finish is not None:
                        return
                case Exception() as error if self._cancelling is None:
                    raise error

    async def cancel(self) -> None:
        """Stop what runs of this request, wherever it is. Returns when the worker has been told.

        Idempotent and safe at every stage, also after the end and when called by several. Should its caller
        be cancelled, the worker is told all the same.
        """
        if self._cancelling is None:
            if self.task.done():
                return
            self._cancelling = asyncio.create_task(self._cancel(), name=f"cancel {self.request.request_id}")
        await asyncio.shield(self._cancelling)

    async def _cancel(self) -> None:
        """Tell the worker at once: ending the task may take longer than a worker should go on."""
        course = self._course
        running = course.running
        self.task.cancel()  # closes the connection, which a worker takes for an abort when it notices
        cancelled = GenerationCancelled(self.request.request_id)
        if not course.prefilled.done():
            course.prefilled.set_exception(cancelled)
        course.chunks.put_nowait(cancelled)  # wakes the reader
        if running is not None:
            client, worker_request_id = running
            await client.abort(worker_request_id)
        await asyncio.wait({self.task})

    async def _run(self, dispatcher: Dispatcher) -> None:
        try:
            await dispatcher.run(self._course)
        except Exception as error:  # whatever it is belongs to the owner, not to the loop's log
            if not self._course.prefilled.done():
                self._course.prefilled.set_exception(error)
            self._course.chunks.put_nowait(error)
