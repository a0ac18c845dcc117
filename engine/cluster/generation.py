"""One submitted request as its owner holds it: an attestation to await, chunks to iterate, a way to stop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from engine.cluster.dispatch import Dispatcher, Whereabouts
from engine.cluster.request import GenerateRequest, TokenChunk
from engine.errors import GenerationCancelled
from engine.proof.attestation import PrefillAttestation

Prefilled = tuple[PrefillAttestation, str]


class Generation:
    """One submitted request, run by a task of its own whether or not anybody looks.

    Chunks wait for their reader without bound; there are at most `max_tokens` of them.
    """

    def __init__(self, request: GenerateRequest, dispatcher: Dispatcher) -> None:
        self.request = request
        self._at = Whereabouts()
        self._chunks: asyncio.Queue[TokenChunk | Exception] = asyncio.Queue()
        self._prefilled: asyncio.Future[Prefilled] = asyncio.get_running_loop().create_future()
        self._prefilled.add_done_callback(lambda future: future.exception())  # an owner may never ask
        self._cancelling: asyncio.Task[None] | None = None
        self.task = asyncio.create_task(self._run(dispatcher), name=f"generation {request.request_id}")

    async def prefilled(self) -> Prefilled:
        """Wait for prefill's attestation, verified, and its signed text. May be awaited often, by several.

        Raises:
            EngineUnavailable, WorkerAnswerInvalid, PromptRefused: the prefill failed.
            GenerationCancelled: `cancel` came first.
        """
        return await asyncio.shield(self._prefilled)

    async def __aiter__(self) -> AsyncGenerator[TokenChunk]:
        """Yield chunks until one has `finish`. Iterate once.

        After `cancel` it ends at once, without `finish`; chunks nobody had taken are dropped.

        Raises:
            EngineUnavailable, WorkerAnswerInvalid, PromptRefused: before the first chunk, also from prefill.
            EngineFailed: after it.
        """
        while self._cancelling is None:
            match await self._chunks.get():
                case TokenChunk() as chunk if self._cancelling is None:
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
        self.task.cancel()  # closes the connection, which a worker takes for an abort when it notices
        await asyncio.wait({self.task})
        if not self._prefilled.done():
            self._prefilled.set_exception(GenerationCancelled(self.request.request_id))
        self._chunks.put_nowait(GenerationCancelled(self.request.request_id))  # wakes the reader
        if self._at.running is not None:
            client, worker_request_id = self._at.running
            await client.abort(worker_request_id)

    async def _run(self, dispatcher: Dispatcher) -> None:
        try:
            self._prefilled.set_result(await dispatcher.prefill(self.request, self._at))
            async with contextlib.aclosing(dispatcher.decode(self.request, self._at)) as chunks:
                async for chunk in chunks:
                    self._chunks.put_nowait(chunk)
        except Exception as error:  # whatever it is belongs to the owner, not to the loop's log
            if not self._prefilled.done():
                self._prefilled.set_exception(error)
            self._chunks.put_nowait(error)
