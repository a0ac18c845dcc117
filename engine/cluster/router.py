"""Where a request goes: the ways there are to place a call, and what each costs (`engine.cluster.score`).

Roles are elastic. A prompt goes to a prefill worker, unless none is ready, or so little of it is left to
compute that the hand-off costs more, or a decode worker idles and would be done much sooner. A long prompt
never joins streams on a decode worker while there are prefill workers: steady streams are why they exist.
"""

import contextlib
import math
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from engine.cluster.counts import Counts
from engine.cluster.leases import Leases
from engine.cluster.ledger import Placement, Worker
from engine.cluster.options import EngineOptions, Role
from engine.cluster.prefixes import Known, Prefixes, PromptTokens
from engine.cluster.score import HANDOFF_S, LOAD_BLOCK_S, NS_PER_S, Candidate, Load, prefill_s
from engine.errors import EngineUnavailable
from engine.proof.prefix import BLOCK_TOKENS, ImageRun
from engine.wire import Stage

__all__ = ["Ask", "Placement", "Router", "Worker"]

# Up to so much left to compute is little: it is a step of its own anywhere.
LITTLE_TOKENS: Final = 2 * BLOCK_TOKENS
RETRY_AFTER_S_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be placed.

    Args:
        kind: a `prompt` to compute (and perhaps to go on from), or the `output` of one that is stored.
        token_ids: what the worker will be sent.
        salt: the `cache_salt` it will be sent.
        tenant: whose folder of the store the blocks lie in.
        images: those among the tokens.
    """

    kind: Literal["prompt", "output"]
    token_ids: tuple[int, ...]
    salt: str
    tenant: str
    images: tuple[ImageRun, ...] = ()


class Router:
    """Places calls on workers. Safe to use before `open`, then by this process's own ledger alone."""

    def __init__(self, workers: Sequence[Worker], options: EngineOptions) -> None:
        self.workers = tuple(workers)
        self._index = {worker: index for index, worker in enumerate(self.workers)}
        self.counts = Counts()
        self._options = options
        self._queue_ms_max = round(1000 * options.queue_s_max)
        self._prefixes = Prefixes(options.store_dir)
        self._leases = Leases(self.workers, options.shared, options.gateway, self.counts)

    async def open(self) -> None:
        """Begin to share the ledger."""
        await self._leases.open()

    async def close(self) -> None:
        """Share it no longer."""
        await self._leases.close()
        self._prefixes.close()

    @property
    def ready(self) -> bool:
        """Whether a request could be served: by any worker if roles are elastic, else by one a stage."""
        ready = self._ready(())
        if self._options.elastic:
            return bool(ready)
        return all(self._of(ready, role) for role in ("prefill", "decode"))

    @contextlib.asynccontextmanager
    async def placed(self, ask: Ask, tried: Collection[Worker]) -> AsyncIterator[Placement]:
        """Choose a worker, and count the call there while the block lasts.

        Args:
            ask: what is to be done.
            tried: workers that have failed this request already.

        Raises:
            EngineUnavailable: no worker is ready, or none has room, or all have too long a queue.
        """
        if ask.kind == "prompt":
            known = await self._look_up(ask, tried)
            candidates = self._prompt_candidates(ask, known, self._ready(tried))
        else:
            known = None
            candidates = self._output_candidates(ask, self._ready(tried))
        placement = await self._leases.place(candidates) if candidates else None
        if placement is None:
            raise self._refusal(ask, candidates)
        try:
            self.counts.placements[placement.stage, placement.reason] += 1
            if tried:
                self.counts.retries[placement.stage] += 1
            if known is not None:
                self._prefixes.remember(known, placement.worker.name)
            yield placement
        finally:
            self._leases.release(placement)

    @contextlib.contextmanager
    def encoding(self) -> Iterator[Worker | None]:
        """Choose the encode worker with the fewest calls of ours, and count one more while the block lasts.

        None where none is ready: whoever computes a prompt can encode its images too.
        """
        ready = [worker for worker in self.workers if worker.ready and worker.client.address.role == "encode"]
        if not ready:
            yield None
            return
        worker = min(ready, key=lambda each: each.encoding)
        worker.encoding += 1
        self.counts.placements["encode", "images"] += 1
        try:
            yield worker
        finally:
            worker.encoding -= 1

    def _ready(self, tried: Collection[Worker]) -> list[Worker]:
        """Those that compute tokens."""
        return [
            worker
            for worker in self.workers
            if worker.ready and worker not in tried and worker.client.address.role != "encode"
        ]

    @staticmethod
    def _of(workers: Sequence[Worker], role: Role) -> list[Worker]:
        """Those that a role's work belongs to."""
        return [worker for worker in workers if worker.client.address.role in {role, "both"}]

    async def _look_up(self, ask: Ask, tried: Collection[Worker]) -> Known:
        """What is known of a prompt; nothing, where knowing would change nothing."""
        ready = self._ready(tried)
        namespaces = {worker.report.namespace for worker in ready if worker.report is not None}
        if len(ready) < 2:
            return Known()
        prompt = PromptTokens(ask.token_ids, ask.salt, ask.tenant, ask.images)
        known = await self._prefixes.look_up(prompt, namespaces)
        if known is None:
            self.counts.unestimated += 1
        return known or Known()

    def _prompt_candidates(self, ask: Ask, known: Known, ready: Sequence[Worker]) -> list[Candidate]:
        split = bool(self._of(ready, "prefill"))
        candidates = []
        for worker in ready:
            prompt = self._prompt(ask, known, worker)
            match worker.client.address.role:
                case "prefill":
                    # Where little is left, going on at once on a decode worker saves a hand-off.
                    handoff_s = HANDOFF_S if self._options.elastic and prompt.little else 0.0
                    candidates.append(self._candidate(prompt, "prefill", "queue", handoff_s))
                case "both":
                    candidates.append(self._candidate(prompt, "both", "mono", 0.0))
                case "decode" if not self._options.elastic:
                    pass
                case "decode" if not split:
                    candidates.append(self._candidate(prompt, "both", "no_prefill_worker", 0.0))
                case "decode" if prompt.little:
                    candidates.append(self._candidate(prompt, "both", "little_left", 0.0))
                case "decode" if self._may_borrow(prompt, ready):
                    idle = self._candidate(prompt, "both", "idle", HANDOFF_S)
                    candidates.append(replace(idle, running_below=1))
        return candidates

    def _output_candidates(self, ask: Ask, ready: Sequence[Worker]) -> list[Candidate]:
        decoders, reason = self._of(ready, "decode"), "stored"
        if not decoders and self._options.elastic:
            decoders, reason = list(ready), "no_decode_worker"
        prompts = [_Prompt(worker, len(ask.token_ids), 0.0, little=True) for worker in decoders]
        return [self._candidate(prompt, "decode", reason, 0.0) for prompt in prompts]

    def _prompt(self, ask: Ask, known: Known, worker: Worker) -> "_Prompt":
        """What a prompt costs on a worker, once its turn has come."""
        tokens = len(ask.token_ids)
        namespace = "" if worker.report is None else worker.report.namespace
        stored = known.stored_tokens.get(namespace, 0)
        # What the device probably still has need not be loaded. It may be gone, so nothing more is taken off.
        loads = stored // BLOCK_TOKENS - self._prefixes.on_device(known, worker.name)
        own_s = max(0.0, prefill_s(worker.law, stored, tokens) + loads * LOAD_BLOCK_S)
        return _Prompt(worker, tokens, own_s, little=tokens - stored <= LITTLE_TOKENS)

    def _candidate(self, prompt: "_Prompt", stage: Stage, reason: str, more_s: float) -> Candidate:
        return Candidate(
            worker=self._index[prompt.worker],
            stage=stage,
            reason=reason,
            own_ns=round((prompt.own_s + more_s) * NS_PER_S),
            load=Load(1, prompt.tokens, math.ceil(prompt.own_s * 1000)),
            running_below=self._options.worker_requests_max,
            queued_ms_max=self._queue_ms_max,
        )

    def _may_borrow(self, prompt: "_Prompt", ready: Sequence[Worker]) -> bool:
        """Whether an idle decode worker may compute a long prompt.

        Prompts that are being prefilled will soon be streams, and need a decode worker without a prefill: one
        that stays, or this one, if it is done before the first of them may be.
        """
        decoders = self._of(ready, "decode")
        if any(worker is not prompt.worker and not worker.load.queued_ms for worker in decoders):
            return True
        prefillers = [worker for worker in self.workers if worker.client.address.role == "prefill"]
        if any(worker.others.at_least(worker.unknown).queued_ms for worker in prefillers):
            return False  # how far they are is known to others alone
        now_s = time.monotonic()
        ends_s = [
            placement.left_ms / 1000 - (now_s - placement.placed_s)
            for worker in prefillers
            for placement in worker.leases
        ]
        return prompt.own_s <= min(ends_s, default=math.inf)

    def _refusal(self, ask: Ask, candidates: Sequence[Candidate]) -> EngineUnavailable:
        """Why nobody took a call, and when somebody might."""
        retry_after_s = self._options.deadlines.retry_after_s
        if not candidates:
            self.counts.refusals["none_ready"] += 1
            reason = f"no worker that can take a {ask.kind} is ready"
            return EngineUnavailable(reason, retry_after_s=retry_after_s)
        waits_s: list[float] = []
        full = True
        for candidate in candidates:
            load = self.workers[candidate.worker].load
            if load.running < candidate.running_below:
                full = False
                waits_s.append((load.queued_ms - candidate.queued_ms_max) / 1000)
            elif load.queued_ms:
                waits_s.append(load.queued_ms / 1000 / load.running)
        self.counts.refusals["full" if full else "queue"] += 1
        reason = f"every worker that can take a {ask.kind} is full or has too long a queue"
        wait_s = math.ceil(min(waits_s, default=retry_after_s))
        return EngineUnavailable(reason, retry_after_s=min(max(wait_s, 1), RETRY_AFTER_S_MAX))


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A call on a worker: tokens sent, seconds of prefill behind what is stored, whether that is little."""

    worker: Worker
    tokens: int
    own_s: float
    little: bool
