"""The prefix store alone, at a million blocks: look-ups of a long prompt, and the keeper's sweep.

Blocks are real files with tiny payloads, so that a million of them take a few GiB: look-ups and sweeps never
read a payload.
"""

import hashlib
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from engine.proof.prefix import ROOT_HASH
from engine.store import block
from engine.store.block import BlockName
from engine.store.places import Place

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
