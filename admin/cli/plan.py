"""`kvitto price plan`: named lists of prices, and which tenants are on them."""

from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import ACTOR, INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from admin.cli.output import Row

app = typer.Typer(
    help="Put tenants on plans: rows of the price book with `plan = NAME` are theirs.", no_args_is_help=True
)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Small letters, digits, - and _.")],
    data_dir: DataDir = None,
) -> None:
    """Create a plan. It has no prices until some are published with `plan = NAME`.

    Example: kvitto price plan create gold
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console

    async def work() -> None:
        async with session.books(directory(data_dir)) as books:
            await books.prices.create_plan(name, ACTOR, clock.now())

    session.run(work())
    console().print(f"Plan {name} is made; it has no prices yet.", markup=False)


@app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List plans, how many price rows each has, and which tenants are or will be on it from when.

    Example: kvitto price plan list
    """
    from admin.cli import session
    from admin.cli.output import Column, print_rows

    async def work() -> "list[Row]":
        async with session.books(directory(data_dir)) as books:
            book, plans = await books.prices.book(), await books.prices.plans()
            names = {tenant.id: tenant.name for tenant in await books.tenancy.tenants()}
        rows: list[Row] = [
            {
                "plan": placement.plan,
                "tenant": names[placement.tenant_id],
                "tenant_id": placement.tenant_id,
                "effective_from": placement.effective_from,
            }
            for placement in sorted(book.placements, key=lambda each: (each.tenant_id, each.effective_from))
        ]
        empty = [
            {"plan": plan, "tenant": None} for plan in plans if plan not in {row["plan"] for row in rows}
        ]
        counts = {plan: sum(row.plan == plan for row in book.rows) for plan in plans}
        return [{**row, "rows": counts.get(str(row["plan"]))} for row in (*rows, *empty)]

    columns = (
        Column("tenant", "tenant", style="bold"),
        Column("plan", "is on"),
        Column("effective_from", "from (UTC)"),
        Column("rows", "price rows", right=True),
    )
    empty = "No plans yet: `kvitto price plan create NAME`."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("put")
def put(
    tenant: Annotated[str, typer.Argument(help="Name or id of the tenant.")],
    plan: Annotated[str | None, typer.Argument(help="The plan; none at all, if not given.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="INSTANT", help=f"{INSTANT_HELP}. [dim]\\[default: in 10 s][/dim]"),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Put a tenant on a plan from an instant on, or on none; prices of its own come before the plan's.

    Example: kvitto price plan put acme gold --from 2027-01-01
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, instant_text, print_json
    from billing.pricing.book import Placement
    from billing.pricing.publication import LEAD

    now = clock.now()
    begins = now + LEAD if since is None else instant_of(since, now)

    async def work() -> "Row":
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            await books.prices.place(Placement(owner.id, begins, plan), ACTOR, now)
        return {"tenant": owner.name, "tenant_id": owner.id, "plan": plan, "effective_from": begins}

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        on = f"plan {plan}" if plan else "no plan"
        console().print(f"{row['tenant']} is on {on} from {instant_text(begins)} on.", markup=False)
