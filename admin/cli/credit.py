"""`kvitto credit`: money that tenants may spend."""

import secrets
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from admin.cli.options import INSTANT_HELP, DataDir, Json, directory, instant_of

app = typer.Typer(help="Give tenants credit.", no_args_is_help=True)

ACTOR: Final = "command line"
_UNTOLD: Final = (
    "the grant is in the ledger, but Valkey does not answer, so gateways do not know yet: "
    "repeat the command with --idempotency-key {key} to tell them; it grants nothing twice"
)


class Kind(StrEnum):
    """Where credit came from: granted by the operator, or paid for."""

    GRANTED = "granted"
    TOPPED_UP = "topped_up"


@app.command("grant")
def grant(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    tenant: Annotated[str, typer.Argument(help="Name or id of the tenant.")],
    amount: Annotated[str, typer.Argument(help="In the tenant's currency, exact: 25 or 0.10.")],
    kind: Annotated[
        Kind, typer.Option(help="Granted credit is spent before topped-up credit.")
    ] = Kind.GRANTED,
    reason: Annotated[str, typer.Option(help="Why, for the books.")] = "granted on the command line",
    expires: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="When it lapses. Sooner expiry is spent first.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The same key again grants nothing more.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Grant credit to a tenant; it can be spent at once.

    Example: kvitto credit grant acme 25 --reason 'welcome' --expires 2027-01-01
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.errors import CommandFailed
    from admin.cli.output import console, print_json
    from billing.ledger.credit import Grant
    from billing.money import decimal_of, femto_of
    from gateway.admission.admit import Admission
    from gateway.refusal import ValkeyUnavailable

    at = clock.now()
    given = Grant(
        amount=femto_of(amount),
        kind=kind.value,
        reason=reason,
        actor=ACTOR,
        expires_at=_expiry(expires, at),
        idempotency_key=idempotency_key or secrets.token_hex(16),
    )

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            version = await books.ledger.grant(owner.id, given, at)
            async with session.valkey(books.settings) as valkey:
                try:
                    await Admission(valkey).project(version)
                except ValkeyUnavailable as error:
                    raise CommandFailed(_UNTOLD.format(key=given.idempotency_key)) from error
        return {
            "tenant": owner.name,
            "tenant_id": owner.id,
            "kind": kind.value,
            "amount": decimal_of(given.amount),
            "balance": decimal_of(version.balance),
            "currency": owner.currency,
            "expires_at": given.expires_at,
        }

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        text = "{tenant} was given {amount} {currency} ({kind}); its balance is {balance} {currency}."
        console().print(text.format(**row), markup=False)


def _expiry(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    expiry = instant_of(text, now)
    if expiry <= now:
        raise typer.BadParameter(
            f"{text} has passed: write {INSTANT_HELP.rsplit(' or', 1)[0]}", param_hint="--expires"
        )
    return expiry
