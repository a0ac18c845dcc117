"""One request on its way: its calls so far, what its owner was given, and where it runs now."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, Literal

from engine.cluster.accept import Prefilled
from engine.cluster.bodies import Call
from engine.cluster.request import FinishReason, GenerateRequest, TokenChunk
from engine.cluster.worker_client import WorkerClient
from engine.errors import WorkerAnswerInvalid
from engine.proof.coverage import Attempt
from engine.wire import Stage


class Course:
    """What one request has come to. Dispatch writes it, the generation hands it to its owner.

    `prefilled` is set once, by the first call whose prompt was computed and attested; `chunks` gets each
    token of output once, whichever call it is of. `running` says whom a cancel must tell, None between two
    calls.
    """

    def __init__(self, request: GenerateRequest) -> None:
        self.request: Final = request
        self.prefilled: asyncio.Future[Prefilled] = asyncio.get_running_loop().create_future()
        self.chunks: asyncio.Queue[TokenChunk | Exception] = asyncio.Queue()
        self.running: tuple[WorkerClient, str] | None = None
        self.output: list[int] = []
        self.finish: FinishReason | None = None
        self._calls = 0
        self._accepted: list[tuple[Call, str]] = []

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and output so far: what the next call is sent."""
        return (*self.request.prompt_ids, *self.output)

    @property
    def output_left(self) -> int:
        """Tokens that may still be generated."""
        return self.request.sampling.max_tokens - len(self.output)

    @property
    def kind(self) -> Literal["prompt", "output"]:
        """What is missing now."""
        return "output" if self._accepted else "prompt"

    @property
    def called(self) -> bool:
        """Whether a worker has been called."""
        return self._calls > 0

    @contextlib.contextmanager
    def calling(self, client: WorkerClient, stage: Stage, first_token: bool) -> Iterator[Call]:
        """Number the next call, and say where it runs while the block lasts."""
        call = Call(self.request, self._calls, stage, tuple(self.output), first_token)
        self._calls += 1
        self.running = (client, call.worker_request_id)
        try:
            yield call
        finally:
            self.running = None

    @contextlib.contextmanager
    def encoding(self, client: WorkerClient) -> Iterator[str]:
        """Name the call that has the images encoded, and say where it runs while the block lasts.

        It is of no stage and has no number: nothing is attested of it.
        """
        name = f"{self.request.request_id}-encode"
        self.running = (client, name)
        try:
            yield name
        finally:
            self.running = None

    def accept(self, call: Call, worker: str, prefilled: Prefilled) -> None:
        """Take a computed prompt."""
        assert not self._accepted, "a prompt is accepted once"
        self._accepted.append((call, worker))
        self.prefilled.set_result(prefilled)

    def give(self, call: Call, worker: str, chunk: TokenChunk) -> None:
        """Take tokens; raises WorkerAnswerInvalid for more of them than were asked for."""
        assert self.finish is None
        if len(chunk.token_ids) > self.output_left:
            raise WorkerAnswerInvalid(
                worker, f"more than the {self.request.sampling.max_tokens} tokens asked for"
            )
        if self._accepted[-1][0] is not call:
            self._accepted.append((call, worker))
        self.output += chunk.token_ids
        self.finish = chunk.finish
        self.chunks.put_nowait(chunk)

    def attempts(self, taken: int) -> tuple[Attempt, ...]:
        """Return the accepted calls as far as they are of the first ``taken`` tokens of output."""
        ends = [*(len(call.carried) for call, _ in self._accepted[1:]), taken]
        return tuple(
            Attempt(call.attempt, call.stage, worker, len(call.carried), min(end, taken))
            for (call, worker), end in zip(self._accepted, ends, strict=False)
            if call.stage != "decode" or len(call.carried) < taken
        )

    def end_if_whole(self) -> None:
        """Say the finish that a worker died with, when all tokens before it have come."""
        if self.output and self.output[-1] in self.request.sampling.stop_token_ids:
            self.finish = "stop"
        elif self.output_left == 0:
            self.finish = "length"
        if self.finish is not None:
            self.chunks.put_nowait(TokenChunk((), self.finish))
