"""`kvitto up`, `status`, `logs`, `restart`, `down`: the whole stack on this machine."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admin.cli.options import DataDir, Json, directory
from admin.cli.shape import (
    STEP_BUDGET_S,
    Decode,
    Encode,
    FirstToken,
    Mono,
    Prefill,
    Promise,
    Speculate,
    StepBudget,
    Store,
    seated,
)

if TYPE_CHECKING:
    from admin.stack.supervisor import PartStatus, StackStatus
    from engine.api import WorkerReport

    Reports = dict[str, tuple[str, WorkerReport | None]]

PORT_DEFAULT = 8080
GATEWAYS_MAX = 64
EXIT_NOT_RUNNING = 1
DRAIN_TIMEOUT_S = 120.0


def up(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is ready; it goes on running.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=1, max=65_535, help="Port of the API, on this machine alone.")
    ] = PORT_DEFAULT,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PATH_OR_ID", help="A local path or hub id that vLLM serves; SmolLM2-135M if not given."
        ),
    ] = None,
    prefill: Prefill = None,
    decode: Decode = None,
    mono: Mono = None,
    encode: Encode = 0,
    step_budget_s: StepBudget = STEP_BUDGET_S,
    first_token: FirstToken = "on",  # noqa: S107 -- a token of output
    store: Store = "on",
    promise: Promise = "on",
    speculate: Speculate = 0,
    engine: Annotated[bool, typer.Option("--engine/--no-engine", help="Start workers at all.")] = True,
    gateways: Annotated[
        int, typer.Option(min=1, max=GATEWAYS_MAX, help="Processes that serve the API, all at its port.")
    ] = 1,
    data_dir: DataDir = None,
) -> None:
    """Start everything: PostgreSQL, Valkey, the model, its workers, the gateway, the background jobs.

    On a fresh data directory it makes a demo tenant with credit and a key, written to credentials.json there.
    Without --detach it runs until Ctrl-C or `kvitto down`. It says how much memory the workers need, some
    2.2 GiB each with a small model, and does not begin where clearly less is free.

    The default shape is one worker that does everything in steps of a bounded time: on two cores both the
    first token and those after it come sooner than from two kinds of workers. With --prefill and --decode
    there are two kinds; each can do both, and steps in when the other is away or has nothing to do.

    Example: kvitto up --detach --prefill 2 --decode 2 --data-dir ./demo --port 9000

    Example: kvitto up --mono 2 --step-budget-s 0.25
    """
    from admin.cli.output import console
    from admin.stack import supervisor
    from admin.stack.progress import Progress

    options = supervisor.StackOptions(
        data_dir=directory(data_dir),
        port=port,
        model=model,
        shape=replace(
            seated(prefill, decode, mono, encode),
            step_budget_s=step_budget_s or None,
            first_token=first_token == "on",  # noqa: S105 -- a token of output
            store=store == "on",
            promise=promise == "on",
            speculate=speculate,
        ),
        engine=engine,
        detach=detach,
        gateways=gateways,
    )
    supervisor.up(options, Progress(console()))


def status(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show the parts of the stack: state, process, memory, restarts, address; of workers what runs and waits.

    Exit status 1 when not all of them are ready.

    Example: kvitto status --json
    """
    from admin.cli.output import print_json
    from admin.stack import supervisor

    found = supervisor.status(directory(data_dir))
    reports = supervisor.reports(directory(data_dir))
    if as_json:
        print_json(
            {
                "data_dir": found.data_dir,
                "phase": found.phase,
                "ready": _ready(found),
                "pid": found.pid,
                "base_url": found.base_url,
                "model": found.served_name,
                "error": found.error,
                "parts": [_row(part, reports) for part in found.parts],
            }
        )
    else:
        _print_status(found, reports)
    if not _ready(found):
        sys.exit(EXIT_NOT_RUNNING)


