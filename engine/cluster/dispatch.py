"""One request's way through the workers: its prompt, attested, then its output; one retry of each."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.cluster.accept import Acceptance
from engine.cluster.answer import WorkerBusy, WorkerDown
from engine.cluster.bodies import Bodies, Call
from engine.cluster.course import Course
from engine.cluster.options import EngineOptions
from engine.cluster.request import TokenChunk
from engine.cluster.router import Ask, Placement, Router, Worker
from engine.errors import EngineError, EngineFailed, EngineUnavailable, PromptRefused, WorkerAnswerInvalid

_log: Final = logging.getLogger(__name__)
ATTEMPTS_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed: another worker may do better."""

    worker: Worker
    error: WorkerDown | WorkerAnswerInvalid


class Dispatcher:
    """Runs requests on workers. Stateless but for the router's ledger.

    Raises:
        ProofInvalid: the deployment's key is no Ed25519 public key.
    """

    def __init__(self, router: Router, options: EngineOptions) -> None:
        self._router = router
        self._bodies = Bodies(options.salt_secret)
        self._acceptance = Acceptance(options.deployment)
        self._deadlines = options.deadlines
        self._first_token = options.first_token

    async def run(self, course: Course) -> None:
        """Bring a request to its finish.

        Its images are encoded first, where the cluster has workers for that. A stage whose call fails is
        tried once more, elsewhere. What the owner has of the output is never generated again: the next call
        goes on behind it, unless the tokens depend on more than those before.

        Raises:
            EngineUnavailable, WorkerAnswerInvalid, PromptRefused: before the first token, as the last of at
                most two workers failed.
            EngineFailed: after it, whatever went wrong.
        """
        if course.request.images:
            await self._encode(course)
        failures: list[Failure] = []
        while course.finish is None:
            kind = course.kind
            async with self._placed(course, failures) as placement:
                failure = await self._called(course, placement)
            if course.kind != kind:
                failures = []  # those of the prompt: its output has tries of its own
            if failure is not None:
                failures.append(failure)
                course.end_if_whole()
                if course.finish is None and _is_last(course, failures):
                    raise self._given_up(course, failures[-1])

    async def _encode(self, course: Course) -> None:
        """Have the images encoded; raises PromptRefused. Without it, whoever computes the prompt does it."""
        with self._router.encoding() as worker:
            if worker is None:
                return
            try:
                with course.encoding(worker.client) as name:
                    await worker.client.encode(self._bodies.to_encode(course.request, name))
            except WorkerDown as error:
                if not isinstance(error, WorkerBusy):
                    worker.lost()
            except WorkerAnswerInvalid as error:
                _log.warning("images were not encoded: %s", error)

    @contextlib.asynccontextmanager
    async def _placed(self, course: Course, failures: Sequence[Failure]) -> AsyncIterator[Placement]:
        """Find the next worker and count the call there; raises as `run` does when there is none."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                placement = await self._place(course, {failure.worker for failure in failures}, stack)
            except EngineUnavailable as error:
                if failures:
                    raise self._given_up(course, failures[-1]) from error
                if course.output:
                    raise EngineFailed("engine", error.reason) from error
                raise
            yield placement

    async def _place(self, course: Course, tried: set[Worker], stack: contextlib.AsyncExitStack) -> Placement:
        """Ask the router. An answer that has begun waits for a worker, also for one that comes back."""
        ask = Ask(
            course.kind,
            course.token_ids,
            self._bodies.salt(course.request),
            course.request.tenant,
            self._bodies.images(course.request),
        )
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + self._deadlines.token_gap_s
        while True:
            try:
                return await stack.enter_async_context(self._router.placed(ask, tried))
            except EngineUnavailable:
                if not course.output or now_s() >= until_s:
                    raise
            await asyncio.sleep(self._deadlines.health_interval_s)
            tried = set()

    async def _called(self, course: Course, placement: Placement) -> Failure | None:
        """Make one call; the failure that another worker may mend."""
        worker, stage = placement.worker, placement.stage
        first_token = (
            stage == "prefill" and self._first_token and not course.request.sampling.needs_decoder_state
        )
        try:
            with course.calling(worker.client, stage, first_token) as call:
                if stage == "prefill":
                    await self._prefill(course, call, worker)
                else:
                    await self._stream(course, call, placement)
        except (WorkerDown, WorkerAnswerInvalid) as error:
            # A dead worker gets nothing until it is seen alive. A busy one lives.
            if isinstance(error, WorkerDown) and not isinstance(error, WorkerBusy):
                worker.lost()
            return Failure(worker, error)
        except PromptRefused as error:
            if course.output:
                raise EngineFailed(worker.name, error.message) from error
            raise
        return None

    async def _prefill(self, course: Course, call: Call, worker: Worker) -> None:
        answer = await worker.client.prefill(self._bodies.of(call))
        course.accept(call, worker.name, self._acceptance.accept(worker.name, call, answer.attested))
        if call.first_token:
            ended = answer.finish == "stop" or course.output_left == 1
            chunk = TokenChunk((answer.token_id,), answer.finish if ended else None, answer.logprobs)
            course.give(call, worker.name, chunk)

    async def _stream(self, course: Course, call: Call, placement: Placement) -> None:
        worker, deadlines = placement.worker, self._deadlines
        first_s = deadlines.prefill_s if call.stage == "both" else deadlines.first_token_s
        async with contextlib.aclosing(worker.client.stream(self._bodies.of(call), first_s)) as chunks:
            async for chunk in chunks:
                if course.kind == "prompt":
                    attested = await worker.client.prefill_attested(call)
                    course.accept(call, worker.name, self._acceptance.accept(worker.name, call, attested))
                course.give(call, worker.name, chunk)
                placement.tokens = len(course.request.prompt_ids) + len(course.output)

    def _given_up(self, course: Course, failure: Failure) -> EngineError:
        """What the owner is told of the last failure."""
        name, error = failure.worker.name, failure.error
        reason = error.reason if isinstance(error, WorkerAnswerInvalid) else str(error)
        if course.output:
            return EngineFailed(name, reason)
        if isinstance(error, WorkerAnswerInvalid):
            return error
        return EngineUnavailable(f"{name}: {reason}", retry_after_s=self._deadlines.retry_after_s)


def _is_last(course: Course, failures: Sequence[Failure]) -> bool:
    stuck = bool(course.output) and course.request.sampling.needs_decoder_state
    return stuck or len(failures) == ATTEMPTS_MAX
