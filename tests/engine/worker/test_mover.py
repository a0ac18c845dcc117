"""The worker's half alone, over real tensors and a real store."""

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.proof.prefix import ROOT_HASH
from engine.store import block
from engine.store.directory import Loaded, PrefixStore, Published
from engine.store.evict import Quotas
from engine.worker import clock, mover
from engine.worker.messages import BlockJob, StepReport
from engine.worker.mover import Load, Mover
from engine.worker.report import Count

NAMESPACE = "ab" * 32
LAYERS = ["layer.0", "layer.1"]
HASHES = tuple(bytes([index]) * 32 for index in range(4))


def cache(seed: int) -> dict[str, torch.Tensor]:
    """KV cache of eight blocks in two layers, as vLLM shapes it on a CPU."""
    generator = torch.Generator().manual_seed(seed)
    shape = (8, 3, 64, 128)
    return {layer: torch.randn(shape, generator=generator).to(torch.bfloat16) for layer in LAYERS}


def job(block_ids: Sequence[int], hashes: Sequence[bytes] = HASHES, first: int = 0) -> BlockJob:
    return BlockJob("request", "ten_a", "chat", first, tuple(block_ids), tuple(hashes))


def loaded(moved: Mover, order: BlockJob) -> None:
    """Load and wait until it has ended."""
    moved.load(order)
    pause = threading.Event()
    for _ in range(2000):
        if moved.ended_loads():
            return
        pause.wait(0.005)
    raise AssertionError("the load never ended")


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return PrefixStore(tmp_path, clock.now_s)


def test_blocks_that_one_worker_saved_another_loads_into_other_rows(store: PrefixStore) -> None:
    mine, theirs = cache(1), cache(2)
    Mover(store, NAMESPACE, mine, LAYERS).save(job([1, 2, 3, 4]))
    reader = Mover(store, NAMESPACE, theirs, LAYERS)
    before = {layer: theirs[layer].clone() for layer in LAYERS}
    loaded(reader, job([7, 0, 6, 5]))
    for layer in LAYERS:
        assert torch.equal(theirs[layer][[7, 0, 6, 5]], mine[layer][[1, 2, 3, 4]])
        assert torch.equal(theirs[layer][[1, 2, 3, 4]], before[layer][[1, 2, 3, 4]])
    assert reader.take_report() == StepReport(loaded={"request": 4})
    assert reader.take_failed_block_ids() == set()
    assert reader.take_report() is None


def test_a_load_ends_at_the_first_block_that_is_not_whole(store: PrefixStore) -> None:
    Mover(store, NAMESPACE, cache(1), LAYERS).save(job([1, 2, 3, 4]))
    file = store.namespace(NAMESPACE, "ten_a").path(HASHES[2])
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    theirs = cache(2)
    reader = Mover(store, NAMESPACE, theirs, LAYERS)
    loaded(reader, job([4, 5, 6, 7]))
    assert reader.take_report() == StepReport(loaded={"request": 2})
    assert reader.take_failed_block_ids() == {6, 7}
    assert torch.equal(theirs["layer.0"][[6, 7]], cache(2)["layer.0"][[6, 7]])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": lambda file: file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1])),
    "short": lambda file: os.truncate(file, file.stat().st_size - 1),
    "empty": lambda file: os.truncate(file, 0),
    "too long": lambda file: file.write_bytes(file.read_bytes() + b"!"),
    "missing": Path.unlink,
    "another block": lambda file: shutil.copy(next(each for each in siblings(file) if each != file), file),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


