"""Questions to a disk that may never answer, asked from threads that may not wait for it."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
_LOG: Final = logging.getLogger("vllm.kvitto.patience")


class Patience:
    """Runs calls in a few threads and waits for each no longer than it may."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def start(self, call: Callable[[], T]) -> "Future[T]":
        """Run a call in a thread."""
        return self._pool.submit(call)

    def ask(self, call: Callable[[], T], wait_s: float, otherwise: T) -> T:
        """The call's result; ``otherwise`` if it takes longer than ``wait_s`` or fails."""
        return answer(self.start(call), wait_s, otherwise)

    def close(self) -> None:
        """Start nothing more; a call that hangs is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def answer(future: "Future[T]", wait_s: float, otherwise: T) -> T:
    """A future's result; ``otherwise`` if it is not there within ``wait_s`` or the call failed."""
    try:
        return future.result(timeout=wait_s)
    except TimeoutError:
        future.cancel()
        _LOG.warning("the prefix store did not answer within %.1f s", wait_s)
    except Exception:
        _LOG.exception("the prefix store failed")
    return otherwise
