"""How much of a prompt need not be computed: what the store holds, and who computed it last.

Estimates for choosing a worker, never for a bill. A parent outlives its children in the store, so the stored
part of a prompt is found by halving. Disks are asked in threads of their own and not waited for long.
"""

import asyncio
import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine.proof.prefix import BLOCK_TOKENS, ImageRun, block_hashes
from engine.store.namespace import Namespace
from engine.store.places import Place

ANSWER_S: Final = 0.05
# A disk that hangs holds both threads; then nobody waits for it any more.
THREADS: Final = 2
PENDING_MAX: Final = 16
# Blocks whose last worker is remembered: some 6 MB.
REMEMBERED_MAX: Final = 32_768

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as the store knows it; ``tenant`` is a folder there."""

    token_ids: tuple[int, ...]
    salt: str
    tenant: str
    images: tuple[ImageRun, ...] = ()

    def hashes(self, block_tokens: int) -> list[bytes]:
        """Names of the blocks that may be loaded: one token at least is always computed."""
        return block_hashes(self.token_ids[:-1], self.salt, block_tokens, self.images)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a prompt: names of its blocks, and tokens stored by namespace."""

    hashes: list[bytes] = field(default_factory=list)
    stored_tokens: Mapping[str, int] = field(default_factory=dict)


class Prefixes:
    """Looks prompts up in a store, and remembers who computed which blocks last."""

    def __init__(self, store_dir: Path | None) -> None:
        self._store_dir = store_dir
        self._threads = ThreadPoolExecutor(THREADS, "prefixes")
        self._pending = 0
        self._block_tokens: dict[str, int] = {}
        self._workers: OrderedDict[bytes, str] = OrderedDict()

    def close(self) -> None:
        """Let the threads end; one that hangs in a disk is left to it."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def look_up(self, prompt: PromptTokens, namespaces: Collection[str]) -> Known | None:
        """What is known of a prompt; None when it was not found out in time.

        Args:
            prompt: what is to be computed.
            namespaces: what the workers in question call their blocks.
        """
        if self._pending >= PENDING_MAX:
            return None
        self._pending += 1
        looking = asyncio.get_running_loop().run_in_executor(
            self._threads, self._look_up, prompt, sorted(namespaces)
        )
        looking.add_done_callback(self._looked_up)
        done, _ = await asyncio.wait({looking}, timeout=ANSWER_S)
        return looking.result() if done else None

    def remember(self, known: Known, worker: str) -> None:
        """This worker's device now holds the prompt's blocks."""
        for block_hash in known.hashes:
            self._workers[block_hash] = worker
            self._workers.move_to_end(block_hash)
        while len(self._workers) > REMEMBERED_MAX:
            self._workers.popitem(last=False)

    def on_device(self, known: Known, worker: str) -> int:
        """Blocks from the first on that this worker computed last, and so probably still has."""
        for count, block_hash in enumerate(known.hashes):
            if self._workers.get(block_hash) != worker:
                return count
        return len(known.hashes)

    def _looked_up(self, looking: "asyncio.Future[Known]") -> None:
        self._pending -= 1
        if not looking.cancelled():
            looking.exception()  # nobody may be waiting for it any more

    def _look_up(self, prompt: PromptTokens, namespaces: Collection[str]) -> Known:
        hashes = prompt.hashes(BLOCK_TOKENS)
        stored_tokens = {}
        for digest in namespaces:
            if self._store_dir is not None and _DIGEST.fullmatch(digest):
                block_tokens = self._tokens_a_block(self._store_dir, digest)
                named = hashes if block_tokens == BLOCK_TOKENS else prompt.hashes(block_tokens)
                place = Place(self._store_dir, digest, prompt.tenant)
                blocks = bisect_left(named, True, key=lambda each: not place.path(each).exists())
                stored_tokens[digest] = blocks * block_tokens
        return Known(hashes, stored_tokens)

    def _tokens_a_block(self, store_dir: Path, digest: str) -> int:
        known = self._block_tokens.get(digest)
        if known is None:
            known = self._block_tokens[digest] = Namespace.read(store_dir, digest).block_tokens
        return known
