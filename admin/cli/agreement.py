"""`kvitto invoice terms`, `profile` and `coupon`: what is agreed with a tenant beside prices."""

from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.amounts import cents_of, decimal_cents
from admin.cli.options import ACTOR, DataDir, Json, directory

if TYPE_CHECKING:
    from admin.cli.session import Books
    from billing.invoicing.agreements.given_coupon import GivenCoupon
    from billing.invoicing.terms import Fee, Terms

terms = typer.Typer(help="Taxes, fees, discounts and commitments, from a day on.", no_args_is_help=True)
profile = typer.Typer(help="Who a tenant is, and who we are, on documents.", no_args_is_help=True)
coupon = typer.Typer(help="Coupons of a tenant.", no_args_is_help=True)

HOUSE_HELP = "Name or id of the tenant; `house` for who sells."
TenantName = Annotated[str, typer.Argument(help="Name or id of the tenant.")]
Day = Annotated[str, typer.Option("--from", metavar="DATE", help="The first day, in the tenant's time zone.")]


@terms.command("set")
def set_terms(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    tenant: TenantName,
    first: Day,
    tax: Annotated[str, typer.Option(metavar="PERCENT", help="Of usage and top-ups: 24 or 8.875.")] = "0",
    tax_note: Annotated[str | None, typer.Option(metavar="TEXT", help="Printed where there is none.")] = None,
    fee: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT[@PERCENT]", help="A fee a month; with a tax of its own."),
    ] = None,
    discount: Annotated[
        list[str] | None,
        typer.Option(metavar="ABOVE=PERCENT", help="Off the part of a month's usage above an amount."),
    ] = None,
    commitment: Annotated[str, typer.Option(metavar="AMOUNT", help="Due a month for usage at least.")] = "0",
    payment_days: Annotated[int, typer.Option(min=0, max=365, help="From issue to the due day.")] = 14,
    series: Annotated[
        str | None, typer.Option(metavar="LETTERS", help="What document numbers begin with.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Agree on all terms of a tenant from a day on that is not invoiced yet; the last word of a day holds.

    Example: kvitto invoice terms set acme --from 2026-12-01 --tax 24 --fee support=49.00 --discount 1000=5
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.invoicing.terms import Discount, Terms

    agreed = Terms(
        payment_days=payment_days,
        tax_rate=tax,
        tax_note=tax_note,
        fees=tuple(map(_fee, fee or ())),
        commitment_cents=cents_of(commitment),
        discounts=tuple(
            Discount(cents_of(above), percent)
            for above, percent in (_pair(text, "--discount") for text in discount or ())
        ),
        series=series,
    ).check()

    async def work() -> str:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            await books.agreements.agree(owner.id, _day(first), agreed, clock.now(), actor=ACTOR)
            return owner.name

    name = session.run(work())
    if as_json:
        print_json({"tenant": name, "effective_from": first, "terms": _plain(agreed)})
    else:
        console().print(f"{name} has these terms from {first} on.", markup=False)


@terms.command("show")
def show_terms(tenant: TenantName, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show all terms that were ever agreed with a tenant, in the order in which they take effect.

    Example: kvitto invoice terms show acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            return [
                {
                    "effective_from": one.effective_from.isoformat(),
                    "tax": f"{one.terms.tax_rate} %",
                    "fees": ", ".join(f"{fee.name} {decimal_cents(fee.cents)}" for fee in one.terms.fees),
                    "commitment": decimal_cents(one.terms.commitment_cents),
                    "discounts": ", ".join(
                        f"{each.percent} % above {decimal_cents(each.above_cents)}"
                        for each in one.terms.discounts
                    ),
                    "payment_days": one.terms.payment_days,
                    "series": one.terms.series,
                    "terms": _plain(one.terms),
                }
                for one in await books.agreements.terms(owner.id)
            ]

    columns = (
        Column("effective_from", "from", style="bold"),
        Column("tax", "tax", right=True),
        Column("fees", "fees"),
        Column("commitment", "commitment", right=True),
        Column("discounts", "discounts"),
        Column("payment_days", "days", right=True),
        Column("series", "series"),
    )
    empty = "The usual: no fees, no tax, 14 days to pay."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@profile.command("set")
def set_profile(  # noqa: PLR0913, PLR0917 -- likewise
    tenant: Annotated[str, typer.Argument(help=HOUSE_HELP)],
    name: Annotated[str, typer.Option(help="Legal name.")],
    address: Annotated[list[str] | None, typer.Option(metavar="LINE", help="A line of it; again.")] = None,
    country: Annotated[str, typer.Option(metavar="XX", help="Two letters, ISO 3166.")] = "",
    tax_id: Annotated[str, typer.Option(metavar="TEXT", help="VAT number, say.")] = "",
    email: Annotated[str, typer.Option(metavar="ADDRESS", help="Where documents go.")] = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Say who a tenant is, for the documents from now on.

    Example: kvitto invoice profile set acme --name 'Acme AB' --address 'Gatan 1' --country SE --tax-id SE5566
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.invoicing.party import Party

    lines = "\n".join(address or ())
    said = {"legal_name": name, "address": lines, "country": country, "tax_id": tax_id, "email": email}
    party = Party.read(said)

    async def work() -> None:
        async with session.books(directory(data_dir)) as books:
            owner = await _named(books, tenant)
            await books.agreements.name(owner, party, clock.now(), actor=ACTOR)

    session.run(work())
    if as_json:
        print_json({"tenant": tenant, **party.facts()})
    else:
        console().print(f"{tenant} is {name} on documents from now on.", markup=False)


@profile.command("show")
def show_profile(
    tenant: Annotated[str, typer.Argument(help=HOUSE_HELP)], data_dir: DataDir = None, as_json: Json = False
) -> None:
    """Show who a tenant is on documents.

    Example: kvitto invoice profile show house
    """
    from admin.cli import session
    from admin.cli.output import console, print_json, print_pairs

    async def work() -> "dict[str, str] | None":
        async with session.books(directory(data_dir)) as books:
            found = await books.agreements.profile(await _named(books, tenant))
            return None if found is None else found.facts()

    facts = session.run(work())
    if as_json:
        print_json(facts)
    elif facts is None:
        console().print("Nobody has said: `kvitto invoice profile set` does.", style="dim")
    else:
        print_pairs([(name.replace("_", " "), value) for name, value in facts.items() if value])


@coupon.command("give")
def give_coupon(  # noqa: PLR0913, PLR0917 -- likewise
    tenant: TenantName,
    code: Annotated[str, typer.Argument(help="Letters, digits, - and _.")],
    first: Day,
    percent: Annotated[str | None, typer.Option(metavar="PERCENT", help="Off fees and usage.")] = None,
    amount: Annotated[str | None, typer.Option(metavar="AMOUNT", help="Off them, instead.")] = None,
    minimum: Annotated[str, typer.Option(metavar="AMOUNT", help="Only where they come to this.")] = "0",
    periods: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="In how many. [dim]\\[default: all][/dim]")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Give a tenant a coupon. What it cannot take off in a period lapses.

    Example: kvitto invoice coupon give acme WELCOME --from 2026-12-01 --amount 50 --periods 1
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.invoicing.agreements.given_coupon import GivenCoupon
    from billing.invoicing.terms import Coupon

    cents = None if amount is None else cents_of(amount)
    made = Coupon(code, percent, cents, cents_of(minimum)).check()
    given = GivenCoupon(made, periods, _day(first), clock.now())

    async def work() -> None:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            await books.agreements.give_coupon(owner.id, given, actor=ACTOR)

    session.run(work())
    if as_json:
        print_json(_coupon(given))
    else:
        console().print(f"{tenant} has the coupon {code} from {first} on.", markup=False)


@coupon.command("end")
def end_coupon(
    tenant: TenantName,
    code: Annotated[str, typer.Argument(help="Of the coupon.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Take a coupon back: no period that begins later uses it.

    Example: kvitto invoice coupon end acme WELCOME
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> None:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            await books.agreements.end_coupon(owner.id, code, clock.now(), actor=ACTOR)

    session.run(work())
    if as_json:
        print_json({"tenant": tenant, "code": code, "ended": True})
    else:
        console().print(f"The coupon {code} is taken back.", markup=False)


@coupon.command("list")
def list_coupons(tenant: TenantName, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the coupons of a tenant, and in how many periods each was used.

    Example: kvitto invoice coupon list acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            return [_coupon(one) for one in await books.agreements.coupons(owner.id)]

    columns = (
        Column("code", "code", style="bold"),
        Column("off", "off", right=True),
        Column("minimum", "minimum", right=True),
        Column("periods", "periods", right=True),
        Column("used", "used", right=True),
        Column("effective_from", "from"),
        Column("ended_at", "ended (UTC)"),
    )
    print_rows(session.run(work()), columns, as_json=as_json, empty="No coupons.")


def _coupon(given: "GivenCoupon") -> dict[str, object]:

    made = given.coupon
    return {
        "code": made.code,
        "off": f"{made.percent} %" if made.cents is None else decimal_cents(made.cents),
        "minimum": decimal_cents(made.minimum_cents),
        "periods": given.periods,
        "used": given.used,
        "effective_from": given.effective_from.isoformat(),
        "ended_at": given.ended_at,
    }


async def _named(books: "Books", tenant: str) -> str:
    from billing.audit.event import HOUSE

    return HOUSE if tenant == HOUSE else (await books.tenancy.tenant(tenant)).id


def _plain(agreed: "Terms") -> object:
    import msgspec

    return msgspec.to_builtins(agreed)


def _fee(text: str) -> "Fee":
    from billing.invoicing.terms import Fee

    name, amount = _pair(text, "--fee")
    cents, _, rate = amount.partition("@")
    return Fee(name, cents_of(cents), rate or None)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (equals and name and value):
        raise typer.BadParameter(f"{text!r} has no = with something on both sides", param_hint=option)
    return name, value


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no day such as 2026-12-01", param_hint="--from") from error
