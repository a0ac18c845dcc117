"""Sweeps the store while the worker serves, in a child process of lowest priority.

``python -m engine.worker.keeper ORDERS`` sweeps once and prints what went. What it counted it leaves
in the store, where all workers read it (`engine.store.survey`); its memory ends with it. Workers of one
directory take turns.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from engine.store.directory import PrefixStore
from engine.store.evict import Quotas
from engine.worker import clock
from engine.worker.lineage import die_with_parent

_LOG: Final = logging.getLogger("vllm.kvitto.keeper")
_EVERY_S: Final = 300.0
_STARVED_S: Final = 10.0
_NICENESS: Final = 19
# It works two thirds of its time, also on an idle machine: a disk has no priorities.
_REST_A_WORK: Final = 0.5
_MARK: Final = "swept"


class Keeper:
    """Sweeps now and then until it is closed, and sooner when the writer knows no more who would go first.

    Args:
        store: the worker's store.
        every_s: seconds between two sweeps.
    """

    def __init__(self, store: PrefixStore, every_s: float = _EVERY_S) -> None:
        self._store = store
        self._every_s = every_s
        self._closed = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self.expired_blocks = 0
        self.evicted_blocks = 0
        # The child dies with the thread that starts it: this one lives as long as the worker.
        self._thread = threading.Thread(target=self._run, name="kvitto-keeper", daemon=True)

    def start(self) -> None:
        """Begin with a sweep."""
        self._thread.start()

    def close(self) -> None:
        """Begin nothing more, and break off a sweep that is under way: the next one does its work."""
        self._closed.set()
        self._store.evictor.starved.set()
        child = self._child
        if child is not None:
            child.kill()

    def _run(self) -> None:
        starved, fresh_s = self._store.evictor.starved, _STARVED_S
        while not self._closed.is_set():
            starved.clear()
            try:
                self._sweep(fresh_s)
            except Exception:
                _LOG.exception("sweeping the store failed")
            self._closed.wait(min(self._every_s, _STARVED_S))
            asked = starved.wait(max(0.0, self._every_s - _STARVED_S))
            fresh_s = _STARVED_S if asked else self._every_s / 2

    def _sweep(self, fresh_s: float) -> None:
        quotas = asdict(self._store.evictor.quotas)
        orders = {"root": str(self._store.root), "quotas": quotas, "fresh_s": fresh_s, "parent": os.getpid()}
        command = [sys.executable, "-m", __name__, json.dumps(orders)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as self._child:
            told, _ = self._child.communicate()
        if self._child.returncode and not self._closed.is_set():
            raise RuntimeError(f"the sweep ended with status {self._child.returncode}")
        report = json.loads(told or "null")
        if report is not None:
            self.expired_blocks += report["expired"]
            self.evicted_blocks += report["evicted"]
            _LOG.info("swept the store: %s", report)


class Rest:
    """Called after each folder, it rests for a part of the time that the folder took."""

    def __init__(self) -> None:
        self._worked_from_s = clock.monotonic_s()
        self._never = threading.Event()

    def __call__(self) -> None:
        """Rest a while."""
        worked_s = clock.monotonic_s() - self._worked_from_s
        self._never.wait(min(worked_s * _REST_A_WORK, 1.0))
        self._worked_from_s = clock.monotonic_s()


def sweep_once(root: Path, quotas: Quotas, fresh_s: float) -> dict[str, Any] | None:
    """Sweep, and say what went; None when another worker began to within the last ``fresh_s`` seconds."""
    now_s, mark = clock.now_s(), root / _MARK
    with contextlib.suppress(OSError):
        if abs(now_s - mark.stat().st_mtime) < fresh_s:
            return None
    with contextlib.suppress(OSError):
        mark.touch()
    return asdict(PrefixStore(root, clock.now_s, quotas).sweep(now_s, Rest()))


def main(words: str) -> None:
    """Sweep once as the orders say, for as long as the parent lives."""
    orders = json.loads(words)
    die_with_parent()
    if os.getppid() != orders["parent"]:
        return
    os.nice(_NICENESS)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(
            0, range(os.cpu_count() or 1)
        )  # wherever there is room; not on the model's cores
    report = sweep_once(Path(orders["root"]), Quotas(**orders["quotas"]), orders["fresh_s"])
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
