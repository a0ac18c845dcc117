"""`kvitto invoice`: what tenants are billed, period by period, and how it is settled."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli import agreement, paper
from admin.cli.amounts import cents_of, decimal_cents
from admin.cli.options import ACTOR, DataDir, Json, directory

if TYPE_CHECKING:
    from admin.cli.output import Row
    from admin.cli.session import Books
    from billing.invoicing.document import InvoiceDocument
    from billing.invoicing.invoice import Invoice

app = typer.Typer(
    help="Close periods, look at invoices, and settle them; agree on what they are made by.",
    no_args_is_help=True,
)
app.add_typer(agreement.terms, name="terms")
app.add_typer(agreement.profile, name="profile")
app.add_typer(agreement.coupon, name="coupon")
app.command("print")(paper.print_)

TenantName = Annotated[str, typer.Argument(help="Name or id of the tenant.")]
Number = Annotated[str, typer.Argument(help="Of the document, from `kvitto invoice list`.")]
Reason = Annotated[str, typer.Option(help="Why, for the books and on the document.")]

_UNTOLD: Final = (
    "it is in the books, but Valkey does not answer, so gateways do not know the balance yet:"
    " `kvitto admission rebuild` tells them"
)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only documents of this tenant, by name or id.")] = None,
    overdue: Annotated[bool, typer.Option("--overdue", help="Only what is open after its day.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List invoices, statements, documents of top-ups and credit notes, newest last.

    Example: kvitto invoice list --tenant acme
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import Column, print_rows

    async def work() -> "list[Row]":
        async with session.books(directory(data_dir)) as books:
            owner = (await books.tenancy.tenant(tenant)).id if tenant else None
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            if overdue:
                late = await books.invoicing.overdue(clock.now())
                found = [one for one in late if owner in {None, one.tenant_id}]
            else:
                found = await books.invoicing.invoices(owner)
            return [_row(one, names[one.tenant_id]) for one in found]

    columns = (
        Column("number", "number", style="bold"),
        Column("tenant", "tenant"),
        Column("kind", "kind"),
        Column("until", "until (UTC)"),
        Column("total", "total", right=True),
        Column("open", "open", right=True),
        Column("currency", ""),
        Column("state", "state"),
        Column("due_at", "due (UTC)"),
    )
    none = "No documents yet: `kvitto invoice preview TENANT` shows the next."
    empty = "Nothing is overdue." if overdue else none
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("show")
def show(number: Number, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show a document line by line, and how it is settled. JSON is the document as it was signed.

    Example: kvitto invoice show 8F3A21C0-2
    """
    from admin.cli import session
    from admin.cli.output import console, print_pairs

    async def work() -> "tuple[Invoice, str]":
        async with session.books(directory(data_dir)) as books:
            found = await books.invoicing.invoice(number)
            return found, (await books.tenancy.tenant(found.tenant_id)).name

    found, name = session.run(work())
    if as_json:
        typer.echo(found.text)
        return
    row = _row(found, name)
    buyer = None if found.buyer is None else found.buyer.legal_name
    shown = ("number", "kind", "state", "tenant", "since", "until", "issued_at", "due_at", "credits")
    print_pairs(
        [*((each, row[each]) for each in shown if row[each] is not None), ("buyer", buyer or "not known")]
    )
    console().print()
    _print_lines(found.document)


