"""What real clients sent, read in place where the recordings are at hand."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parents[3] / "shared" / "cases" / "clients"


@dataclass(frozen=True)
class Recording:
    """One request: its file's name, its path without the query, its body or an empty one."""

    name: str
    path: str
    body: dict[str, Any]


@cache
def every() -> tuple[Recording, ...]:
    """All of them; none where the folder is absent."""
    found = []
    for file in sorted(FOLDER.glob("*/*.json")):
        sent = msgspec.json.decode(file.read_bytes())
        name = f"{file.parent.name}/{file.name}"
        found.append(Recording(name, sent["path"].partition("?")[0], sent.get("body") or {}))
    return tuple(found)


def sent_to(*ends: str) -> list[Recording]:
    """Those whose path ends so."""
    return [recording for recording in every() if recording.path.endswith(ends)]
