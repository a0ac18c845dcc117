"""All that a worker attests, kept until the control plane has taken it over.

A folder of segments ``<first sequence, 20 digits>.jsonl``, a JSON line an attestation. The engine core
appends, the API server's process reads and removes; the file system is all they share. What has no newline
yet is not there: a killed writer leaves at most that, and its successor cuts it off.
"""

import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from engine.proof.attestation import DECODE_KIND, PREFILL_KIND
from engine.wire import JournalLine, WireInvalid
from engine.worker import clock

Kind = Literal["prefill", "decode"]

_LOG: Final = logging.getLogger("vllm.kvitto.journal")
_SEGMENT_BYTES: Final = 1024**2
_KEPT_S: Final = 600.0
_FINDABLE_MAX: Final = 100_000
_ACKNOWLEDGED: Final = "acknowledged"
_KINDS: Final[dict[str, Kind]] = {PREFILL_KIND: "prefill", DECODE_KIND: "decode"}


class Journal:
    """The engine core's half: the only writer of its folder. ``lost`` counts what no disk would take."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lost = 0
        self._folder = folder
        self._file: int | None = None
        self._next = _acknowledged(folder) + 1
        for segment in reversed(_segments(folder)):
            os.truncate(segment, _whole_bytes(segment))
            sequences = [line.sequence for line, _ in _read(segment, 0) if line is not None]
            self._next = max([self._next, _first(segment), *(sequence + 1 for sequence in sequences)])
            if sequences:
                break

    @property
    def written(self) -> int:
        """The sequence of the last line, 0 before the first."""
        return self._next - 1

    def append(self, attestation: str, certificate: str) -> int:
        """Write a line, visible to the reader at once; its sequence, or 0 when the disk did not take it.

        It outlives the process, not the machine: a step of the model does not wait for the disk.
        """
        line = JournalLine(self._next, attestation, certificate)
        text = json.dumps(line.to_json(), separators=(",", ":")).encode() + b"\n"
        try:
            self._write(text)
        except OSError as error:
            self.lost += 1
            # The 1st, 2nd, 4th, ...: a full disk must not be filled by its own log.
            if self.lost.bit_count() == 1:
                _LOG.error("the journal took no line, %d lost so far: %s", self.lost, error)
            return 0
        self._next += 1
        return line.sequence

    def _write(self, text: bytes) -> None:
        file = self._open()
        before = os.fstat(file).st_size
        written = os.write(file, text)
        if written < len(text):
            os.ftruncate(file, before)
            raise OSError(f"{written} of {len(text)} bytes written")

    def _open(self) -> int:
        """The segment to append to: a new one when the last is large, or gone with its folder."""
        if self._file is not None:
            status = os.fstat(self._file)
            if status.st_size < _SEGMENT_BYTES and status.st_nlink:
                return self._file
            self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._next:020}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True, slots=True)
class _Place:
    segment: Path
    offset: int


class JournalReader:
    """The API server's half: serves lines, finds them by what they attest, removes what is acknowledged.

    Args:
        folder: the journal's folder; it may still be empty.
        monotonic_s: a clock, in seconds. Acknowledged lines are found for ten minutes more by it.
    """

    def __init__(self, folder: Path, monotonic_s: Callable[[], float] = clock.monotonic_s) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._monotonic_s = monotonic_s
        self.acknowledged = self.last = _acknowledged(folder)
        self._removable = [(self.acknowledged, monotonic_s())]
        self._followed: tuple[int, int] = (0, 0)
        self._places: dict[tuple[str, int, Kind], _Place] = {}
        self._attested: Counter[str] = Counter()
        self.read_lines = 0
        self._follow()
        self._attested.clear()
        self.read_lines = 0

    def lines(self, after: int, limit: int) -> list[JournalLine]:
        """At most ``limit`` lines that nobody acknowledged, of a sequence above ``after``, rising."""
        after = max(after, self.acknowledged)
        segments = _segments(self._folder)
        passed = sum(_first(segment) <= after + 1 for segment in segments)
        found: list[JournalLine] = []
        for segment in segments[max(passed - 1, 0) :]:
            for line, _ in _read(segment, 0):
                if len(found) >= limit:
                    return found
                if line is not None and line.sequence > after:
                    found.append(line)
        return found

    def acknowledge(self, through: int) -> None:
        """Never serve again what has at most this sequence; may be repeated. Raises OSError (not kept)."""
        self._follow()
        through = min(through, self.last)
        if through > self.acknowledged:
            temporary = self._folder / f"{_ACKNOWLEDGED}.tmp"
            temporary.write_text(str(through))
            temporary.replace(self._folder / _ACKNOWLEDGED)
            self.acknowledged = through
            self._removable.append((through, self._monotonic_s()))
        self._remove()

    def find(self, request_id: str, attempt: int, kind: Kind) -> JournalLine | None:
        """The attestation of one call, among the newest hundred thousand lines that are kept."""
        self._follow()
        place = self._places.get((request_id, attempt, kind))
        if place is None:
            return None
        return next((line for line, _ in _read(place.segment, place.offset)), None)

    def attested_tokens(self) -> Counter[str]:
        """Prompt tokens attested since this reader began: hit_device, hit_store, owed, miss."""
        self._follow()
        return self._attested

    def _follow(self) -> None:
        """Learn of lines that were written since the last call."""
        for segment in _segments(self._folder):
            first, offset = _first(segment), 0
            if first < self._followed[0]:
                continue
            if first == self._followed[0]:
                offset = self._followed[1]
            for line, end in _read(segment, offset):
                if line is not None:
                    self._index(line, _Place(segment, offset))
                offset = end
            self._followed = first, offset
        while len(self._places) > _FINDABLE_MAX:
            del self._places[next(iter(self._places))]

    def _index(self, line: JournalLine, place: _Place) -> None:
        self.last = max(self.last, line.sequence)
        self.read_lines += 1
        with contextlib.suppress(ValueError, KeyError, TypeError):
            payload = json.loads(line.attestation)["payload"]
            call = str(payload["request_id"]), int(payload["attempt"]), _KINDS[payload["kind"]]
            self._places.pop(call, None)
            self._places[call] = place
            self._attested.update(_prompt_tokens(payload))

    def _remove(self) -> None:
        """Remove segments of which all was acknowledged ten minutes ago; the writer's own stays."""
        now_s = self._monotonic_s()
        over = [through for through, at_s in self._removable if now_s - at_s >= _KEPT_S]
        self._removable = [(through, at_s) for through, at_s in self._removable if now_s - at_s < _KEPT_S]
        if not over:
            return
        segments = _segments(self._folder)
        gone = {s for s, following in pairwise(segments) if _first(following) <= over[-1] + 1}
        for segment in gone:
            segment.unlink(missing_ok=True)
        self._places = {call: place for call, place in self._places.items() if place.segment not in gone}


