"""`kvitto verify`: check receipts, bundles and promises offline, without our word for anything.

Exit status: 0 verified, 1 something is not as it is said to be, 2 it could not be read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.options import Json

if TYPE_CHECKING:
    from rich.progress import Progress

    from admin.cli.output import Row
    from admin.verify.bundle import BundleReport, InvoiceHook
    from admin.verify.correspondence import Cost
    from admin.verify.finding import Finding
    from admin.verify.receipt import CheckedReceipt
    from admin.verify.trust import Pin

app = typer.Typer(
    help="Check receipts, invoices and promises offline: signatures, inclusion in the log, prices to the last"
    " decimal. Exit status 0: verified, 1: something is not as it is said to be, 2: it could not be read.",
    no_args_is_help=True,
)

EXIT_FOUND: Final = 1
EXIT_UNREADABLE: Final = 2

Anchor = Annotated[
    str | None, typer.Option("--anchor", metavar="KEYID", help="The deployment's first key, as you know it.")
]
Keys = Annotated[
    Path | None, typer.Option("--keys", metavar="FILE", help="Or its keys.json, as you had it before.")
]
ModelDir = Annotated[
    Path | None,
    typer.Option("--model-dir", metavar="DIR", help="The model's tokenizer and configuration, for prompts."),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, metavar="N", help="Processes. [dim]\\[default: one a core][/dim]"),
]


@app.command("receipt")
def receipt(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    file: Annotated[Path, typer.Argument(help="What GET /v1/receipts/{id} has answered.")],
    prompt: Annotated[
        Path | None, typer.Option("--prompt", metavar="FILE", help="The body that was sent, byte for byte.")
    ] = None,
    nonce: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The prompt's. [dim]\\[default: the one in the file][/dim]"),
    ] = None,
    model_dir: ModelDir = None,
    surface: Annotated[
        str | None, typer.Option(help="Of the prompt: chat, messages, responses or completions.")
    ] = None,
    anchor: Anchor = None,
    keys: Keys = None,
    as_json: Json = False,
) -> None:
    """Check one receipt, step by step; with its prompt also what was cached of it.

    Example: kvitto verify receipt R.json --prompt body.json --model-dir models/smollm2
    """
    from admin.verify.finding import Finding, Place
    from admin.verify.statement import Statement, check_statement

    with readable():
        statement = Statement.read(file, pin_of(anchor, keys))
        report = check_statement(statement)
        outcomes, findings = dict(report.outcomes), list(report.findings)
        if prompt is not None:
            used = statement.nonce if nonce is None else _nonce(nonce)
            said, fault = _prompt(report.checked, prompt, used, model_dir, surface)
            outcomes |= {"prompt": said} if fault is None else {}
            findings += [] if fault is None else [Finding(Place(prompt.name), "prompt", fault)]
    document = report.checked.document
    named = {
        "request_id": None if document is None else str(document.request_id),
        "anchor": report.anchor,
        "anchor_pinned": report.pinned,
    }
    _show(named, outcomes, findings, len(findings), as_json=as_json)


@app.command("bundle")
def bundle(
    path: Annotated[Path, typer.Argument(help="A folder, or the zip of one.")],
    anchor: Anchor = None,
    keys: Keys = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Check all that is in a bundle: every receipt, head, price and invoice.

    Example: kvitto verify bundle november.zip --anchor ed25519_0123456789abcdef0123456789abcdef
    """
    from admin.verify.invoice import Invoices

    with readable():
        report = _checked(path, pin_of(anchor, keys), jobs, Invoices(), as_json=as_json)
    _show_report(report, {}, as_json=as_json)


