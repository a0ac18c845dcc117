"""Entry point of `kvitto`: puts the commands together, turns their errors into one line and an exit status.

Exit status: 0 done, 1 the command could not do it (one line on stderr says why and what to do),
2 the command line itself is wrong. `kvitto verify` and `kvitto witness` say in their help what theirs is.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from admin.cli import (
    admission,
    audit,
    balance,
    budget,
    chat,
    credit,
    deployment,
    export,
    invoice,
    key,
    limit,
    model,
    payment,
    price,
    project,
    reconcile,
    stack,
    store,
    tenant,
    usage,
    user,
    verify,
    webhook,
    witness,
)
from admin.cli.errors import explain
from admin.cli.options import DATA_DIR_HELP, PANEL_BOOKS, PANEL_STACK, PANEL_TRY

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="kvitto",
    help="An inference house in one piece: an API gateway, a billing system and a prefill/decode engine.\n\n"
    "Start with [bold]kvitto up[/bold], then [bold]kvitto chat 'What is the capital of France?'[/bold] "
    "and [bold]kvitto usage[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvitto {version('kvitto')}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help=DATA_DIR_HELP, show_default=False)
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = data_dir


app.command("up", rich_help_panel=PANEL_STACK)(stack.up)
app.command("status", rich_help_panel=PANEL_STACK)(stack.status)
app.command("logs", rich_help_panel=PANEL_STACK)(stack.logs)
app.command("restart", rich_help_panel=PANEL_STACK)(stack.restart)
app.command("down", rich_help_panel=PANEL_STACK)(stack.down)
app.command("chat", rich_help_panel=PANEL_TRY)(chat.chat)
app.command("usage", rich_help_panel=PANEL_TRY)(usage.usage)
app.command("export", rich_help_panel=PANEL_BOOKS)(export.export)
app.command("exports", rich_help_panel=PANEL_BOOKS)(export.exports)
app.command("balance", rich_help_panel=PANEL_BOOKS)(balance.balance)
app.add_typer(store.app, name="store", rich_help_panel=PANEL_STACK)
app.add_typer(tenant.app, name="tenant", rich_help_panel=PANEL_BOOKS)
app.add_typer(project.app, name="project", rich_help_panel=PANEL_BOOKS)
app.add_typer(key.app, name="key", rich_help_panel=PANEL_BOOKS)
app.add_typer(user.app, name="user", rich_help_panel=PANEL_BOOKS)
app.add_typer(limit.app, name="limit", rich_help_panel=PANEL_BOOKS)
app.add_typer(budget.app, name="budget", rich_help_panel=PANEL_BOOKS)
app.add_typer(credit.app, name="credit", rich_help_panel=PANEL_BOOKS)
app.add_typer(invoice.app, name="invoice", rich_help_panel=PANEL_BOOKS)
app.add_typer(payment.app, name="payment", rich_help_panel=PANEL_BOOKS)
app.add_typer(model.app, name="model", rich_help_panel=PANEL_BOOKS)
app.add_typer(price.app, name="price", rich_help_panel=PANEL_BOOKS)
app.add_typer(admission.app, name="admission", rich_help_panel=PANEL_BOOKS)
app.add_typer(webhook.app, name="webhook", rich_help_panel=PANEL_BOOKS)
app.add_typer(audit.app, name="audit", rich_help_panel=PANEL_BOOKS)
app.command("reconcile", rich_help_panel=PANEL_BOOKS)(reconcile.reconcile)
app.add_typer(verify.app, name="verify", rich_help_panel=PANEL_BOOKS)
app.command("witness", rich_help_panel=PANEL_BOOKS)(witness.witness)
app.add_typer(deployment.app, name="deployment", rich_help_panel=PANEL_STACK)


def main() -> None:
    """Run the command line of this process; errors we can explain become one line on stderr."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        typer.echo(f"kvitto: {line}", err=True)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
