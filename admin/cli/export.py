"""`kvitto export`: usage and charges as files."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from admin import clock
from admin.cli.options import ACTOR, INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from admin.cli.session import Books
    from billing.interval import Interval
    from billing.reports.export.files.record import ExportRecord
    from billing.reports.export.order import Content, ExportOrder, Form, Step
    from billing.reports.export.service import Written
    from billing.reports.usage_total import Dimension

STDOUT: Final = Path("-")

File = Annotated[
    Path | None,
    typer.Argument(
        help="Where to, replaced in one step when whole; - is stdout. Absent: named by what is in it.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="INSTANT",
        help=f"Rated at or after this: {INSTANT_HELP}. Absent: this month's beginning.",
        show_default=False,
    ),
]
Until = Annotated[
    str | None, typer.Option(metavar="INSTANT", help="Rated before this. Absent: now.", show_default=False)
]
Several = list[str] | None


def export(  # noqa: PLR0913, PLR0917  options that a person types
    file: File = None,
    content: Annotated[
        str, typer.Option(help="requests: one by one. totals: added up by --by. focus: charges in FOCUS 1.2.")
    ] = "requests",
    form: Annotated[str, typer.Option("--format", help="csv, jsonl or parquet.")] = "csv",
    since: Since = None,
    until: Until = None,
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Where days begin, and dates without an offset are.")
    ] = "UTC",
    by: Annotated[str, typer.Option(metavar="COLUMNS", help="Of totals: model,day for one.")] = "",
    step: Annotated[str, typer.Option(help="Of FOCUS: day or hour.")] = "day",
    tenant: Annotated[str | None, typer.Option(help="Only requests of this tenant, by name or id.")] = None,
    project: Annotated[
        Several, typer.Option(help="Only of this project, by id. Repeatable, as below.")
    ] = None,
    key: Annotated[Several, typer.Option(help="Only of this key, by id.")] = None,
    model: Annotated[Several, typer.Option(help="Only of this model.")] = None,
    traffic_class: Annotated[Several, typer.Option("--class", help="Only agent or chat.")] = None,
    tier: Annotated[Several, typer.Option(help="Only standard, flex or batch.")] = None,
    window: Annotated[Several, typer.Option(help="Only rated by price windows of this name.")] = None,
    status: Annotated[Several, typer.Option(help="Only completed, aborted or failed.")] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Have it made by the jobs: `kvitto exports` shows it.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write usage or charges to a file: rows in [since, until), all of one instant, amounts exact.

    CSV is UTF-8 by RFC 4180, and no cell starts a formula. The columns stay in their order.

    Example: kvitto export november.csv --since 2026-11-01 --until 2026-12-01 --zone Europe/Stockholm

    Example: kvitto export - --content totals --by tenant,model --format jsonl --since 7d

    Example: kvitto export --content focus --tenant demo --background
    """
    from admin.cli import session

    asked = _Asked(content, form, _interval(since, until, zone), zone, by, step)
    chosen = {
        "projects": project, "keys": key, "models": model, "traffic_classes": traffic_class,
        "tiers": tier, "windows": window, "statuses": status,
    }  # fmt: skip
    if background and file is not None:
        raise typer.BadParameter("the jobs keep the file where `kvitto exports` says", param_hint="FILE")

    async def work() -> "ExportRecord | tuple[Path, Written]":
        async with session.books(directory(data_dir)) as books:
            order = await asked.order(books, tenant, chosen)
            if background:
                return await books.exports.request(order, ACTOR, clock.now())
            return await _write(books, order, Path(order.file_name) if file is None else file)

    done = session.run(work())
    if isinstance(done, tuple):
        _tell(*done, as_json=as_json)
    else:
        _print_exports([done], directory(data_dir), as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a person has typed of an order; the books know whether it means anything."""

    content: str
    form: str
    interval: "Interval"
    zone: str
    by: str
    step: str

    async def order(
        self, books: "Books", tenant: str | None, chosen: "Mapping[str, list[str] | None]"
    ) -> "ExportOrder":
        from billing.reports.export.order import ExportOrder
        from billing.reports.selection import Selection

        return ExportOrder(
            content=cast("Content", self.content),
            form=cast("Form", self.form),
            interval=self.interval,
            zone=self.zone,
            tenant_id=(await books.tenancy.tenant(tenant)).id if tenant else None,
            only=Selection(**{kind: tuple(names or ()) for kind, names in chosen.items()}),
            by=cast(
                "tuple[Dimension, ...]",
                tuple(dict.fromkeys(one.strip() for one in self.by.split(",") if one.strip())),
            ),
            step=cast("Step", self.step),
        )


def _interval(since: str | None, until: str | None, zone: str) -> "Interval":
    from billing.interval import Interval, zone_of

    now, tz = clock.now(), zone_of(zone)
    month = now.astimezone(tz).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Interval(
        month if since is None else instant_of(since, now, tz),
        now if until is None else instant_of(until, now, tz),
    )


def exports(
    delete: Annotated[
        str | None, typer.Option(metavar="ID", help="Take this one back, and its file.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List exports made in the background, oldest first, and where their files are for a week.

    Example: kvitto exports --json
    """
    from admin.cli import session

    async def work() -> "list[ExportRecord]":
        async with session.books(directory(data_dir)) as books:
            if delete is not None:
                return [await books.exports.delete(delete, None, ACTOR, clock.now())]
            return await books.exports.exports()

    _print_exports(session.run(work()), directory(data_dir), as_json=as_json)


async def _write(books: "Books", order: "ExportOrder", path: Path) -> "tuple[Path, Written]":
    from admin.cli.errors import CommandFailed
    from billing.reports.export.files.private_file import PrivateFile

    with _progress(await books.writing.expected_rows(order) if sys.stderr.isatty() else None) as on_rows:
        if path == STDOUT:
            return path, await books.writing.write(order, _to_stdout, on_rows)
        try:
            async with PrivateFile(path) as made:
                return path, await books.writing.write(order, made.write, on_rows)
        except OSError as error:
            raise CommandFailed(f"cannot write {path}: {error.strerror or error}") from error


async def _to_stdout(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@contextmanager
def _progress(expected: int | None) -> "Iterator[Callable[[int], None] | None]":
    """A bar on stderr while somebody looks at it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from admin.cli.output import console

    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("rows", total=expected)
        yield lambda rows: progress.update(task, completed=rows)


def _tell(path: Path, written: "Written", *, as_json: bool) -> None:
    from admin.cli.output import console, print_json

    if path == STDOUT:
        console(stderr=True).print(f"{written.rows:,} rows.", style="dim")
    elif as_json:
        print_json(
            {
                "file": path.absolute(),
                "rows": written.rows,
                "size_bytes": written.size_bytes,
                "sha256": written.sha256,
            }
        )
    else:
        console().print(f"{path}: {written.rows:,} rows, {written.size_bytes:,} bytes.")


def _print_exports(records: "Sequence[ExportRecord]", data_dir: Path, *, as_json: bool) -> None:
    from admin.cli.output import Column, print_rows

    rows = [
        {
            "id": record.id,
            "status": record.status,
            "tenant_id": record.order.tenant_id,
            "content": record.order.content,
            "format": record.order.form,
            "since": record.order.interval.since,
            "until": record.order.interval.until,
            "zone": record.order.zone,
            "rows": record.rows,
            "sha256": record.sha256,
            "expires_at": record.expires_at,
            "reason": record.reason,
            "file": data_dir / "exports" / record.stored_name if record.status == "done" else None,
        }
        for record in records
    ]
    columns = (
        Column("id", "export", style="bold"),
        Column("status", "status"),
        Column("tenant_id", "tenant"),
        Column("content", "content"),
        Column("format", "format"),
        Column("since", "since (UTC)"),
        Column("until", "until (UTC)"),
        Column("rows", "rows", right=True),
        Column("file", "file"),
        Column("reason", "reason"),
    )
    print_rows(rows, columns, as_json=as_json, empty="No exports: `kvitto export --background` asks for one.")
