"""Ending the tasks that run as long as the process does."""

import asyncio
from typing import Any, Final

AGAIN_S: Final = 0.05


async def stop(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task until it has ended: redis-py swallows a cancellation that meets it while it connects."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN_S)
