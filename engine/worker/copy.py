"""Blocks of the KV cache as bytes. A block is opaque: its inner order belongs to the attention kernel.

A load reads a block's file into a buffer of its own and copies it from there into the cache. Reading into
the cache itself would save that copy, a quarter of a load's time on a CPU. But a read cannot be stopped:
after its deadline the rows belong to someone else, and a disk that answers late would write into them.
"""

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import numpy as np
import torch


class Rows(Protocol):
    """Blocks as byte rows of every layer, in the order in which a block's file holds the layers."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        ...

    def views(self, block_id: int) -> list[memoryview]:
        """The block's bytes as the last forward pass left them, in any number of pieces.

        They may change when the cache does.
        """
        ...

    def fill(self, block_id: int, payload: memoryview) -> None:
        """Overwrite the block with ``payload`` (``block_bytes`` long); done when it returns."""
        ...


def rows_of(kv_caches: Mapping[str, torch.Tensor], layers: list[str]) -> Rows:
    """Rows of a KV cache where it lies.

    Args:
        kv_caches: layer name -> tensor ``[num_blocks, ...]``, each block contiguous, blocks adjacent.
        layers: the order in which a block's file holds the layers.

    Raises:
        RuntimeError: a layer's blocks are not rows of bytes.
    """
    tensors = [_byte_rows(kv_caches[layer]) for layer in layers]
    device = tensors[0].device
    return HostRows(tensors) if device.type == "cpu" else StagedRows(tensors, Accelerator.of(device))


class HostRows:
    """Rows in the memory of a CPU, which alias the cache.

    numpy copies them: torch's own copy waits for OpenMP threads that spin for the model.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._rows: list[np.ndarray[Any, np.dtype[np.uint8]]] = [tensor.numpy() for tensor in tensors]
        self.block_bytes = sum(row.shape[1] for row in self._rows)

    def views(self, block_id: int) -> list[memoryview]:
        """A view a layer."""
        return [memoryview(row[block_id]) for row in self._rows]

    def fill(self, block_id: int, payload: memoryview) -> None:
        """Copy layer by layer."""
        source = np.frombuffer(payload, dtype=np.uint8)
        start = 0
        for row in self._rows:
            end = start + row.shape[1]
            row[block_id] = source[start:end]
            start = end


class Stream(Protocol):
    """A queue of copies on a device, as torch gives it."""

    def wait_stream(self, other: Any) -> None:
        """Begin what comes next when the other has done what it was given so far."""
        ...

    def synchronize(self) -> None:
        """Wait until all is done."""
        ...


class Device(Protocol):
    """What staging asks of a platform: `torch.cuda` and `torch.npu` both have it."""

    def stream(self) -> Stream:
        """A new stream."""
        ...

    def current(self) -> Stream:
        """The stream of the calling thread: in the model's thread, the one that the model runs on."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Put copies on a stream."""
        ...

    def pinned(self, size: int) -> torch.Tensor:
        """Bytes of host memory that the device copies from and to by itself."""
        ...


class Accelerator:
    """torch's module of a device, `torch.cuda` for NVIDIA, `torch.npu` for Ascend (torch_npu brings it)."""

    def __init__(self, module: Any) -> None:
        self._module = module

    @classmethod
    def of(cls, device: torch.device) -> "Accelerator":
        """The platform that a tensor lies on."""
        return cls(torch.get_device_module(device))

    def stream(self) -> Stream:
        """A new stream."""
        stream: Stream = self._module.Stream()
        return stream

    def current(self) -> Stream:
        """The calling thread's stream."""
        stream: Stream = self._module.current_stream()
        return stream

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Put copies on a stream."""
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def pinned(self, size: int) -> torch.Tensor:
        """Pinned host memory."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class StagedRows:
    """Rows in the memory of an accelerator, copied through pinned host memory on streams of their own.

    UNTRIED ON HARDWARE: tests run it over CPU tensors and a device that only takes notes.

    Copies wait for what the model's stream was given before them: saves see the pass that computed the block,
    loads let a pass end that still reads the rows' former content. Each thread has its own stream and buffer;
    a buffer that is used again while a write is under way makes that file fail its checksum, no more.
    Make it in the thread that runs the model.
    """

    def __init__(self, tensors: list[torch.Tensor], device: Device) -> None:
        self._tensors = tensors
        self._device = device
        self._model = device.current()
        self._mine = threading.local()
        self.block_bytes = sum(tensor.shape[1] for tensor in tensors)

    def views(self, block_id: int) -> list[memoryview]:
        """A copy of the block, whole."""
        stream, pinned = self._staging("save")
        stream.wait_stream(self._model)
        with self._device.on(stream):
            for tensor, part in zip(self._tensors, self._parts(pinned), strict=True):
                part.copy_(tensor[block_id], non_blocking=True)
        stream.synchronize()
        return [memoryview(pinned.numpy())]

    def fill(self, block_id: int, payload: memoryview) -> None:
        """Copy to the device and wait for it."""
        stream, pinned = self._staging("load")
        pinned.numpy()[:] = np.frombuffer(payload, dtype=np.uint8)
        stream.wait_stream(self._model)
        with self._device.on(stream):
            for tensor, part in zip(self._tensors, self._parts(pinned), strict=True):
                tensor[block_id].copy_(part, non_blocking=True)
        stream.synchronize()

    def _parts(self, pinned: torch.Tensor) -> list[torch.Tensor]:
        return list(pinned.split([tensor.shape[1] for tensor in self._tensors]))

    def _staging(self, purpose: str) -> tuple[Stream, torch.Tensor]:
        staging: tuple[Stream, torch.Tensor] | None = getattr(self._mine, purpose, None)
        if staging is None:
            staging = self._device.stream(), self._device.pinned(self.block_bytes)
            setattr(self._mine, purpose, staging)
        return staging


_MESSAGE: Final = "a block of {shape} on {device} is no contiguous row of bytes beside the next one"


def _byte_rows(cache: torch.Tensor) -> torch.Tensor:
    """The cache as ``[num_blocks, bytes]``, aliasing it."""
    row_bytes = cache[0].numel() * cache.element_size()
    if not cache[0].is_contiguous() or cache.stride(0) * cache.element_size() != row_bytes:
        raise RuntimeError(_MESSAGE.format(shape=tuple(cache.shape), device=cache.device))
    return cache.view(torch.uint8).reshape(cache.shape[0], row_bytes)