def logs(
    part: Annotated[
        str | None, typer.Argument(help="A part by its name in `kvitto status`; all, if not given.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Print what the parts have logged.

    Example: kvitto logs gateway --follow
    """
    from admin.stack import supervisor

    for line in supervisor.logs(directory(data_dir), part, follow=follow):
        typer.echo(line)


def restart(
    worker: Annotated[str, typer.Argument(help="A worker by its name in `kvitto status`.")],
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long what runs there may take to end.")
    ] = DRAIN_TIMEOUT_S,
    data_dir: DataDir = None,
) -> None:
    """Start one worker anew while the stack serves: no new requests go there, what runs ends, it restarts.

    Where no other worker can do its work, new requests are told to come again.

    Example: kvitto restart decode-1 --timeout 300
    """
    from admin.stack import supervisor

    done = supervisor.restart(directory(data_dir), worker, timeout, typer.echo)
    typer.echo(f"{worker} is ready again after {done.took_s:.0f} s (pid {done.pid}).")


def down(data_dir: DataDir = None) -> None:
    """Stop everything in order: no request is cut off that ends in time, no process stays behind.

    Example: kvitto down --data-dir ./demo
    """
    from admin.stack import supervisor

    place = directory(data_dir)
    if supervisor.down(place):
        typer.echo(f"Stopped. The data stays in {place}.")
    else:
        typer.echo(f"Nothing was running in {place}.")


def _print_status(found: "StackStatus", reports: "Reports") -> None:
    from admin.cli.output import Column, console, print_rows

    columns = (
        Column("name", "part", style="bold"),
        Column("state", "state"),
        Column("role", "role"),
        Column("running", "running", right=True),
        Column("waiting", "waiting", right=True),
        Column("drafts", "drafts kept", right=True),
        Column("pid", "pid", right=True),
        Column("uptime", "up"),
        Column("restarts", "restarts", right=True),
        Column("memory", "memory", right=True),
        Column("address", "address"),
    )
    rows = [
        {
            **(row := _row(part, reports)),
            "state": f"{part.state}, draining" if row["draining"] else part.state,
            "drafts": _kept(row["drafted_tokens"], row["accepted_tokens"]),
            "pid": None if part.pid is None else str(part.pid),
            "uptime": _age(part.uptime_s),
            "memory": _size(part.memory_bytes),
        }
        for part in found.parts
    ]
    print_rows(
        rows, columns, as_json=False, empty=f"Nothing runs in {found.data_dir}: `kvitto up` starts it."
    )
    if found.error:
        console().print(f"{found.failed_part}: {found.error}", style="red", markup=False)
    if rows:
        memory = _size(sum(part.memory_bytes or 0 for part in found.parts))
        summary = f"{found.phase}, {found.base_url or 'no API'}, {memory} resident, data in {found.data_dir}"
        console().print(summary, style="dim", markup=False)


def _row(part: "PartStatus", reports: "Reports") -> dict[str, Any]:
    role, report = reports.get(part.name, (None, None))
    return {
        "name": part.name,
        "state": part.state,
        "role": role,
        "running": None if report is None else report.running,
        "waiting": None if report is None else report.waiting,
        "draining": None if report is None else report.draining,
        "drafted_tokens": None if report is None else report.drafted,
        "accepted_tokens": None if report is None else report.accepted,
        "pid": part.pid,
        "uptime_s": part.uptime_s,
        "restarts": part.restarts,
        "memory_bytes": part.memory_bytes,
        "address": part.address,
    }


def _kept(drafted: int | None, accepted: int | None) -> str | None:
    """How many drafts are accepted, of a hundred; None where none are made."""
    return f"{100 * (accepted or 0) / drafted:.0f} %" if drafted else None


def _ready(found: "StackStatus") -> bool:
    return found.phase == "ready" and all(part.state == "ready" for part in found.parts)


def _age(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    minutes, left_s = divmod(int(seconds), 60)
    hours, left_min = divmod(minutes, 60)
    return f"{hours} h {left_min:02} min" if hours else f"{left_min} min {left_s:02} s"


def _size(count: int | None) -> str | None:
    if count is None:
        return None
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
