"""What the engine core says of itself, left in small files for the API server's process to read.

They lie in the journal's folder and are replaced by renaming, so that a reader sees a whole one. Each process
that counts leaves its own: the engine core ``report.json``, a model worker ``counts-<rank>.json``.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from engine.wire import WireInvalid, WorkerReport
from engine.worker import clock

_LOG: Final = logging.getLogger("vllm.kvitto.report")
_EVERY_S: Final = 0.2
_REPORT: Final = "report.json"
_COUNTS: Final = "counts-*.json"
_IDLE: Final = WorkerReport(0, 0, 0, 0, draining=False, namespace="")


Counts = defaultdict[str, float]


class Count(StrEnum):
    """What is counted; the names of metrics without their prefix."""

    LOADED_BLOCKS = "store_loaded_blocks"
    LOADED_BYTES = "store_loaded_bytes"
    LOAD_SECONDS = "store_load_seconds"
    PUBLISHED_BLOCKS = "store_published_blocks"
    PUBLISHED_BYTES = "store_published_bytes"
    PUBLISH_SECONDS = "store_publish_seconds"
    REFUSED_PUBLICATIONS = "store_refused_publications"
    FULL_PUBLICATIONS = "store_full_publications"
    OWED_WITHOUT_ROOM = "store_owed_without_room_publications"
    QUARANTINED_BLOCKS = "store_quarantined_blocks"
    EVICTED_BLOCKS = "store_evicted_blocks"
    EXPIRED_BLOCKS = "store_expired_blocks"
    POLICY_FAULTS = "scheduler_policy_faults"
    STEPS = "scheduler_steps"
    STEP_SECONDS = "scheduler_step_seconds"
    STEP_EXPECTED_SECONDS = "scheduler_step_expected_seconds"
    DRAFTED_TOKENS = "drafted_tokens"
    ACCEPTED_TOKENS = "drafted_accepted_tokens"
    JOURNAL_LOST_LINES = "journal_lost_lines"
    KV_BLOCKS_IN_USE = "kv_blocks_in_use"
    TRACKED_REQUESTS = "tracked_requests"


class ReportFile:
    """A file that says what a process says of itself; not written when nothing has changed.

    Args:
        path: the file; its folder is made when it is missing.
        monotonic_s: a clock, in seconds.
    """

    def __init__(self, path: Path, monotonic_s: Callable[[], float] = clock.monotonic_s) -> None:
        self._path = path
        self._monotonic_s = monotonic_s
        self._left_s = float("-inf")
        self._left = ""
        self._failures = 0

    @classmethod
    def of_engine(cls, folder: Path) -> "ReportFile":
        """The engine core's."""
        return cls(folder / _REPORT)

    @classmethod
    def of_rank(cls, folder: Path, rank: int) -> "ReportFile":
        """A model worker's."""
        return cls(folder / _COUNTS.replace("*", str(rank)))

    def leave(self, say: Callable[[], Mapping[str, Any]], at_once: bool) -> None:
        """Leave what ``say`` says: at once, or a fifth of a second after the last time at the earliest."""
        now_s = self._monotonic_s()
        if not at_once and now_s - self._left_s < _EVERY_S:
            return
        self._left_s = now_s
        text = json.dumps(say())
        if text == self._left:
            return
        temporary = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text)
            temporary.replace(self._path)
        except OSError as error:
            self._failures += 1
            if self._failures.bit_count() == 1:
                _LOG.warning("the report was not left, %d times so far: %s", self._failures, error)
        else:
            self._left = text


@dataclass(frozen=True, slots=True)
class Left:
    """What was left: the engine core's report, and what all processes have counted."""

    report: WorkerReport
    counts: Mapping[str, float]


def engine_says(report: WorkerReport, counts: Mapping[str, float]) -> dict[str, Any]:
    """What the engine core leaves."""
    return {"report": report.to_json(), "counts": dict(counts)}


def rank_says(counts: Mapping[str, float]) -> dict[str, Any]:
    """What a model worker leaves."""
    return {"counts": dict(counts)}


def read(folder: Path) -> Left:
    """What is there; an idle worker's where nothing is, or nothing readable."""
    report, counts = _IDLE, Counts(float)
    for path in (folder / _REPORT, *folder.glob(_COUNTS)):
        try:
            says = json.loads(path.read_bytes())
            for name, amount in says["counts"].items():
                counts[name] += float(amount)
            if path.name == _REPORT:
                report = WorkerReport.from_json(says["report"])
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError, WireInvalid) as error:
            _LOG.warning("%s: no report: %r", path.name, error)
    return Left(report, counts)


def clear(folder: Path) -> None:
    """Remove what processes before this one have left."""
    for path in (folder / _REPORT, *folder.glob(_COUNTS)):
        path.unlink(missing_ok=True)
