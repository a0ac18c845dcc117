"""Shapes of a deployment that are given the mixed load: each answers and says when its tokens came."""

import contextlib
import os
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from engine.api import Engine, EngineOptions, GenerateRequest, Generation, Sampling, WorkerAddress
from engine.proof.ring import DeploymentRing
from engine.shapes.shape import Role, default_cores
from tests.bench import workers
from tests.bench.timing import Timed, timed
from tests.engine.worker.conftest import Ask, Worker

# The notes' load was measured in it. In float16, for which few processors have units, two cores fall behind.
DTYPE = "bfloat16"


class Shape(Protocol):
    """Workers of which one shape is made; ``opened`` lasts as long as they are asked."""

    name: str
    workers: tuple[Worker, ...]

    def opened(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Connect."""

    async def ask(self, prompt_ids: list[int], output_tokens: int) -> Timed:
        """One greedy answer."""


class StockShape:
    """vLLM as it comes, on all cores."""

    def __init__(self, bench: workers.Bench) -> None:
        self.name = f"stock vLLM, chunks of {workers.STOCK_CHUNK_TOKENS}"
        self._worker = bench.stock(DTYPE)
        self.workers: tuple[Worker, ...] = (self._worker,)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Nothing to connect."""
        yield

    async def ask(self, prompt_ids: list[int], output_tokens: int) -> Timed:
        """Ask its server, as ours are asked."""
        question = Ask(prompt_ids, max_tokens=output_tokens, salt=None, with_params=False)
        return await workers.ask(self._worker, question)


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Our workers behind our engine."""

    name: str
    workers: tuple[Worker, ...]
    options: EngineOptions
    engines: list[Engine]

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open an engine over the workers, and wait until it has seen them."""
        engine = Engine(self.options)
        await engine.open()
        self.engines.append(engine)
        try:
            yield
        finally:
            self.engines.clear()
            await engine.close()

    async def ask(self, prompt_ids: list[int], output_tokens: int) -> Timed:
        """Submit a request as the gateway does."""
        asked_s = time.perf_counter()
        generation = self.engines[0].submit(_request(prompt_ids, output_tokens))
        return await timed(_tokens(generation), asked_s)


def pair(
    bench: workers.Bench,
    name: str,
    members: tuple[Worker, ...],
    *,
    first_token: bool = True,
    elastic: bool = True,
) -> EngineShape:
    """A prefill and a decode worker, which several shapes may share: they are asked in turn."""
    return _shape(bench, name, members, first_token=first_token, elastic=elastic)


def split_workers(bench: workers.Bench) -> tuple[Worker, ...]:
    """A prefill and a decode worker with half of the cores each."""
    cores = os.cpu_count() or 1
    roles: tuple[Role, Role] = ("prefill", "decode")
    return tuple(
        bench.worker(
            f"{role}-{secrets.token_hex(2)}",
            role,
            default_cores(role, cores) or workers.ALL_CORES,
            dtype=DTYPE,
        )
        for role in roles
    )


def mono(bench: workers.Bench, name: str, step_budget_s: float | None) -> EngineShape:
    """One worker on all cores that does both."""
    name_there = f"both-{secrets.token_hex(2)}"
    worker = bench.worker(name_there, "both", workers.ALL_CORES, dtype=DTYPE, step_budget_s=step_budget_s)
    return _shape(bench, name, (worker,))


def _shape(
    bench: workers.Bench,
    name: str,
    members: tuple[Worker, ...],
    *,
    first_token: bool = True,
    elastic: bool = True,
) -> EngineShape:
    options = EngineOptions(
        workers=tuple(WorkerAddress(each.spec.name, each.spec.role, each.spec.socket) for each in members),
        salt_secret=secrets.token_bytes(32),
        deployment=DeploymentRing.of(bench.place.deployment.public),
        store_dir=bench.place.store_dir,
        first_token=first_token,
        elastic=elastic,
    )
    return EngineShape(name, members, options, [])


def _request(prompt_ids: list[int], output_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=_request_id(),
        tenant="ten_0123456789abcdef01234567",
        scope="",
        prompt_ids=tuple(prompt_ids),
        sampling=Sampling(max_tokens=output_tokens, temperature=0.0),
        retention_class="chat",
        nonce=secrets.token_bytes(32),
        memo="",
    )


def _request_id() -> str:
    """A UUID of version 7."""
    bits = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return str(uuid.UUID(int=bits & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62))


async def _tokens(generation: Generation) -> AsyncIterator[int]:
    async for chunk in generation:
        for token in chunk.token_ids:
            yield token
