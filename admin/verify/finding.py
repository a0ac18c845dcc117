"""What a verification finds: something that is not as it is said to be, and where."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A file of a bundle, and the line in it where that has lines; lines count from 1."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """``step`` names the check that failed."""

    place: Place
    step: str
    reason: str
    request_id: str | None = None
