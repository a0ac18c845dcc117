"""`kvitto witness`: follow a receipt log from outside, and raise the alarm when it is not what it was."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.options import duration_of
from admin.cli.verify import Anchor, Keys

if TYPE_CHECKING:
    from admin.verify.trust import Pin
    from admin.witness import Alarm, State

EXIT_ALARM: Final = 3
EXIT_UNREACHABLE: Final = 1


def witness(
    url: Annotated[str, typer.Argument(help="Address of a gateway, such as http://127.0.0.1:8000.")],
    state: Annotated[
        Path, typer.Option("--state", metavar="FILE", help="What was seen so far; made where there is none.")
    ],
    interval: Annotated[
        str, typer.Option(metavar="AGE", help="Pause between two looks, such as 60s.")
    ] = "60s",
    once: Annotated[bool, typer.Option("--once", help="Look once, and leave.")] = False,
    anchor: Anchor = None,
    keys: Keys = None,
) -> None:
    """Follow a deployment's receipt log: every head signed, every tree the one before, grown.

    Exit status 3: an alarm; what was shown lies beside the state, as FILE.alarm. 1: the log cannot be reached
    (with --once), or the state is of something else.

    Example: kvitto witness https://api.example --state kvitto.witness --interval 5m
    """
    from admin.cli.verify import pin_of, readable

    pause_s = duration_of(interval).total_seconds()
    with readable():
        pin = pin_of(anchor, keys)
    asyncio.run(_follow(url.rstrip("/"), state, pin, None if once else pause_s))


async def _follow(url: str, file: Path, pin: "Pin", pause_s: float | None) -> None:
    """Look, store and say what is new, until something is wrong or, without a pause, once."""
    import aiohttp

    from admin.cli.errors import CommandFailed
    from admin.witness import Alarm, HttpSource, LogUnreachable, State, StateInvalid, Witness

    try:
        state = State.read(file, url)
    except StateInvalid as error:
        raise CommandFailed(str(error)) from error
    async with aiohttp.ClientSession() as session:
        one = Witness(HttpSource(session, url), pin)
        while True:
            try:
                seen = await one.look(state)
            except Alarm as alarm:
                _alarm(state, file, alarm)
                raise typer.Exit(EXIT_ALARM) from alarm
            except LogUnreachable as error:
                typer.echo(f"kvitto: {url} does not answer as a receipt log: {error}", err=True)
                if pause_s is None:
                    raise typer.Exit(EXIT_UNREACHABLE) from error
            else:
                if seen != state:
                    seen.write(file)
                    _tell(seen, pinned=pin.given)
                state = seen
            if pause_s is None:
                return
            await asyncio.sleep(pause_s)


def _tell(state: "State", *, pinned: bool) -> None:
    import json

    head = None if state.head is None else json.loads(state.head)["payload"]
    ring = state.ring
    assert ring is not None
    known = f"{len(ring.keys)} keys from {ring.keys[0].id} on{'' if pinned else ', as it was shown'}"
    typer.echo(
        f"nothing is sealed yet; {known}"
        if head is None
        else f"{head['size']} leaves, root {head['root']}, dated {head['at_s']}; {known}"
    )


def _alarm(state: "State", file: Path, alarm: "Alarm") -> None:
    """Say it, and keep what was signed: it is the evidence."""
    import json

    from admin.settings import write_private

    def signed(keys: str | None, head: str | None) -> dict[str, object]:
        return {"keys": keys and json.loads(keys), "head": head and json.loads(head)}

    kind, shown = type(alarm).__name__.lower(), alarm.shown
    evidence = {
        "alarm": kind,
        "reason": str(alarm),
        "url": state.url,
        "known": signed(state.keys, state.head),
        "shown": None if shown is None else signed(shown.keys, shown.head),
    }
    kept = file.with_name(file.name + ".alarm")
    write_private(kept, json.dumps(evidence, indent=2).encode())
    typer.echo(f"kvitto: ALARM, {kind}: {alarm}; what was signed is in {kept}", err=True)
