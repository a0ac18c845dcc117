"""`kvitto balance`: what a tenant has and owes."""

from typing import Annotated

import typer

from admin.cli.options import DataDir, Json, directory


def balance(
    tenant: Annotated[str, typer.Argument(help="Name or id of the tenant.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show what a tenant can spend, and what that is made of.

    Example: kvitto balance acme --json
    """
    from admin.cli import session
    from admin.cli.output import print_json, print_pairs
    from billing.money import Femto, decimal_of

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            present = await books.ledger.balance(owner.id)
        debt = max(0, -present.topped_up)
        return {
            "tenant": owner.name,
            "tenant_id": owner.id,
            "currency": owner.currency,
            "billing_mode": present.terms.mode,
            "spendable": decimal_of(present.spendable),
            "granted": decimal_of(present.granted),
            "topped_up": decimal_of(Femto(present.topped_up + debt)),
            "debt": decimal_of(Femto(debt)),
            "receivable": decimal_of(Femto(-present.receivable)),
            "credit_limit": decimal_of(present.terms.credit_limit),
        }

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        print_pairs([(name.replace("_", " "), value) for name, value in row.items()])