def siblings(file: Path) -> list[Path]:
    return sorted(file.parents[1].rglob("*.kv"))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_file_that_is_not_the_block_ends_its_load_and_no_row_is_touched_by_it(
    store: PrefixStore, damage: Callable[[Path], object]
) -> None:
    Mover(store, NAMESPACE, cache(1), LAYERS).save(job([1, 2, 3, 4]))
    damage(store.namespace(NAMESPACE, "ten_a").path(HASHES[2]))
    theirs = cache(2)
    reader = Mover(store, NAMESPACE, theirs, LAYERS)
    loaded(reader, job([4, 5, 6, 7]))
    assert reader.take_report() == StepReport(loaded={"request": 2})
    assert reader.take_failed_block_ids() == {6, 7}
    for layer in LAYERS:
        assert torch.equal(theirs[layer][4:6], cache(1)[layer][1:3])
        assert torch.equal(theirs[layer][6:], cache(2)[layer][6:])


def test_blocks_of_another_engine_in_the_same_directory_are_not_found(store: PrefixStore) -> None:
    """Another model, vLLM or block size is another namespace; by mistake in the same one it is corrupt."""
    Mover(store, "cd" * 32, cache(1), LAYERS).save(job([1, 2, 3, 4]))
    smaller = {layer: tensor[:, :, :32].contiguous() for layer, tensor in cache(1).items()}
    reader = Mover(store, NAMESPACE, cache(2), LAYERS)
    loaded(reader, job([4, 5, 6, 7]))
    assert reader.take_report() == StepReport(loaded={"request": 0})
    Mover(store, NAMESPACE, smaller, LAYERS).save(job([1, 2, 3, 4]))
    loaded(reader, job([4, 5, 6, 7]))
    assert reader.take_report() == StepReport(loaded={"request": 0})
    assert reader.take_failed_block_ids() == {4, 5, 6, 7}


def test_what_finds_no_room_is_counted_and_what_is_owed_apart(tmp_path: Path) -> None:
    file_bytes = 184 + Mover(PrefixStore(tmp_path, clock.now_s), NAMESPACE, cache(1), LAYERS).block_bytes
    now = [clock.now_s()]
    store = PrefixStore(tmp_path, lambda: now[0], Quotas(file_bytes))
    writer = Mover(store, NAMESPACE, cache(1), LAYERS)
    for index in (0, 1):
        now[0] += 1
        writer.save(job([1], HASHES[index : index + 1]))
    now[0] += 1
    writer.save(job([1], HASHES[:1]))
    assert writer.counts[Count.OWED_WITHOUT_ROOM] == 1
    assert writer.counts[Count.FULL_PUBLICATIONS] == 0
    store.namespace(NAMESPACE, "ten_a").hold(HASHES[1:2])
    writer.save(job([1], HASHES[3:]))
    assert writer.counts[Count.FULL_PUBLICATIONS] == 1


def test_all_that_is_corrupt_behind_a_corrupt_block_is_found_by_the_same_load(store: PrefixStore) -> None:
    writer = Mover(store, NAMESPACE, cache(1), LAYERS)
    writer.save(job([1, 2, 3, 4]))
    for index in (1, 3):
        store.namespace(NAMESPACE, "ten_a").path(HASHES[index]).write_bytes(b"garbage")
    reader = Mover(store, NAMESPACE, cache(2), LAYERS)
    loaded(reader, job([4, 5, 6, 7]))
    assert reader.take_report() == StepReport(loaded={"request": 1})
    assert reader.counts[Count.QUARANTINED_BLOCKS] == 2
    writer.save(job([1, 2, 3, 4]))
    loaded(reader, job([4, 5, 6, 7]))
    assert reader.take_report() == StepReport(loaded={"request": 4})


def test_only_missing_blocks_are_written(store: PrefixStore) -> None:
    first, second = cache(1), cache(2)
    Mover(store, NAMESPACE, first, LAYERS).save(job([0, 1], HASHES[:2]))
    Mover(store, NAMESPACE, second, LAYERS).save(job([0, 1, 2, 3]))
    theirs = cache(3)
    loaded(Mover(store, NAMESPACE, theirs, LAYERS), job([0, 1, 2, 3]))
    assert torch.equal(theirs["layer.1"][:2], first["layer.1"][:2])
    assert torch.equal(theirs["layer.1"][2:4], second["layer.1"][2:4])


