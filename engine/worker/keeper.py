"""Sweeps the store while the worker serves: at lowest priority, in a thread that rests after each folder."""

import contextlib
import logging
import os
import threading
from typing import Final

from engine.store.directory import PrefixStore
from engine.worker import clock

_LOG: Final = logging.getLogger("vllm.kvitto.keeper")
_EVERY_S: Final = 300.0
_NICENESS: Final = 19
# It works two thirds of its time: a million blocks are to be swept within a minute.
_REST_A_WORK: Final = 0.5


class Keeper:
    """Sweeps now and then until it is closed.

    Args:
        store: the store whose writer counts by what a sweep finds.
        every_s: seconds between the end of a sweep and the next one.
    """

    def __init__(self, store: PrefixStore, every_s: float = _EVERY_S) -> None:
        self._store = store
        self._every_s = every_s
        self._closed = threading.Event()
        self.expired_blocks = 0
        self._worked_from_s = 0.0
        self._thread = threading.Thread(target=self._run, name="kvitto-keeper", daemon=True)

    def start(self) -> None:
        """Begin with a sweep."""
        self._thread.start()

    def close(self) -> None:
        """Begin nothing more; a sweep that is under way ends soon, since it rests no more."""
        self._closed.set()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            # Of this thread alone, on Linux.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._closed.is_set():
            self._worked_from_s = clock.monotonic_s()
            try:
                report = self._store.sweep(clock.now_s(), self._rest)
                self.expired_blocks += report.expired
                _LOG.info("swept the store: %s", report)
            except Exception:
                _LOG.exception("sweeping the store failed")
            self._closed.wait(self._every_s)

    def _rest(self) -> None:
        worked_s = clock.monotonic_s() - self._worked_from_s
        self._closed.wait(min(worked_s * _REST_A_WORK, 1.0))
        self._worked_from_s = clock.monotonic_s()
