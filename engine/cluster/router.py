"""Where a request goes: prefill by queued tokens, decode by running requests and accumulated KV length.

The ledger is this process's own and counts what this process has sent. Several gateways over the same workers
need the shared leases in Valkey that come with issue 3, and so do measured step costs in place of token
counts.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from engine.cluster.options import EngineOptions, WorkerSnapshot
from engine.cluster.worker_client import WorkerClient
from engine.errors import EngineUnavailable
from engine.wire import Stage, WorkerReport

# A decode step costs about 18 ms + 0.47 ms a request + 3.2 us a token of context (measured on the CPU build,
# shared notes A.4): a running request weighs as much as this many tokens of context.
KV_TOKENS_PER_REQUEST: Final = 150


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be placed.

    Args:
        kind: a `prompt` to compute (and perhaps to go on from), or the `output` of one that is stored.
        token_ids: what the worker will be sent.
        salt: the `cache_salt` it will be sent.
        tenant: whose folder of the store the blocks lie in.
        output_max: tokens that may be generated.
    """

    kind: Literal["prompt", "output"]
    token_ids: tuple[int, ...]
    salt: str
    tenant: str
    output_max: int


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as this process sees it."""

    client: WorkerClient
    ready: bool = False
    leases: "list[Placement]" = field(default_factory=list)
    report: WorkerReport | None = None

    @property
    def name(self) -> str:
        """Return the name it is certified for."""
        return self.client.address.name

    def serves(self, stage: Stage) -> bool:
        """Whether its role covers the stage."""
        return self.client.address.role in {stage, "both"}

    def load(self, stage: Stage) -> int:
        """Return what a new request of this stage would wait behind, in tokens.

        A prefill counts its whole prompt, although stored blocks will cost it next to nothing: what is stored
        is known to the worker alone. Stages of the other kind on the same worker count as well.
        """
        tokens = sum(lease.tokens for lease in self.leases)
        return tokens + (KV_TOKENS_PER_REQUEST * len(self.leases) if stage == "decode" else 0)

    def snapshot(self) -> WorkerSnapshot:
        """Return its state now."""
        return WorkerSnapshot(self.name, self.client.address.role, self.ready, len(self.leases))


@dataclass(slots=True, eq=False)
class Placement:
    """One call of one request on one worker. Its owner raises `tokens` as the context grows."""

    worker: Worker
    stage: Stage
    tokens: int


class Router:
    """Chooses workers and keeps the ledger of what runs where."""

    def __init__(self, workers: Sequence[Worker], options: EngineOptions) -> None:
        self.workers = tuple(workers)
        self._options = options

    async def open(self) -> None:
        """Begin to share the ledger."""

    async def close(self) -> None:
        """Share it no longer."""

    @contextlib.asynccontextmanager
    async def placed(self, ask: Ask, tried: Collection[Worker]) -> AsyncIterator[Placement]:
        """Choose a worker and count the call there while the block lasts.

        Args:
            ask: what is to be done.
            tried: workers that have failed this request already.

        Raises:
            EngineUnavailable: no worker is ready and has room.
        """
        stage: Stage = "prefill" if ask.kind == "prompt" else "decode"
        worker = self.choose(stage, tried)
        if worker is None:
            reason = f"no worker that can {stage} is ready and has room"
            raise EngineUnavailable(reason, retry_after_s=self._options.deadlines.retry_after_s)
        with self.lease(worker, stage, len(ask.token_ids)) as placement:
            yield placement

    def choose(self, stage: Stage, tried: Collection[Worker]) -> Worker | None:
        """Return the ready worker with room and the least load, the first of equals; None if there is none.

        Args:
            stage: what is to be done there.
            tried: workers that have failed this request already.
        """
        fit = (worker for worker in self.workers if self._fits(worker, stage) and worker not in tried)
        return min(fit, key=lambda worker: worker.load(stage), default=None)

    def _fits(self, worker: Worker, stage: Stage) -> bool:
        return (
            worker.ready and worker.serves(stage) and len(worker.leases) < self._options.worker_requests_max
        )

    @property
    def ready(self) -> bool:
        """Whether both stages have a ready worker."""
        stages: tuple[Stage, Stage] = ("prefill", "decode")
        return all(any(w.ready and w.serves(stage) for w in self.workers) for stage in stages)

    @contextlib.contextmanager
    def lease(self, worker: Worker, stage: Stage, tokens: int) -> Iterator[Placement]:
        """Count a stage on a worker while the block lasts; its owner raises the tokens as context grows."""
        lease = Placement(worker, stage, tokens)
        worker.leases.append(lease)
        try:
            yield lease
        finally:
            worker.leases[:] = [other for other in worker.leases if other is not lease]