@app.command("invoice")
def invoice(
    file: Annotated[Path, typer.Argument(help="The signed document, or the PDF that it is attached to.")],
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Its receipts. [dim]\\[default: the bundle attached to the PDF][/dim]"
        ),
    ] = None,
    anchor: Anchor = None,
    keys: Keys = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Derive an invoice again from its receipts: each line, the tax, the total, to the letter.

    Example: kvitto verify invoice KV-7.pdf --bundle november.zip
    """
    from tempfile import TemporaryDirectory

    from admin.verify.attached import Paper
    from admin.verify.invoice import Invoices

    with readable(), TemporaryDirectory() as folder:
        paper = Paper.read(file)
        if bundle is None:
            if paper.bundle is None:
                raise typer.BadParameter("it takes the receipts to check an invoice", param_hint="--bundle")
            bundle = Path(folder) / "bundle.zip"
            bundle.write_bytes(paper.bundle)
        named = Invoices({f"invoices/{paper.number}.json": paper.document})
        report = _checked(bundle, pin_of(anchor, keys), jobs, named, as_json=as_json)
    _show_report(report, {"invoice": paper.number, "total": paper.total}, as_json=as_json)


def _checked(
    path: Path, pin: "Pin", jobs: int | None, invoices: "InvoiceHook", *, as_json: bool
) -> "BundleReport":
    """Check a bundle under a bar."""
    from admin.verify.bundle import check_bundle

    with _progress(path, as_json=as_json) as progress:
        return check_bundle(
            path,
            pin,
            jobs=jobs,
            invoices=invoices,
            progress=lambda read: progress.advance(progress.task_ids[0], read),
        )


@app.command("promise")
def promise(
    folder: Annotated[Path, typer.Argument(help="Your receipts and the prompts that you sent; see below.")],
    model_dir: ModelDir = None,
    anchor: Anchor = None,
    keys: Keys = None,
    as_json: Json = False,
) -> None:
    """Find every miss that an unexpired earlier promise covers, by your own receipts and prompts.

    In DIR: bundle/ or bundle.zip, or receipts/*.json as the API answered; prompts/ID.json, the bodies as they
    were sent, or prompts/ID.ids.json with {"token_ids": […], "user_id": "…"}; and nonces.json with {ID: hex}
    for receipts that came without theirs.

    Example: kvitto verify promise mine --model-dir models/smollm2
    """
    from admin.verify.correspondence import Correspondence
    from admin.verify.prompt import recipe_of

    with readable():
        recipe = None if model_dir is None else recipe_of(model_dir)
        report = Correspondence(folder, recipe, pin_of(anchor, keys)).check()
    outcomes = {
        "receipts": f"{report.receipts:,} verified",
        "judged": f"{report.judged:,}, of the other {report.unjudged:,} the prompt is not known",
        "promises broken": f"{len(report.broken):,}",
    }
    named: dict[str, object] = {
        "anchor": ", ".join(report.anchors),
        "anchor_pinned": all(report.anchors.values()),
    }
    named["broken"] = _broken(report.broken, as_json=as_json)
    found = len(report.findings) + len(report.broken)
    _show(named, outcomes, report.findings, found, as_json=as_json)


def _broken(broken: "Sequence[Cost]", *, as_json: bool) -> "list[Row]":
    """The rows of broken promises; people see them at once."""
    from datetime import UTC, datetime

    from admin.cli.output import Column, print_rows
    from billing.money import decimal_of

    rows: list[Row] = [
        {
            "request_id": str(each.broken.request_id),
            "promised": each.broken.promised_tokens,
            "hit": each.broken.hit_tokens,
            "owed": each.broken.owed_tokens,
            "missed": each.broken.missed_tokens,
            "cost": decimal_of(each.femto),
            "currency": each.currency,
            "by": str(each.broken.by),
            "until": datetime.fromtimestamp(each.broken.until_s, UTC),
        }
        for each in broken
    ]
    if rows and not as_json:
        numbers = ("promised", "hit", "owed", "missed", "cost")
        columns = (
            Column("request_id", "request"),
            *(Column(name, name, right=True) for name in numbers),
            Column("currency", ""),
            Column("by", "promised by", style="dim"),
            Column("until", "until (UTC)"),
        )
        print_rows(rows, columns, as_json=False, empty="")
    return rows


def _show_report(report: "BundleReport", more: Mapping[str, str], *, as_json: bool) -> None:
    """Print what a bundle came to, and leave with the status that says it."""
    from billing.money import Femto, decimal_of

    amounts = {currency: decimal_of(Femto(amount)) for currency, amount in report.femto.items()}
    named = {"anchor": report.anchor, "anchor_pinned": report.pinned}
    outcomes = {
        **more,
        "receipts": f"{report.verified:,} of {report.receipts:,} verified"
        + "".join(f", {count:,} {grade}" for grade, count in sorted(report.grades.items())),
        "charged": ", ".join(f"{amount} {currency}" for currency, amount in amounts.items()) or "nothing",
        "tenant": ", ".join(report.tenants) or "none",
        "heads": f"{report.heads:,}",
        "workers": f"{report.workers:,} certified keys",
        "prices": f"{report.prices:,} rows",
        "invoices": f"{len(report.invoices):,}",
    }
    _show(named, outcomes, report.findings, report.found, as_json=as_json)


def _show(
    named: Mapping[str, object],
    outcomes: Mapping[str, str],
    findings: "Sequence[Finding]",
    found: int,
    *,
    as_json: bool,
) -> None:
    from admin.cli.output import Column, console, print_json, print_pairs, print_rows
    from admin.verify.bundle import FINDINGS_MAX

    rows: list[Row] = [
        {
            "file": each.place.file,
            "line": each.place.line,
            "step": each.step,
            "reason": each.reason,
            "request_id": each.request_id,
        }
        for each in findings
    ]
    if as_json:
        print_json({**named, "verified": not found, "found": found, "checks": outcomes, "findings": rows})
    else:
        print_pairs(list(outcomes.items()))
        if findings:
            columns = (
                Column("file", "file", style="bold"),
                Column("line", "line", right=True),
                Column("step", "check"),
                Column("reason", "what is wrong", style="red"),
                Column("request_id", "request", style="dim"),
            )
            print_rows(rows, columns, as_json=False, empty="")
        if found:
            more = "" if len(rows) < FINDINGS_MAX else f", the first {len(rows):,} are shown"
            console().print(f"{found:,} findings{more}.", style="bold red")
        else:
            console().print("Verified.", style="bold green")
        if not named["anchor_pinned"]:
            console().print(
                f"It all rests on the key {named['anchor']}, which came with it: compare it with what the"
                " deployment publishes, and give it as --anchor.",
                style="yellow",
            )
    if found:
        raise typer.Exit(EXIT_FOUND)


def _prompt(
    checked: "CheckedReceipt", prompt: Path, nonce: bytes | None, model_dir: Path | None, surface: str | None
) -> tuple[str, str | None]:
    """What a prompt has shown, and what is wrong with it."""
    from admin.verify.prompt import SURFACES, prefill_of, prompt_fault, readings, recipe_of

    if model_dir is None:
        raise typer.BadParameter("a prompt needs the model's tokenizer", param_hint="--model-dir")
    if nonce is None:
        raise typer.BadParameter("a prompt needs its nonce", param_hint="--nonce")
    if surface is not None and surface not in SURFACES:
        raise typer.BadParameter(f"none of {', '.join(SURFACES)}", param_hint="--surface")
    prefill = prefill_of(checked)
    if prefill is None:
        return "", "nothing is attested of the prompt of this request"
    faults = {}
    for each in readings(prompt.read_bytes(), recipe_of(model_dir), surface):
        fault = prompt_fault(prefill, nonce, each.token_ids)
        if fault is None:
            cached = f"{prefill.hit_tokens} of them cached"
            return f"{len(each.token_ids)} tokens as {each.surface} reads it, {cached}", None
        faults[each.surface] = fault
    return "", "; ".join(f"as {name} reads it: {fault}" for name, fault in faults.items())


def _nonce(text: str) -> bytes:
    if re.fullmatch(r"[0-9a-f]{64}", text) is None:
        raise typer.BadParameter("32 bytes in hex", param_hint="--nonce")
    return bytes.fromhex(text)


def pin_of(anchor: str | None, keys: Path | None) -> "Pin":
    """What who verifies trusts already; raises as `readable` explains."""
    from admin.verify.trust import Pin
    from engine.proof.ring import DeploymentRing

    return Pin(anchor, None if keys is None else DeploymentRing.read(keys.read_text(encoding="utf-8")))


@contextmanager
def readable() -> Iterator[None]:
    """Say in one line what could not be read, and where."""
    from billing.errors import BillingError
    from engine.proof.signed import ProofInvalid
    from recipe.errors import RecipeError

    try:
        yield
    except (BillingError, ProofInvalid, RecipeError, OSError, UnicodeDecodeError) as error:
        typer.echo(f"kvitto: {error}", err=True)
        raise typer.Exit(EXIT_UNREADABLE) from error


@contextmanager
def _progress(path: Path, *, as_json: bool) -> "Iterator[Progress]":
    """A bar on stderr, where people look."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from admin.cli.output import console
    from billing.receipts.bundle_reader import open_bundle

    with open_bundle(path) as opened:
        total = opened.receipts_bytes
    screen = console(stderr=True)
    columns = (TextColumn("receipts"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    shown = screen.is_terminal and not as_json
    with Progress(*columns, console=screen, transient=True, disable=not shown) as progress:
        progress.add_task("receipts", total=total)
        yield progress
