"""Writers that are killed without warning, at any byte, leave nothing that is ever read as a block."""

import functools
import hashlib
import itertools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from engine.store import block
from engine.store.directory import Loaded, PrefixStore
from engine.store.evict import Quotas
from engine.store.places import places_of
from tests.engine.store.conftest import NAMESPACE

KILLS = 200
WRITERS = 3
BLOCKS = 12
PAYLOAD_BYTES = 200_000


def name_of(index: int) -> bytes:
    return bytes([index + 1]) * 32


@functools.cache
def payload_of(index: int) -> bytes:
    return hashlib.shake_128(b"%d" % index).digest(PAYLOAD_BYTES)


def in_pieces(descriptor: int, views: Sequence[memoryview]) -> None:
    """Many calls a block, so that a kill falls between two of them."""
    for view in views:
        for start in range(0, len(view), 4096):
            os.write(descriptor, view[start : start + 4096])


def write_for_ever(root: Path, writer: int, ready: int) -> None:
    """Publish and quarantine as fast as can be; every other writer evicts what it can."""
    block._write_all = in_pieces
    quotas = Quotas(BLOCKS * PAYLOAD_BYTES // 2 if writer % 2 else None)
    store = PrefixStore(root, lambda: int(time.time()), quotas)
    blocks = store.namespace(NAMESPACE, "ten_a")
    os.write(ready, b"!")
    for turn in itertools.count():
        index = (turn * 5 + writer) % BLOCKS
        blocks.publish(name_of(index), [memoryview(payload_of(index))], ("chat", "agent")[turn % 2])
        if turn % 7 == 0:
            blocks.quarantine(name_of(index))


class Writers:
    """So many processes that write; whoever is killed is followed by another."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._started = 0
        self.living = [self._start() for _ in range(WRITERS)]

    def _start(self) -> int:
        self._started += 1
        begun, ready = os.pipe()
        child = os.fork()
        if not child:
            try:
                write_for_ever(self._root, self._started, ready)
            finally:
                os._exit(1)
        os.close(ready)
        assert os.read(begun, 1) == b"!"
        os.close(begun)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for index in range(WRITERS):
            self.kill(index, again=False)

    def kill(self, index: int, again: bool = True) -> None:
        """Kill one, and let another take its place."""
        os.kill(self.living[index], signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(self.living[index], 0)[1]) == signal.SIGKILL
        if again:
            self.living[index] = self._start()


def test_200_kills_leave_no_block_that_is_wrong(tmp_path: Path) -> None:
    root = tmp_path / "store"
    reader = PrefixStore(root, lambda: int(time.time()))
    blocks = reader.namespace(NAMESPACE, "ten_a")
    buffer = bytearray(PAYLOAD_BYTES)
    loaded = 0
    with Writers(root) as writers:
        for kill in range(KILLS - WRITERS):
            writers.kill(kill % WRITERS)
            for index in (each % BLOCKS for each in range(kill, kill + 4)):
                outcome = blocks.load(name_of(index), memoryview(buffer), "chat")
                assert outcome is not Loaded.CORRUPT
                assert outcome is Loaded.MISSING or buffer == payload_of(index)
                loaded += outcome is Loaded.LOADED
    assert loaded, "nothing was ever read"
    assert reader.check_integrity() == []
    leftovers = [path for path in root.rglob("*.tmp") if path.is_file()]
    assert leftovers, "no kill has met a write"
    reader.sweep(int(time.time()) + 120)
    assert not [path for path in root.rglob("*") if path.suffix in (".tmp", ".going")]
    assert reader.check_integrity() == []
    for index in range(BLOCKS):
        if blocks.match([name_of(index)]).blocks:
            assert blocks.load(name_of(index), memoryview(buffer), "chat") is Loaded.LOADED
            assert buffer == payload_of(index)


def test_a_writer_killed_at_any_byte_of_a_block_leaves_a_miss(tmp_path: Path) -> None:
    """Stopped before the first byte, in the header, at its end, in the payload, and before the rename."""
    store = PrefixStore(tmp_path, lambda: int(time.time()))
    blocks = store.namespace(NAMESPACE, "ten_a")
    whole = 184 + PAYLOAD_BYTES
    for index, stop_at in enumerate((0, 1, 100, 184, 185, whole - 1, whole)):
        child = os.fork()
        if not child:
            _publish_and_die(blocks.path(name_of(index)).parents[3], index, stop_at)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert blocks.match([name_of(index)]).blocks == 0
        assert blocks.load(name_of(index), memoryview(bytearray(PAYLOAD_BYTES)), "chat") is Loaded.MISSING
    sizes = sorted(path.stat().st_size for path in tmp_path.rglob("*.tmp"))
    assert sizes == [0, 1, 100, 184, 185, whole - 1, whole]
    assert store.check_integrity() == []
    assert store.sweep(int(time.time()) + 120).temporary == len(sizes)
    assert [list(place.blocks()) for place in places_of(tmp_path)] == [[]]


def _publish_and_die(root: Path, index: int, stop_at: int) -> None:
    """In a child: write so many bytes of the block, then be killed."""

    def stopping(descriptor: int, views: list[memoryview]) -> None:
        os.write(descriptor, b"".join(views)[:stop_at])
        os.kill(os.getpid(), signal.SIGKILL)

    block._write_all = stopping
    blocks = PrefixStore(root, lambda: int(time.time())).namespace(NAMESPACE, "ten_a")
    blocks.publish(name_of(index), [memoryview(payload_of(index))], "chat")
    os._exit(1)
