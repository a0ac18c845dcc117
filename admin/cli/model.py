"""`kvitto model`: which model answers to the names that clients use."""

from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory

if TYPE_CHECKING:
    from admin.cli.output import Row
    from billing.catalog.alias import Alias

app = typer.Typer(
    help="Let a served model answer to further names, so that clients need not change theirs.",
    no_args_is_help=True,
)


@app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the served model, and every alias with the model that answers to it.

    A name is looked for among served models, then among whole names, then by its longest beginning.

    Example: kvitto model list
    """
    from admin.cli import session
    from admin.cli.output import Column, print_rows

    async def work() -> "list[Row]":
        async with session.books(directory(data_dir)) as books:
            served = books.settings.served_name
            rows = [_row(alias, served) for alias in (await books.aliasing.aliases()).rows]
        own: Row = {"name": served, "model": served, "kind": "model", "served": True}
        return [own, *rows]

    columns = (
        Column("name", "name", style="bold"),
        Column("model", "is answered by"),
        Column("kind", "kind"),
        Column("served", "served here"),
        Column("set_at", "since (UTC)"),
        Column("set_by", "set by", style="dim"),
    )
    print_rows(session.run(work()), columns, as_json=as_json, empty="")


@app.command("alias")
def alias(
    pattern: Annotated[
        str, typer.Argument(help="A name, or the beginning of names and one *, in quotes: 'gpt-*'.")
    ],
    model: Annotated[
        str | None, typer.Argument(help="The served model that answers. [dim]\\[default: the stack's][/dim]")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Let a model answer to a name or to all names that begin so, in place of the one that has.

    What is limited, billed and shown is the model that answers; a key's list of models is asked about it too.
    Gateways know within two seconds, for every tenant. A name that a model itself has stays that model's.

    Example: kvitto model alias 'claude-*' smollm2-135m-instruct
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.catalog.alias import Alias

    async def work() -> "Row":
        async with session.books(directory(data_dir)) as books:
            served = books.settings.served_name
            wanted = Alias(pattern, model or served, clock.now(), ACTOR)
            return _row(await books.aliasing.set_alias(wanted), served)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        note = "" if row["served"] else "; no model of this name is served here, so who asks gets a 404"
        console().print(f"{row['name']} is answered by {row['model']}{note}.", markup=False)


@app.command("unalias")
def unalias(
    pattern: Annotated[str, typer.Argument(help="As it was set, in quotes if it ends with *.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Let nobody answer to a name, or to names that begin so, any more: who asks gets a 404.

    Example: kvitto model unalias 'claude-*'
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> "Row":
        async with session.books(directory(data_dir)) as books:
            removed = await books.aliasing.remove_alias(pattern, ACTOR, clock.now())
            return _row(removed, books.settings.served_name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"{row['name']} is no alias any more; it was of {row['model']}.", markup=False)


def _row(alias: "Alias", served: str) -> "Row":
    return {
        "name": alias.pattern,
        "model": alias.model,
        "kind": "alias" if alias.exact else "prefix",
        "served": alias.model == served,
        "set_at": alias.set_at,
        "set_by": alias.set_by,
    }
