"""The ledger that all gateways share: each one's own calls, under a lease, in Valkey.

One script at a time carries everything this process has to say: what it has on each worker, in absolute
numbers, and the calls that wait for a place. It sums up what all living gateways have, chooses, and adds the
newcomers to the caller's numbers, atomically. So nothing is ever subtracted and no error lasts: the next call
overwrites it. Where Valkey does not answer, this process's own numbers decide, beside what others had last,
for as long as their leases would have run.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.cluster.counts import Counts
from engine.cluster.ledger import Placement, Worker
from engine.cluster.options import ScriptRunner
from engine.cluster.score import NOTHING, WEIGHTS, Candidate, Load, choose

GATEWAYS: Final = "kv:{engine}:gateways"
OWN_PREFIX: Final = "kv:{engine}:leases:"
SCRIPT: Final = Path(__file__).with_name("leases.lua").read_text(encoding="utf-8")

LEASE_MS: Final = 10_000
RENEW_S: Final = 2.0
# A call waits for the script that is under way and for its own: twice this at most.
ANSWER_S: Final = 0.025
PROBE_S: Final = 1.0
# Releases travel together, this late.
RELEASE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Asked:
    candidates: Sequence[Candidate]
    answer: asyncio.Future[Placement | None]


class Leases:
    """Places calls. Until `open`, and without a `shared`, by this process's own ledger alone."""

    def __init__(
        self, workers: Sequence[Worker], shared: ScriptRunner | None, gateway: str, counts: Counts
    ) -> None:
        self._workers = workers
        self._shared = shared
        self._counts = counts
        # Its own name each start: what a process before had is not ours.
        self._own_key = f"{OWN_PREFIX}{gateway}-{secrets.token_hex(4)}"
        self._waiting: list[_Asked] = []
        self._wake = asyncio.Event()
        self._away = True
        self._heard_s = 0.0
        self._release: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Say who we are, then go on renewing."""
        if self._shared is not None:
            await self._exchange()
            self._task = asyncio.create_task(self._exchange_forever(), name="router leases")

    async def close(self) -> None:
        """Let all leases go; what is still asked for is placed by our own ledger."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if self._release is not None:
            self._release.cancel()
        self._answer_alone(self._take())
        with contextlib.suppress(Exception):  # the lease runs out by itself
            async with asyncio.timeout(PROBE_S):
                await self._run(0, [])

    async def place(self, candidates: Sequence[Candidate]) -> Placement | None:
        """Count a call where it costs least; None when no candidate has room."""
        if self._task is None:
            return self._place_alone(candidates)
        if self._away:
            self._counts.unshared += 1
            return self._place_alone(candidates)
        asked = _Asked(candidates, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._wake.set()
        try:
            return await asked.answer
        except asyncio.CancelledError:
            if asked.answer.done() and not asked.answer.cancelled() and (placed := asked.answer.result()):
                self.release(placed)
            raise

    def release(self, placement: Placement) -> None:
        """Count a call no longer."""
        leases = placement.worker.leases
        leases[:] = [other for other in leases if other is not placement]
        if self._task is not None and self._release is None:
            self._release = asyncio.get_running_loop().call_later(RELEASE_S, self._wake.set)

    def _place_alone(self, candidates: Sequence[Candidate]) -> Placement | None:
        index = choose(candidates, [worker.load for worker in self._workers])
        return None if index is None else self._add(candidates[index])

    def _add(self, candidate: Candidate) -> Placement:
        worker, load = self._workers[candidate.worker], candidate.load
        placement = Placement(
            worker, candidate.stage, load.kv_tokens, load.queued_ms, time.monotonic(), candidate.reason
        )
        worker.leases.append(placement)
        return placement

    async def _exchange_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._wake.wait()
            self._wake.clear()
            if self._release is not None:
                self._release.cancel()
                self._release = None
            await self._exchange()

    def _take(self) -> list[_Asked]:
        """Take all that wait, but for those whose caller has gone."""
        waiting, self._waiting = self._waiting, []
        return [asked for asked in waiting if not asked.answer.done()]

    async def _exchange(self) -> None:
        """Say what we have, hear what others have, have places chosen."""
        asked = self._take()
        try:
            async with asyncio.timeout(PROBE_S if self._away else ANSWER_S):
                choices, others = await self._run(LEASE_MS, [each.candidates for each in asked])
            numbers = [Load(*others[start : start + 3]) for start in range(0, len(others), 3)]
            for worker, load in zip(self._workers, numbers, strict=True):
                worker.others = load
        except asyncio.CancelledError:
            self._answer_alone(asked)
            raise
        except Exception:  # whatever it is, requests must go on: our own ledger is enough
            self._away = True
            if time.monotonic() - self._heard_s > LEASE_MS / 1000:
                for worker in self._workers:
                    worker.others = NOTHING
            asked += self._take()
            self._counts.unshared += len(asked)
            self._answer_alone(asked)
            return
        self._away, self._heard_s = False, time.monotonic()
        for each, choice in zip(asked, choices, strict=True):
            if not each.answer.done():
                each.answer.set_result(self._add(each.candidates[choice - 1]) if choice else None)

    def _answer_alone(self, asked: Sequence[_Asked]) -> None:
        for each in asked:
            if not each.answer.done():
                each.answer.set_result(self._place_alone(each.candidates))

    async def _run(self, lease_ms: int, asks: Sequence[Sequence[Candidate]]) -> Any:
        assert self._shared is not None
        words = msgspec.json.encode(
            {
                "workers": [_worker_row(worker) for worker in self._workers],
                "asks": [[_candidate_row(candidate) for candidate in candidates] for candidates in asks],
            }
        )
        return await self._shared.run_source(SCRIPT, (GATEWAYS, self._own_key), (lease_ms, words.decode()))


def _worker_row(worker: Worker) -> tuple[str | int, ...]:
    return (worker.name, *_numbers(worker.own), *_numbers(worker.unknown))


def _candidate_row(candidate: Candidate) -> tuple[int, ...]:
    weights = WEIGHTS[candidate.stage]
    return (
        candidate.worker + 1,
        candidate.own_ns,
        weights.running,
        weights.kv_tokens,
        weights.queued_ms,
        candidate.running_below,
        candidate.queued_ms_max,
        *_numbers(candidate.load),
    )


def _numbers(load: Load) -> tuple[int, int, int]:
    return load.running, load.kv_tokens, load.queued_ms