def test_how_long_steps_wait_for_publications_is_counted(store: PrefixStore) -> None:
    writer = Mover(store, NAMESPACE, cache(1), LAYERS)
    before_s = clock.monotonic_s()
    writer.save(job([0, 1], HASHES[:2]))
    assert 0 < writer.counts[Count.PUBLISH_SECONDS] <= clock.monotonic_s() - before_s


def test_what_the_disk_refuses_is_reported_from_its_first_block_on(tmp_path: Path) -> None:
    blocked = tmp_path / "store"
    blocked.write_text("no folder")
    writer = Mover(PrefixStore(blocked, clock.now_s), NAMESPACE, cache(1), LAYERS)
    writer.save(job([0, 1], HASHES[:2], first=5))
    assert writer.take_report() == StepReport(refused={"request": 5})


def test_every_block_names_the_one_before_it(store: PrefixStore) -> None:
    writer = Mover(store, NAMESPACE, cache(1), LAYERS)
    writer.save(job([1, 2], HASHES[:2]))
    writer.save(BlockJob("request", "ten_a", "chat", 2, (3, 4), HASHES[2:], HASHES[1]))
    blocks = store.namespace(NAMESPACE, "ten_a")
    parents = [block.read_header(blocks.path(block_hash)).parent for block_hash in HASHES]
    assert parents == [ROOT_HASH, *HASHES[:3]]


def test_a_block_that_finds_no_room_is_lost_and_holds_nobody_up(tmp_path: Path) -> None:
    writer = Mover(PrefixStore(tmp_path, clock.now_s, Quotas(100)), NAMESPACE, cache(1), LAYERS)
    writer.save(job([1, 2, 3, 4]))
    assert writer.take_report() is None
    assert not list(tmp_path.rglob("*.kv"))


class StuckBlocks:
    """A disk that does not answer before it is let go."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.left = threading.Event()

    def load(self, block_hash: bytes, buffer: memoryview, retention_class: str) -> Loaded:
        self.release.wait(30)
        buffer[:] = bytes(len(buffer))
        return Loaded.LOADED

    def renew(self, block_hash: bytes, retention_class: str) -> bool:
        self.release.wait(30)
        return True

    def publish_sealed(self, *_: Any) -> Published:
        return Published.WRITTEN


def test_an_abandoned_load_writes_nothing_into_rows_that_belong_to_others(store: PrefixStore) -> None:
    kv_caches, blocks = cache(1), StuckBlocks()
    rows = mover.rows_of(kv_caches, LAYERS)
    load = Load(job([3, 4], HASHES[:2]))
    thread = threading.Thread(target=load.run, args=(blocks, rows))
    thread.start()
    load.end()
    blocks.release.set()
    thread.join(10)
    assert load.loaded_blocks == 0
    assert load.failed_block_ids == (3, 4)
    assert torch.equal(kv_caches["layer.0"], cache(1)["layer.0"])


class StuckStore:
    def __init__(self) -> None:
        self.blocks = StuckBlocks()
        self.paused = False

    def namespace(self, digest: str, tenant: str) -> StuckBlocks:
        return self.blocks

    def writable(self) -> bool:
        return not self.paused

    def pause_writes(self) -> None:
        self.paused = True


def test_a_disk_that_does_not_answer_costs_a_step_its_deadline_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mover, "_SAVE_DEADLINE_S", 0.05)
    store: Any = StuckStore()
    writer = Mover(store, NAMESPACE, cache(1), LAYERS)
    writer.save(job([0, 1], HASHES[:2]))
    assert writer.take_report() == StepReport(refused={"request": 0})
    assert store.paused
    store.blocks.release.set()
    writer.close()


def test_reports_of_several_workers_agree_on_the_least() -> None:
    one = StepReport(loaded={"a": 3, "b": 1}, refused={"a": 7})
    other = StepReport(loaded={"a": 2}, refused={"a": 9, "c": 0})
    assert one.aggregate(other) == StepReport(loaded={"a": 2, "b": 1}, refused={"a": 7, "c": 0})
