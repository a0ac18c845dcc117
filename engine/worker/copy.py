"""Blocks of the KV cache as bytes. A block is opaque: its inner order belongs to the attention kernel."""

from collections.abc import Mapping

import numpy as np
import torch


class BlockRows:
    """Byte rows of every layer, aliasing the KV cache.

    numpy copies them: torch's own copy waits for OpenMP threads that spin for the model.

    Args:
        kv_caches: layer name -> tensor ``[num_blocks, ...]`` on the CPU, each block contiguous.
        layers: the order in which a block's file holds the layers.
    """

    def __init__(self, kv_caches: Mapping[str, torch.Tensor], layers: list[str]) -> None:
        self._rows = [_rows(kv_caches[layer]) for layer in layers]
        self.block_bytes = sum(row.shape[1] for row in self._rows)

    def views(self, block_id: int) -> list[memoryview]:
        """The block's bytes, a view a layer; they change when the cache does."""
        return [memoryview(row[block_id]) for row in self._rows]

    def fill(self, block_id: int, payload: memoryview) -> None:
        """Overwrite the block with ``payload`` (``block_bytes`` long)."""
        source = np.frombuffer(payload, dtype=np.uint8)
        start = 0
        for row in self._rows:
            end = start + row.shape[1]
            row[block_id] = source[start:end]
            start = end


def _rows(cache: torch.Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    if cache.device.type != "cpu" or not cache[0].is_contiguous():
        raise RuntimeError(f"a block of {tuple(cache.shape)} on {cache.device} is no contiguous row of bytes")
    flat = cache.view(torch.uint8)
    row_bytes = flat[0].numel()
    stride = cache.stride(0) * cache.element_size()
    if stride != row_bytes:
        raise RuntimeError("blocks of the KV cache are not adjacent")
    rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]] = flat.reshape(cache.shape[0], row_bytes).numpy()
    return rows