def _segments(folder: Path) -> list[Path]:
    """Oldest first."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".jsonl") and name[:-6].isdecimal()]  # noqa: PTH208 -- names are enough, and asked for often
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def _first(segment: Path) -> int:
    return int(segment.stem)


def _whole_bytes(segment: Path) -> int:
    return segment.read_bytes().rfind(b"\n") + 1


def _read(segment: Path, offset: int) -> Iterator[tuple[JournalLine | None, int]]:
    """Whole lines of a segment from an offset on, each with the offset of its end; None for a broken one."""
    try:
        with segment.open("rb") as file:
            file.seek(offset)
            for text in file:
                if not text.endswith(b"\n"):
                    return
                offset += len(text)
                try:
                    yield JournalLine.from_json(json.loads(text)), offset
                except (ValueError, WireInvalid):
                    _LOG.warning("%s: no line of a journal before byte %d", segment.name, offset)
                    yield None, offset
    except FileNotFoundError:
        return


def _acknowledged(folder: Path) -> int:
    try:
        return int((folder / _ACKNOWLEDGED).read_text())
    except (OSError, ValueError):
        return 0


def _prompt_tokens(payload: Mapping[str, Any]) -> dict[str, int]:
    """How a computed prompt divides; nothing for what is no computed prompt."""
    if payload["kind"] != PREFILL_KIND or not payload["computed"]:
        return {}
    device, store, owed = (
        int(payload[name]) for name in ("hit_device_tokens", "hit_store_tokens", "owed_tokens")
    )
    miss = int(payload["prompt_tokens"]) - device - store - owed
    return {"hit_device": device, "hit_store": store, "owed": owed, "miss": miss}
