"""`kvitto budget`: how much money may be spent in a period."""

from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory
from admin.cli.owner import OfKey, OfProject, OfTenant, owner_of
from billing.tenancy.limits import Period

if TYPE_CHECKING:
    from billing.tenancy.rules.rule import KeptBudget

app = typer.Typer(
    help="Budget what a tenant, a project or a key may spend in a day, a week, a month, or ever.",
    no_args_is_help=True,
)

AMOUNT_HELP = "In the tenant's currency, exact: 25 or 0.10; 0 allows none."
BudgetId = Annotated[
    str, typer.Argument(metavar="BUDGET_ID", help="Id of the budget, from `kvitto budget list`.")
]


@app.command("create")
def create(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    amount: Annotated[str, typer.Argument(help=AMOUNT_HELP)],
    period: Annotated[
        Period, typer.Option(help="It begins at midnight in the tenant's time zone, weeks on Monday.")
    ] = "monthly",
    tenant: OfTenant = None,
    project: OfProject = None,
    key: OfKey = None,
    hard: Annotated[
        bool, typer.Option("--hard/--soft", help="Refuse what might pass it, or alert when it is passed.")
    ] = True,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Put a budget in force, beside others of the same owner.

    Example: kvitto budget create 80 --soft --tenant acme && kvitto budget create 100 --tenant acme
    """
    from admin import clock
    from admin.cli import session
    from billing.money import femto_of

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await owner_of(books, tenant, project, key)
            made = await books.rules.create_budget(
                owner, femto_of(amount), period, clock.now(), hard=hard, actor=ACTOR
            )
            await session.tell_gateways(books.settings, owner.id)
            found = await books.tenancy.tenant(owner.tenant_id)
            return _row(made, found.name, found.currency)

    _show(session.run(work()), as_json=as_json)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only budgets of this tenant, by name or id.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List budgets of tenants, their projects and their keys.

    Example: kvitto budget list --tenant acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            wanted = (await books.tenancy.tenant(tenant)).id if tenant else None
            owners = {each.id: each for each in await books.tenancy.tenants()}
            return [
                _row(kept, owners[kept.owner.tenant_id].name, owners[kept.owner.tenant_id].currency)
                for kept in await books.rules.budgets(wanted)
            ]

    columns = (
        Column("id", "id"),
        Column("tenant", "tenant", style="bold"),
        Column("owner_id", "of"),
        Column("amount", "amount", right=True),
        Column("currency", ""),
        Column("period", "period"),
        Column("hard", "hard"),
    )
    empty = "No budgets: `kvitto budget create AMOUNT --tenant TENANT`."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("set")
def set_(
    budget_id: BudgetId,
    amount: Annotated[str | None, typer.Option(help=AMOUNT_HELP, show_default=False)] = None,
    hard: Annotated[
        bool | None,
        typer.Option("--hard/--soft", help="Refuse what might pass it, or alert.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Change a budget's amount, or whether it refuses. What was spent in its period stays counted.

    Example: kvitto budget set bud_0123456789abcdef --amount 200
    """
    from dataclasses import replace

    from admin import clock
    from admin.cli import session
    from billing.money import femto_of

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            budget = (await books.rules.budget(budget_id)).budget
            wanted = replace(
                budget,
                amount=budget.amount if amount is None else femto_of(amount),
                hard=budget.hard if hard is None else hard,
            )
            kept = await books.rules.change_budget(wanted, clock.now(), actor=ACTOR)
            await session.tell_gateways(books.settings, kept.owner.id)
            found = await books.tenancy.tenant(kept.owner.tenant_id)
            return _row(kept, found.name, found.currency)

    _show(session.run(work()), as_json=as_json)


@app.command("remove")
def remove(budget_id: BudgetId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Take a budget out of force.

    Example: kvitto budget remove bud_0123456789abcdef
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            gone = await books.rules.remove_budget(budget_id, clock.now(), actor=ACTOR)
            await session.tell_gateways(books.settings, gone.owner.id)
            found = await books.tenancy.tenant(gone.owner.tenant_id)
            return _row(gone, found.name, found.currency)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"Budget {row['id']} of {row['owner_id']} is removed.", markup=False)


def _show(row: dict[str, object], *, as_json: bool) -> None:
    from admin.cli.output import console, print_json

    if as_json:
        print_json(row)
    else:
        text = "{level} {owner_id}: {amount} {currency} {period}, {kind}, budget {id}."
        console().print(text.format(**row, kind="hard" if row["hard"] else "soft"), markup=False)


def _row(kept: "KeptBudget", tenant_name: str, currency: str) -> dict[str, object]:
    from billing.money import decimal_of

    budget = kept.budget
    return {
        "id": kept.id,
        "tenant": tenant_name,
        "tenant_id": kept.owner.tenant_id,
        "level": budget.level,
        "owner_id": budget.owner_id,
        "amount": decimal_of(budget.amount),
        "currency": currency,
        "period": budget.period,
        "tz": budget.tz,
        "hard": budget.hard,
        "created_at": kept.created_at,
    }
