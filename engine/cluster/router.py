"""Where a request goes: prefill by queued tokens, decode by running requests and accumulated KV length.

The ledger is this process's own and counts what this process has sent. Several gateways over the same workers
need the shared leases in Valkey that come with issue 3, and so do measured step costs in place of token
counts.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from engine.cluster.options import WorkerSnapshot
from engine.cluster.worker_client import WorkerClient

Stage = Literal["prefill", "decode"]

# A decode step costs about 18 ms + 0.47 ms a request + 3.2 us a token of context (measured on the CPU build,
# shared notes A.4): a running request weighs as much as this many tokens of context.
KV_TOKENS_PER_REQUEST: Final = 150


@dataclass(slots=True)
class Lease:
    """One stage of one request on one worker, and the tokens it holds there."""

    stage: Stage
    tokens: int


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as this process sees it."""

    client: WorkerClient
    ready: bool = False
    leases: list[Lease] = field(default_factory=list)

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


class Router:
    """Chooses workers and keeps the ledger of what runs where."""

    def __init__(self, workers: Sequence[Worker], worker_requests_max: int) -> None:
        self.workers = tuple(workers)
        self._worker_requests_max = worker_requests_max

    def choose(self, stage: Stage, tried: Collection[Worker]) -> Worker | None:
        """Return the ready worker with room and the least load, the first of equals; None if there is none.

        Args:
            stage: what is to be done there.
            tried: workers that have failed this request already.
        """
        fit = (worker for worker in self.workers if self._fits(worker, stage) and worker not in tried)
        return min(fit, key=lambda worker: worker.load(stage), default=None)

    def _fits(self, worker: Worker, stage: Stage) -> bool:
        return worker.ready and worker.serves(stage) and len(worker.leases) < self._worker_requests_max

    @property
    def ready(self) -> bool:
        """Whether both stages have a ready worker."""
        stages: tuple[Stage, Stage] = ("prefill", "decode")
        return all(any(w.ready and w.serves(stage) for w in self.workers) for stage in stages)

    @contextlib.contextmanager
    def lease(self, worker: Worker, stage: Stage, tokens: int) -> Iterator[Lease]:
        """Count a stage on a worker while the block lasts; its owner raises the tokens as context grows."""
        lease = Lease(stage, tokens)
        worker.leases.append(lease)
        try:
            yield lease
        finally:
            worker.leases[:] = [other for other in worker.leases if other is not lease]
