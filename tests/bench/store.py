"""The prefix store alone, at a million blocks: look-ups of a long prompt, and the keeper's sweep.

Blocks are real files with tiny payloads, so that a million of them take a few GiB: look-ups and sweeps never
read a payload.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from rich.console import Console
from rich.progress import Progress

from engine.proof.prefix import ROOT_HASH
from engine.store import block
from engine.store.block import BlockName
from engine.store.directory import PrefixStore
from engine.store.evict import Quotas
from engine.store.places import Place
from tests.bench.row import Row

BLOCKS: Final = 1_000_000
PROMPT_BLOCKS: Final = 64  # 4,096 tokens
TENANTS: Final = 16
NAMESPACE: Final = "ab" * 32
LOOK_UPS: Final = 1_000
LOOK_UP_MS_MAX: Final = 2.0
SWEEP_S_MAX: Final = 60.0
_PAYLOAD: Final = [memoryview(b"kv" * 32)]
_DAY_S: Final = 86_400


def chain(prompt: int) -> list[bytes]:
    """Names of a prompt's blocks."""
    return [hashlib.sha256(b"%d %d" % (prompt, index)).digest() for index in range(PROMPT_BLOCKS)]


def tenant_of(prompt: int) -> str:
    """Whose prompt it is."""
    return f"ten_{prompt % TENANTS:02d}"


def build(root: Path, blocks: int) -> None:
    """Write so many blocks, promised for the next days; progress goes to stderr."""
    for tenant in range(TENANTS):
        for digits in range(256):
            (root / NAMESPACE / tenant_of(tenant) / f"{digits:02x}").mkdir(parents=True)
    prompts = range(blocks // PROMPT_BLOCKS)
    shares = [prompts[first : first + 500] for first in prompts[::500]]
    with Progress(console=Console(stderr=True), transient=True) as bar, ProcessPoolExecutor() as pool:
        for _ in bar.track(pool.map(_write, [root] * len(shares), shares), len(shares), description="blocks"):
            pass


def _write(root: Path, prompts: range) -> None:
    namespace, now_s = bytes.fromhex(NAMESPACE), int(time.time())
    for prompt in prompts:
        place, parent = Place(root, NAMESPACE, tenant_of(prompt)), ROOT_HASH
        ends_s = now_s + _DAY_S + prompt % (6 * _DAY_S)
        for block_hash in chain(prompt):
            sealed = block.seal(BlockName(namespace, block_hash), _PAYLOAD, now_s, "chat", parent)
            file = os.open(place.file(block_hash), os.O_WRONLY | os.O_CREAT | os.O_EXCL, block.MODE_PROMISED)
            os.writev(file, [sealed.header, *sealed.views])
            os.utime(file, (ends_s, ends_s))
            os.close(file)
            parent = block_hash


def measure(root: Path, blocks: int) -> list[Row]:
    """Build a store of so many blocks and measure what a worker asks of it."""
    started_s = time.perf_counter()
    console = Console(stderr=True)
    console.print(f"store: writing {blocks:,} blocks")
    build(root, blocks)
    built = Row(f"{blocks:,} blocks written", time.perf_counter() - started_s, "s")
    console.print(f"store: {3 * LOOK_UPS:,} look-ups")
    found = look_up_rows(root, blocks)
    console.print("store: four sweeps")
    return [built, *found, *sweep_rows(root, blocks)]


def look_up_rows(root: Path, blocks: int) -> list[Row]:
    """Time look-ups of 64 blocks as a worker's thread makes them, pinning what is there."""
    store = PrefixStore(root, lambda: int(time.time()))
    prompts = blocks // PROMPT_BLOCKS
    rows = []
    for name, there in (("hit", PROMPT_BLOCKS), ("half", PROMPT_BLOCKS // 2), ("miss", 0)):
        took_ms = []
        for turn in range(LOOK_UPS):
            prompt = turn * 7919 % prompts
            hashes = chain(prompt)[:there] + chain(prompts + prompt)[there:]
            tenant = store.namespace(NAMESPACE, tenant_of(prompt))
            started_s = time.perf_counter()
            found = tenant.hold(hashes)
            took_ms.append(1000 * (time.perf_counter() - started_s))
            assert (found.blocks, found.owed) == (there, 0)
            found.release()
        p95_ms, usual_ms = quantiles(took_ms, n=20)[-1], median(took_ms)
        remark = f"median; p95 {p95_ms:.3f} ms"
        rows.append(Row(f"look-up of 4,096 tokens, {name}", usual_ms, "ms", LOOK_UP_MS_MAX, remark))
    return rows


def sweep_rows(root: Path, blocks: int) -> list[Row]:
    """Sweep as the keeper does, in its child process: unlimited, then with a quota that is nearly full."""
    file_bytes = block.HEADER_BYTES + sum(view.nbytes for view in _PAYLOAD)
    used_bytes = blocks // PROMPT_BLOCKS * PROMPT_BLOCKS * file_bytes
    rows = []
    for name, quotas in (
        ("no quota", Quotas()),
        ("quota nearly full, headers read", Quotas(int(used_bytes * 1.05))),
        ("quota nearly full, again", Quotas(int(used_bytes * 1.05))),
        ("quota that evicts 1 in 100", Quotas(int(used_bytes * 0.99))),
    ):
        orders = {"root": str(root), "quotas": asdict(quotas), "fresh_s": 0, "parent": os.getpid()}
        started_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "engine.worker.keeper", json.dumps(orders)]
        swept = subprocess.run(command, capture_output=True, check=True)
        wall_s, after = time.perf_counter() - started_s, resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads(swept.stdout)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        remark = f"{cpu_s:.0f} s CPU, at most {after.ru_maxrss / 1024:.0f} MiB, {report['evicted']:,} evicted"
        rows.append(Row(f"sweep, {name}", wall_s, "s", SWEEP_S_MAX, remark))
    return rows


def main() -> list[Row]:
    """Measure in a temporary folder; clean up."""
    with tempfile.TemporaryDirectory(prefix="kv-store-", dir="/tmp") as folder:
        return measure(Path(folder) / "store", BLOCKS)
