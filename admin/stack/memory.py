"""How much memory a shape needs here, said and checked before anything starts."""

from pathlib import Path
from typing import Final, get_args

import psutil

from admin.stack.errors import MemoryShort
from engine.shapes.shape import Shape
from engine.shapes.worker import KV_CACHE_BYTES, Role

GIB: Final = 2**30
# Measured resident, shared pages once (`make bench`): a worker without its KV cache but with a small model's
# weights; then Postgres, Valkey, gateway, jobs and supervisor together.
WORKER_BYTES: Final = int(1.7 * GIB)
REST_BYTES: Final = int(0.5 * GIB)
# Less than this share of the estimate is clearly too little, whatever the estimate leaves out.
SHARE_MIN: Final = 0.8
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def needed_bytes(shape: Shape, weights_bytes: int = 0) -> int:
    """About what a stack of this shape comes to hold; each worker has weights of its own."""
    return REST_BYTES + len(shape.seats) * (WORKER_BYTES + KV_CACHE_BYTES + weights_bytes)


def weights_bytes(model: str | None) -> int:
    """What the weights of ``--model`` weigh; 0 where that is not known before they are fetched."""
    folder = Path(model) if model is not None else None
    if folder is None or not folder.is_dir():
        return 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def available_bytes() -> int:
    """What may be taken now: free memory and caches that give way, within the limit of this control group."""
    available = int(psutil.virtual_memory().available)
    try:
        return min(available, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # none, or "max"
        return available


def check(shape: Shape, needed: int, available: int) -> str:
    """Say in words what a shape needs, or that it is too much.

    Raises:
        MemoryShort: clearly less is available.
    """
    workers = len(shape.seats)
    if available < SHARE_MIN * needed:
        raise MemoryShort(workers, needed, available)
    kinds = ", ".join(
        f"{count} {role if role != 'both' else 'mono'}"
        for role in get_args(Role)
        if (count := sum(seat.role == role for seat in shape.seats))
    )
    return f"workers: {kinds}; about {needed / GIB:.1f} of {available / GIB:.1f} GiB available"
