"""The sweeper beside a worker, on a real directory."""

import os
import threading
from pathlib import Path

from engine.store.directory import PrefixStore, SweepReport
from engine.worker import clock
from engine.worker.keeper import Keeper

NAMESPACE = "ab" * 32


def test_what_is_promised_no_longer_goes_while_the_worker_serves(tmp_path: Path) -> None:
    store = PrefixStore(tmp_path, clock.now_s)
    blocks = store.namespace(NAMESPACE, "ten_a")
    for index in (1, 2):
        blocks.publish(bytes([index]) * 32, [memoryview(b"kv")], "chat")
    over = blocks.path(bytes([1]) * 32)
    os.utime(over, (1, 1))
    keeper = Keeper(store)
    keeper.start()
    pause = threading.Event()
    for _ in range(2000):
        if not over.exists():
            break
        pause.wait(0.005)
    keeper.close()
    assert not over.exists()
    assert blocks.match([bytes([2]) * 32]).blocks == 1


class FailingStore:
    """A disk that fails once and has nothing to sweep after that."""

    def __init__(self) -> None:
        self.sweeps = 0
        self.swept = threading.Event()

    def sweep(self, *_: object) -> SweepReport:
        self.sweeps += 1
        if self.sweeps == 1:
            raise OSError("the disk is gone")
        self.swept.set()
        return SweepReport()


def test_a_failed_sweep_is_tried_again() -> None:
    store = FailingStore()
    keeper = Keeper(store, every_s=0.01)  # type: ignore[arg-type]  # as much of a store as a keeper asks for
    keeper.start()
    assert store.swept.wait(10)
    keeper.close()
