"""The worker's half: moves blocks between the KV cache and the store.

Loads run in threads beside the model; they are asynchronous always, so that no forward pass ever reads a
block that turned out to be corrupt. Publications are finished before the step's result leaves, so that a
decode worker finds all that the prefill answered for; a disk that does not keep up loses them instead.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from engine.store.directory import Loaded, PrefixStore, Published, TenantBlocks
from engine.worker import clock
from engine.worker.copy import Rows, rows_of
from engine.worker.messages import BlockJob, StepReport
from engine.worker.patience import Patience, answer
from engine.worker.report import Count, Counts

_LOG: Final = logging.getLogger("vllm.kvitto.mover")
_LOAD_DEADLINE_S: Final = 10.0
_SAVE_DEADLINE_S: Final = 2.0


class Load:
    """One request's load. Blocks count as loaded in order; the first that fails ends it."""

    def __init__(self, job: BlockJob) -> None:
        self.job = job
        self.started_at_s = clock.monotonic_s()
        self.loaded_blocks = 0
        self.corrupt_blocks = 0
        self.ended = False
        self._lock = threading.Lock()

    def run(self, blocks: TenantBlocks, rows: Rows) -> None:
        """Read block after block; runs in a thread.

        Behind a corrupt block the others are read for their checksums alone: the request computes them
        anyway, and publishes again what was quarantined.
        """
        payload = memoryview(bytearray(rows.block_bytes))
        for index, block_hash in enumerate(self.job.block_hashes):
            outcome = blocks.load(block_hash, payload, self.job.retention_class)
            self.corrupt_blocks += outcome is Loaded.CORRUPT
            with self._lock:
                if self.ended:
                    return  # abandoned: these rows of the cache belong to someone else by now
                if outcome is not Loaded.LOADED:
                    _LOG.warning("block %s of the store is %s", block_hash.hex(), outcome.value)
                elif index == self.loaded_blocks:
                    rows.fill(self.job.block_ids[index], payload)
                    self.loaded_blocks += 1
            if outcome is Loaded.MISSING:
                break
        self.end()

    def end(self) -> None:
        """End it where it stands; the thread writes nothing more."""
        with self._lock:
            self.ended = True

    @property
    def overdue(self) -> bool:
        """Whether the disk has had its time."""
        return clock.monotonic_s() - self.started_at_s > _LOAD_DEADLINE_S

    @property
    def failed_block_ids(self) -> tuple[int, ...]:
        """Rows of the cache that hold nothing usable."""
        return self.job.block_ids[self.loaded_blocks :]


class Mover:
    """Worker side of the connector.

    Args:
        store: the prefix store.
        namespace: digest of what computes the blocks.
        kv_caches: layer name -> tensor, see `rows_of`.
        layers: order of the layers in a block's file.
    """

    def __init__(
        self, store: PrefixStore, namespace: str, kv_caches: Mapping[str, Any], layers: list[str]
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._rows = rows_of(kv_caches, layers)
        self._loads: dict[str, Load] = {}
        self._failed_block_ids: set[int] = set()
        self._report = StepReport()
        self.counts = Counts(float)
        self._readers = Patience("kvitto-load", threads=4)
        self._writer = Patience("kvitto-save", threads=2)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self._rows.block_bytes

    def load(self, job: BlockJob) -> None:
        """Start a load; `ended_loads` reports its end."""
        load = self._loads[job.request_id] = Load(job)
        blocks = self._blocks_of(job)

        def run() -> None:
            try:
                load.run(blocks, self._rows)
            except Exception:
                _LOG.exception("loading blocks of %s failed", job.request_id)
                load.end()

        self._readers.start(run)

    def ended_loads(self) -> set[str]:
        """Requests whose load has ended since the last call, well or not."""
        ended: set[str] = set()
        for request_id, load in list(self._loads.items()):
            if load.overdue and not load.ended:
                _LOG.warning("loading blocks of %s took too long and was given up", request_id)
                load.end()
            if load.ended:
                del self._loads[request_id]
                ended.add(request_id)
                self._report.loaded[request_id] = load.loaded_blocks
                self.counts[Count.LOADED_BLOCKS] += load.loaded_blocks
                self.counts[Count.LOADED_BYTES] += load.loaded_blocks * self.block_bytes
                self.counts[Count.LOAD_SECONDS] += clock.monotonic_s() - load.started_at_s
                self.counts[Count.QUARANTINED_BLOCKS] += load.corrupt_blocks
                self._failed_block_ids.update(load.failed_block_ids)
        return ended

    def take_failed_block_ids(self) -> set[int]:
        """Rows of the cache that loads have left unusable."""
        failed, self._failed_block_ids = self._failed_block_ids, set()
        return failed

    def take_report(self) -> StepReport | None:
        """What the scheduler's half has to learn, if anything."""
        report, self._report = self._report, StepReport()
        return report if report.loaded or report.refused else None

    def save(self, job: BlockJob) -> None:
        """Publish a job's blocks and wait for it; those that are there already have their promise renewed.

        A block for which its quota has no room is not asked for again: it will be a miss.
        """
        started_at_s = clock.monotonic_s()
        self._save(job)
        self.counts[Count.PUBLISH_SECONDS] += clock.monotonic_s() - started_at_s

    def _save(self, job: BlockJob) -> None:
        blocks = self._blocks_of(job)
        missing = self._writer.ask(
            lambda: [i for i, h in enumerate(job.block_hashes) if not blocks.renew(h, job.retention_class)],
            _SAVE_DEADLINE_S,
            None,
        )
        if missing is None:
            self._refused(job, 0)
            return
        for index in missing:
            published = self._publish(blocks, job, index)
            if published is Published.WRITTEN:
                self.counts[Count.PUBLISHED_BLOCKS] += 1
                self.counts[Count.PUBLISHED_BYTES] += self.block_bytes
            if published is Published.REFUSED:
                self._refused(job, index)
            self.counts[Count.FULL_PUBLICATIONS] += published is Published.FULL
            self.counts[Count.OWED_WITHOUT_ROOM] += published is Published.OWED_WITHOUT_ROOM
            if published not in (Published.WRITTEN, Published.RENEWED):
                return  # without its parent no later block is ever found

    def _publish(self, blocks: TenantBlocks, job: BlockJob, index: int) -> Published:
        if not self._store.writable():
            return Published.REFUSED
        block_hash = job.block_hashes[index]
        # Sealed here and now: a write that is given up may go on while the cache changes under it.
        parent = job.block_hashes[index - 1] if index else job.parent
        views = self._rows.views(job.block_ids[index])
        sealed = blocks.seal(block_hash, views, job.retention_class, parent)
        future = self._writer.start(lambda: blocks.publish_sealed(block_hash, sealed, job.retention_class))
        return answer(future, _SAVE_DEADLINE_S, Published.REFUSED)

    def _refused(self, job: BlockJob, index: int) -> None:
        if self._store.writable():
            self._store.pause_writes()
        _LOG.warning("the store refused block %d of %s", job.first + index, job.request_id)
        self._report.refused[job.request_id] = job.first + index
        self.counts[Count.REFUSED_PUBLICATIONS] += 1

    def close(self) -> None:
        """Start nothing more."""
        self._readers.close()
        self._writer.close()

    def _blocks_of(self, job: BlockJob) -> TenantBlocks:
        return self._store.namespace(self._namespace, job.tenant)
