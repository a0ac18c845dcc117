"""Rows of a KV cache: on a CPU they alias it, an accelerator stages them, here one that takes notes."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.worker.copy import HostRows, StagedRows, _byte_rows, rows_of

LAYERS = ["layer.0", "layer.1"]


def cache() -> dict[str, torch.Tensor]:
    """Eight blocks in two layers of different widths."""
    return {
        layer: torch.arange(8 * width, dtype=torch.int16).reshape(8, width).clone()
        for layer, width in zip(LAYERS, (5, 3), strict=True)
    }


def bytes_of(kv_caches: dict[str, torch.Tensor], block_id: int) -> bytes:
    return b"".join(kv_caches[layer][block_id].numpy().tobytes() for layer in LAYERS)


class NotedStream:
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def wait_stream(self, other: Any) -> None:
        self.notes.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.notes.append(f"{self.name} is done")


class NotedDevice:
    """A device whose copies are done at once, and which notes in what order it was asked."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.streams = 0

    def stream(self) -> NotedStream:
        self.streams += 1
        return NotedStream(f"copies {self.streams}", self.notes)

    def current(self) -> NotedStream:
        return NotedStream("model", self.notes)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self.notes.append(f"copy on {stream.name}")
        yield

    def pinned(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)


def staged(kv_caches: dict[str, torch.Tensor]) -> tuple[StagedRows, NotedDevice]:
    device = NotedDevice()
    return StagedRows([_byte_rows(kv_caches[layer]) for layer in LAYERS], device), device


def test_rows_of_a_cpu_alias_the_cache() -> None:
    kv_caches = cache()
    rows = rows_of(kv_caches, LAYERS)
    assert isinstance(rows, HostRows)
    views = rows.views(3)
    kv_caches["layer.1"][3] = 7
    assert b"".join(views) == bytes_of(kv_caches, 3)


@pytest.mark.parametrize("place", ["host", "staged"])
def test_a_block_that_is_read_and_filled_elsewhere_is_the_same(place: str) -> None:
    kv_caches = cache()
    rows = rows_of(kv_caches, LAYERS) if place == "host" else staged(kv_caches)[0]
    payload = b"".join(rows.views(3))
    assert len(payload) == rows.block_bytes == 16
    assert payload == bytes_of(kv_caches, 3)
    rows.fill(6, memoryview(payload))
    assert bytes_of(kv_caches, 6) == payload
    untouched = [index for index in range(8) if index != 6]
    assert all(bytes_of(kv_caches, index) == bytes_of(cache(), index) for index in untouched)


def test_staged_copies_wait_for_the_model_and_end_before_anyone_reads() -> None:
    rows, device = staged(cache())
    rows.views(1)
    rows.fill(2, memoryview(bytes(16)))
    save = ["copies 1 waits for model", "copy on copies 1", "copies 1 is done"]
    assert device.notes == save + [note.replace("copies 1", "copies 2") for note in save]


def test_staged_loads_of_several_threads_share_no_buffer() -> None:
    kv_caches = cache()
    rows, device = staged(kv_caches)

    def fill(block_id: int) -> None:
        for _ in range(50):
            rows.fill(block_id, memoryview(bytes([block_id]) * 16))

    threads = [threading.Thread(target=fill, args=(block_id,)) for block_id in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(bytes_of(kv_caches, block_id) == bytes([block_id]) * 16 for block_id in (1, 2, 3))
    assert device.streams == 3


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(4, 6).transpose(0, 1), torch.zeros(4, 6)[:, :3], torch.zeros(2, 4, 6).transpose(0, 1)],
    ids=["crossed", "apart", "keys and values apart"],
)
def test_blocks_that_are_no_rows_of_bytes_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="no contiguous row"):
        rows_of({"layer.0": tensor}, ["layer.0"])
