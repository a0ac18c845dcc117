"""The sweeper beside a worker: a process of its own, on a real directory."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from engine.store.directory import PrefixStore, Published, TenantBlocks
from engine.store.evict import Quotas
from engine.worker import clock, keeper
from engine.worker.keeper import Keeper, sweep_once

NAMESPACE = "ab" * 32
FILE_BYTES = 186


def hashes(count: int) -> list[bytes]:
    return [bytes([index + 1]) * 32 for index in range(count)]


def publish(blocks: TenantBlocks, block_hash: bytes) -> Published:
    return blocks.publish(block_hash, [memoryview(b"kv")], "chat")


def until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(4000):
        if true():
            return
        pause.wait(0.005)
    raise AssertionError("it never came true")


def test_what_is_promised_no_longer_goes_while_the_worker_serves(tmp_path: Path) -> None:
    store = PrefixStore(tmp_path, clock.now_s)
    blocks = store.namespace(NAMESPACE, "ten_a")
    for block_hash in hashes(2):
        publish(blocks, block_hash)
    over = blocks.path(hashes(1)[0])
    os.utime(over, (1, 1))
    beside = Keeper(store)
    beside.start()
    until(lambda: beside.expired_blocks == 1)
    beside.close()
    assert not over.exists()
    assert blocks.match(hashes(2)[1:]).blocks == 1


def test_what_its_child_counted_the_worker_goes_by(tmp_path: Path) -> None:
    """Written without a quota, so that nobody has counted; the child evicts and leaves what it found."""
    unlimited = PrefixStore(tmp_path, clock.now_s).namespace(NAMESPACE, "ten_a")
    for index, block_hash in enumerate(hashes(4)):
        publish(unlimited, block_hash)
        end_s = clock.now_s() + 1000 + index
        os.utime(unlimited.path(block_hash), (end_s, end_s))
    store = PrefixStore(tmp_path, clock.now_s, Quotas(3 * FILE_BYTES))
    beside = Keeper(store)
    beside.start()
    until(lambda: beside.evicted_blocks == 1)
    beside.close()
    blocks = store.namespace(NAMESPACE, "ten_a")
    assert publish(blocks, bytes([9]) * 32) is Published.WRITTEN
    assert [blocks.path(each).exists() for each in hashes(4)] == [False, False, True, True]


def test_workers_of_one_directory_take_turns(tmp_path: Path) -> None:
    assert sweep_once(tmp_path, Quotas(), fresh_s=150) is not None
    assert sweep_once(tmp_path, Quotas(), fresh_s=150) is None
    assert sweep_once(tmp_path, Quotas(), fresh_s=0) is not None


def test_a_failed_sweep_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "store"
    store = PrefixStore(root, clock.now_s)
    blocks = store.namespace(NAMESPACE, "ten_a")
    publish(blocks, hashes(1)[0])
    os.utime(blocks.path(hashes(1)[0]), (1, 1))
    store.evictor.quotas = Quotas("no number")  # type: ignore[arg-type]  # so that the first child fails
    beside = Keeper(store, every_s=0.01)
    beside.start()
    until(lambda: "sweeping the store failed" in caplog.text)
    store.evictor.quotas = Quotas()
    until(lambda: beside.expired_blocks == 1 or not blocks.path(hashes(1)[0]).exists())
    beside.close()


def test_the_child_has_the_lowest_priority_and_dies_with_its_worker(tmp_path: Path) -> None:
    """A killed worker leaves nobody behind. The store is so large that the child is met at work."""
    for index in range(2000):
        (tmp_path / NAMESPACE / f"ten_{index}" / "aa").mkdir(parents=True)
    code = f"""
import sys, threading
from pathlib import Path
from engine.store.directory import PrefixStore
from engine.worker import clock
from engine.worker.keeper import Keeper
Keeper(PrefixStore(Path({str(tmp_path)!r}), clock.now_s)).start()
threading.Event().wait(60)
"""
    root = Path(keeper.__file__).resolve().parents[2]
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=root)
    family = psutil.Process(worker.pid)
    until(lambda: any(child.nice() == 19 for child in family.children()))
    (child,) = family.children()
    child.suspend()  # only the kernel ends it now
    worker.send_signal(signal.SIGKILL)
    worker.wait(10)
    _, orphans = psutil.wait_procs([child], timeout=10)
    for orphan in orphans:
        orphan.kill()
    assert not orphans


def test_orders_of_a_parent_that_is_gone_are_not_followed(tmp_path: Path) -> None:
    orders = {"root": str(tmp_path), "quotas": {}, "fresh_s": 0, "parent": 1}
    command = [sys.executable, "-m", "engine.worker.keeper", json.dumps(orders)]
    root = Path(keeper.__file__).resolve().parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, check=True)
    assert ended.stdout == b""
    assert not (tmp_path / "swept").exists()
