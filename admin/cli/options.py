"""Options that several commands share, and how their texts become values."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Annotated, Final

import typer

ACTOR: Final = "command line"  # who does it, for the books and the audit
DATA_DIR_DEFAULT: Final = Path(".kvitto")
DATA_DIR_HELP: Final = (
    "Where the state of the stack lives. [dim]\\[default: .kvitto, or $KVITTO_DATA_DIR][/dim]"
)
INSTANT_HELP: Final = (
    "a date (2026-12-01, UTC midnight), an instant (2026-12-01T09:00+01:00) or an age (24h, 7d)"
)
PANEL_STACK: Final = "The stack"
PANEL_TRY: Final = "Use it"
PANEL_BOOKS: Final = "The books"

_AGE = re.compile(r"(?P<count>\d{1,6})(?P<unit>[smhdw])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def _data_dir(context: typer.Context, given: Path | None) -> Path:
    """The directory the command names, else `kvitto` itself, else the environment, else ./.kvitto."""
    from admin.settings import data_dir_from_environment

    at_root = context.find_root().obj
    chosen = given or (at_root if isinstance(at_root, Path) else None) or data_dir_from_environment()
    return (chosen or DATA_DIR_DEFAULT).absolute()


DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help=DATA_DIR_HELP, show_default=False, callback=_data_dir),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for machines; amounts are exact decimal strings.")
]


def directory(chosen: Path | None) -> Path:
    """Narrow what `DataDir` hands to a command: its callback never leaves it empty."""
    assert chosen is not None
    return chosen


def future_of(text: str, now: datetime, option: str) -> datetime:
    """Read an instant that is still to come, as `instant_of` does; `option` is named when it has passed."""
    instant = instant_of(text, now)
    if instant <= now:
        raise typer.BadParameter(
            f"{text} has passed: write {INSTANT_HELP.rsplit(' or', 1)[0]}", param_hint=option
        )
    return instant


def duration_of(text: str) -> timedelta:
    """Read a duration such as `90s`, `24h` or `7d`; typer.BadParameter for anything else."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration: write 90s, 24h or 7d")
    return timedelta(seconds=int(match["count"]) * _UNIT_S[match["unit"]])


def instant_of(text: str, now: datetime, zone: tzinfo = UTC) -> datetime:
    """Read an instant as people write it.

    Args:
        text: `2026-12-01` (midnight), `2026-12-01T09:00+01:00`, `2026-12-01T09:00`, `now`, or an age such as
            `24h` or `7d`, counted back from `now`.
        now: aware, UTC.
        zone: of what names none itself.

    Returns:
        Aware UTC datetime.

    Raises:
        typer.BadParameter: none of these.
    """
    if text == "now":
        return now
    if _AGE.fullmatch(text):
        return now - duration_of(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no instant: write {INSTANT_HELP}") from None
    return (instant.replace(tzinfo=zone) if instant.tzinfo is None else instant).astimezone(UTC)