@app.command("preview")
def preview(tenant: TenantName, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show what the next document of a tenant would say by now: a draft, without a number, that is not kept.

    Example: kvitto invoice preview acme
    """
    from admin.cli import session
    from admin.cli.output import console, instant_text, print_json

    async def work() -> "InvoiceDocument":
        async with session.books(directory(data_dir)) as books:
            return await books.invoicing.preview((await books.tenancy.tenant(tenant)).id)

    document = session.run(work())
    if as_json:
        print_json(document.to_payload())
        return
    until = instant_text(document.until)
    console().print(f"Draft of the {document.document} until {until}.", markup=False)
    _print_lines(document)


@app.command("close")
def close(
    tenant: TenantName,
    rederive: Annotated[
        bool, typer.Option("--rederive", help="Add up every event besides, and rate it again.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Close each period of a tenant that is over, now instead of within the hour.

    Example: kvitto invoice close acme --rederive
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> "list[Row]":
        async with session.signing(directory(data_dir)) as (books, desk):
            owner = await books.tenancy.tenant(tenant)
            closed = await desk.invoicing.close(owner.id, clock.now(), actor=ACTOR, rederive=rederive)
            await session.show_balance(books, owner.id, _UNTOLD)
            return [_row(one, owner.name) for one in closed]

    rows = session.run(work())
    if as_json:
        print_json(rows)
        return
    for row in rows:
        due = f"{row['total']} {row['currency']}, {row['open']} due"
        console().print(f"{row['number']}: {row['kind']} of {due}.", markup=False)


@app.command("pay")
def pay(
    number: Number,
    amount: Annotated[str, typer.Argument(help="In the document's currency, whole cents: 25 or 0.10.")],
    reference: Annotated[str, typer.Option(help="Of the payment: the same one again pays nothing.")],
    method: Annotated[str, typer.Option(help="How it was paid.")] = "transfer",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Record what was paid for an invoice, by bank transfer say.

    Example: kvitto invoice pay 8F3A21C0-2 124.50 --reference 'transfer of 2 May'
    """
    from admin import clock
    from admin.cli import session
    from billing.invoicing.invoice import Payment

    async def work() -> "Row":
        async with session.books(directory(data_dir)) as books:
            payment = Payment(number, cents_of(amount), method, reference, clock.now(), ACTOR)
            await books.settling.pay(payment)
            return await _settled(books, number)

    _print_settled(session.run(work()), as_json=as_json)


@app.command("void")
def void(number: Number, reason: Reason, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Give back all of an invoice for which nothing was paid, by a credit note. Its usage stays invoiced.

    Example: kvitto invoice void 8F3A21C0-2 --reason 'wrong tenant'
    """
    from admin import clock
    from admin.cli import session
    from billing.invoicing.settling import Deliberate

    async def work() -> "Row":
        async with session.signing(directory(data_dir)) as (books, desk):
            note, _ = await desk.settling.void(number, Deliberate(reason, ACTOR, clock.now()))
            return await _settled(books, number, note)

    _print_settled(session.run(work()), as_json=as_json)


@app.command("uncollectible")
def uncollectible(number: Number, reason: Reason, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Give up what is open of an invoice: it is written off.

    Example: kvitto invoice uncollectible 8F3A21C0-2 --reason 'insolvent'
    """
    from admin import clock
    from admin.cli import session
    from billing.invoicing.settling import Deliberate

    async def work() -> "Row":
        async with session.books(directory(data_dir)) as books:
            await books.settling.give_up(number, Deliberate(reason, ACTOR, clock.now()))
            return await _settled(books, number)

    _print_settled(session.run(work()), as_json=as_json)


@app.command("credit-note")
def credit_note(
    number: Number,
    reason: Reason,
    line: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINE=AMOUNT", help="Give back so much of a line, before tax; lines count from 1."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Give back lines of a document, or with none named all that is left of it, with their tax.

    It is taken off what is open; what was paid for becomes credit again.

    Example: kvitto invoice credit-note 8F3A21C0-2 --line 1=12.50 --reason 'slow answers'
    """
    from admin import clock
    from admin.cli import session
    from billing.invoicing.settling import Deliberate

    asked = None if not line else dict(_asked(each) for each in line)

    async def work() -> "Row":
        async with session.signing(directory(data_dir)) as (books, desk):
            note, _ = await desk.settling.credit(number, asked, Deliberate(reason, ACTOR, clock.now()))
            return await _settled(books, number, note)

    _print_settled(session.run(work()), as_json=as_json)


@app.command("bundle")
def bundle(
    tenant: TenantName,
    path: Annotated[Path, typer.Argument(help="A folder that is not there yet, or a name ending in .zip.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write all that a tenant needs to verify its documents without us: keys, heads, prices, receipts.

    Example: kvitto invoice bundle acme acme-2026.zip && kvitto verify bundle acme-2026.zip
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> "Row":
        async with session.signing(directory(data_dir)) as (books, desk):
            owner = await books.tenancy.tenant(tenant)
            written = await desk.bundles.write(owner.id, path, clock.now())
            return {
                "tenant": owner.name,
                "path": path,
                "receipts": written.receipts,
                "documents": written.documents,
            }

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        held = f"{row['receipts']} receipts and {row['documents']} documents of {row['tenant']}"
        console().print(f"{path} has {held}.", markup=False)


async def _settled(books: "Books", number: str, note: "Invoice | None" = None) -> "Row":
    """The document as it is settled now, and that gateways know what its tenant can spend."""
    from admin.cli import session

    found = await books.invoicing.invoice(number)
    await session.show_balance(books, found.tenant_id, _UNTOLD)
    row = _row(found, (await books.tenancy.tenant(found.tenant_id)).name)
    return {**row, "credit_note": None if note is None else note.number}


def _print_settled(row: "Row", *, as_json: bool) -> None:
    from admin.cli.output import console, print_json

    if as_json:
        print_json(row)
        return
    note = f" by {row['credit_note']}" if row["credit_note"] else ""
    text = f"{row['number']} is {row['state']}{note}; {row['open']} {row['currency']} are open."
    console().print(text, markup=False)


def _row(invoice: "Invoice", tenant: str) -> "Row":
    return {
        "number": invoice.number,
        "tenant": tenant,
        "kind": invoice.kind,
        "state": invoice.state,
        "currency": invoice.currency,
        "since": invoice.since,
        "until": invoice.until,
        "issued_at": invoice.issued_at,
        "due_at": invoice.due_at,
        "total": decimal_cents(invoice.total_cents),
        "credits_applied": decimal_cents(invoice.credits_applied_cents),
        "due": decimal_cents(invoice.due_cents),
        "paid": decimal_cents(invoice.paid_cents),
        "open": decimal_cents(invoice.open_cents),
        "credits": invoice.credits,
    }


def _print_lines(document: "InvoiceDocument") -> None:
    from admin.cli.output import Column, console, print_rows

    rows: list[Row] = [
        {
            "position": position,
            "text": line.text,
            "tax": f"{line.tax_rate} %",
            "amount": decimal_cents(line.cents),
        }
        for position, line in enumerate(document.lines, 1)
    ]
    rows += [
        {
            "text": f"tax of {tax.rate} % on {decimal_cents(tax.basis_cents)}",
            "amount": decimal_cents(tax.tax_cents),
        }
        for tax in document.tax
    ]
    rows.append({"text": "total", "amount": decimal_cents(document.total_cents)})
    if document.credits_applied_cents:
        rows.append({"text": "credit applied", "amount": decimal_cents(-document.credits_applied_cents)})
    rows.append({"text": f"due, {document.currency}", "amount": decimal_cents(document.due_cents)})
    columns = (
        Column("position", "", right=True),
        Column("text", "line"),
        Column("tax", "tax", right=True),
        Column("amount", "amount", right=True),
    )
    print_rows(rows, columns, as_json=False, empty="")
    if document.cache is not None:
        console().print(_cache(document), style="dim", markup=False)


def _cache(document: "InvoiceDocument") -> str:
    from billing.money import Femto, decimal_of

    cache = document.cache
    assert cache is not None
    saved, broken = (
        decimal_of(Femto(int(text))) for text in (cache.saved_femto, cache.broken_promises_femto)
    )
    served = cache.hit_tokens + cache.owed_tokens
    return (
        f"The cache served {served} tokens and saved {saved} {document.currency};"
        f" promises we broke cost us {broken}."
    )


def _asked(text: str) -> tuple[int, int]:
    line, equals, amount = text.partition("=")
    if not (equals and line.isascii() and line.isdigit() and int(line) > 0):
        raise typer.BadParameter(f"{text!r} is no line and amount such as 1=12.50", param_hint="--line")
    sign = -1 if amount.startswith("-") else 1
    return int(line) - 1, sign * cents_of(amount.removeprefix("-"))
