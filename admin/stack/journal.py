"""Log files of the parts: their ends, following them, keeping them small."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOG_BYTES_MAX: Final = 16 * 2**20
TAIL_LINES: Final = 15
TAIL_BYTES: Final = 16_384
FOLLOW_INTERVAL_S: Final = 0.2


def open_life(log: Path) -> int:
    """Note where the log of a life that starts now begins, in bytes."""
    rotate(log)
    return log.stat().st_size if log.exists() else 0


def rotate(log: Path) -> None:
    """Move a large log aside. Writers append, so they go on at the new beginning; one older is kept."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        with log.open("r+b") as file:
            file.truncate(0)


def tail(log: Path, offset: int = 0, lines: int = TAIL_LINES) -> str:
    """The last lines that were written after ``offset``, as one text."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(offset if offset <= size else 0, size - TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def read(logs: tuple[Path, ...], follow: bool) -> Iterator[str]:
    """Yield the lines of logs; of several, each with the part's name in front. Endless when following."""
    width = max((len(log.stem) for log in logs), default=0)
    ends = dict.fromkeys(logs, 0)
    pause = threading.Event()
    while True:
        for log in logs:
            prefix = f"{log.stem:<{width}} | " if len(logs) > 1 else ""
            for line in _new_lines(log, ends):
                yield prefix + line
        if not follow:
            return
        pause.wait(FOLLOW_INTERVAL_S)


def _new_lines(log: Path, ends: dict[Path, int]) -> Iterator[str]:
    with log.open("rb") as file:
        if file.seek(0, 2) < ends[log]:  # rotated
            ends[log] = 0
        file.seek(ends[log])
        for line in file:
            ends[log] += len(line)
            yield line.decode(errors="replace").rstrip("\n")
