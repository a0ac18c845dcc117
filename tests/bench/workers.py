"""Workers that a bench starts for itself, asked over their sockets without a cluster before them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import aiohttp
from tokenizers import Tokenizer

from admin.stack import model
from engine import wire
from engine.shapes.shape import Role
from tests.bench.prompts import prompt_ids
from tests.bench.timing import Timed, timed
from tests.engine.worker.conftest import ROOT, Ask, Place, Worker

ALL_CORES = tuple(range(os.cpu_count() or 1))
KV_CACHE_BYTES = 512 * 1024**2
STOCK_CHUNK_TOKENS = 512


@dataclass
class Weighed(Ask):
    """A request of a tenant with a weight."""

    weight: float = 1.0

    def body(self, stream: bool) -> dict[str, Any]:
        body = super().body(stream)
        if self.with_params:
            body["kv_transfer_params"][wire.WEIGHT] = self.weight
        return body


class Stock(Worker):
    """vLLM as it comes: its own scheduler and processes, no connector, chunks of 512 tokens, all cores."""

    def start(self) -> Self:
        argv = [
            *(sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"),
            *("--model", str(self.spec.model_dir), "--served-model-name", self.spec.served_name),
            *("--dtype", self.spec.dtype),
            *("--uds", str(self.spec.socket)),
            *("--max-num-batched-tokens", str(STOCK_CHUNK_TOKENS)),
            *("--max-num-seqs", str(self.spec.sequences_max)),
            *("--kv-cache-memory-bytes", str(self.spec.kv_cache_bytes)),
            "--enforce-eager",
            "--enable-scale-out",
        ]
        bind = ",".join(str(core) for core in ALL_CORES)
        threads = {"VLLM_CPU_OMP_THREADS_BIND": bind, "OMP_NUM_THREADS": str(len(ALL_CORES))}
        environment = {**os.environ, **threads, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
            )
        return self


class Bench:
    """A folder with workers in it, and prompts for them that share nothing."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._tokenizer = Tokenizer.from_file(str(place.model_dir / "tokenizer.json"))
        self._numbers = iter(range(1, 1_000_000))

    def worker(self, name: str, role: Role, cores: tuple[int, ...], **spec: Any) -> Worker:
        """One of ours; ``spec`` replaces fields of its `WorkerSpec`."""
        worker = self.place.worker(name, role)
        more = {"kv_cache_bytes": KV_CACHE_BYTES, "cpu_cores": cores, "threads": len(cores), **spec}
        worker.spec = replace(worker.spec, **more)
        return worker

    def stock(self, dtype: str) -> Stock:
        """vLLM as it comes."""
        ours = self.worker("stock", "both", ALL_CORES, dtype=dtype)
        return Stock(ours.spec, self.place.deployment, ours.log)

    def prompt_ids(self, tokens: int) -> list[int]:
        """A prompt of exactly so many tokens that nobody has asked before."""
        return prompt_ids(self._tokenizer, next(self._numbers), tokens)


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """A bench whose folder is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="kvb-", dir="/tmp"))  # sockets need a short path
    try:
        yield Bench(Place(folder, model.prepare_now(ROOT / ".cache")))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(*workers: Worker) -> Iterator[None]:
    """Workers that run while the block lasts, started together."""
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_ready()
        yield
    finally:
        for worker in workers:
            if hasattr(worker, "process"):
                worker.stop()


async def ask(worker: Worker, question: Ask) -> Timed:
    """Stream one answer of a worker and take its times."""
    connector = aiohttp.UnixConnector(path=str(worker.spec.socket), limit=0)
    async with aiohttp.ClientSession("http://worker", connector=connector) as session:
        asked_s = time.perf_counter()
        async with session.post(wire.GENERATE_PATH, json=question.body(stream=True)) as response:
            response.raise_for_status()
            return await timed(_tokens(response), asked_s)


async def _tokens(response: aiohttp.ClientResponse) -> AsyncIterator[int]:
    async for line in response.content:
        text = line.decode().strip()
        if text.startswith("data: ") and text != "data: [DONE]":
            for choice in json.loads(text[6:])["choices"]:
                for token in choice["token_ids"]:
                    yield token
