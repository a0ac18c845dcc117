"""`kvitto credit`: money that tenants may spend, and what becomes of it."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory, future_of

if TYPE_CHECKING:
    from billing.ledger.balance import BalanceVersion
    from billing.ledger.credit import Movement
    from billing.ledger.service import Ledger
    from billing.money import Femto

app = typer.Typer(
    help="Give tenants credit, pay it back, write debt off; every movement with a reason, for good.",
    no_args_is_help=True,
)

_UNTOLD: Final = (
    "it is in the ledger, but Valkey does not answer, so gateways do not know yet: "
    "repeat the command with --idempotency-key {key} to tell them; nothing is moved twice"
)
_UNTOLD_TERMS: Final = (
    "the terms are agreed, but Valkey does not answer, so gateways do not know yet: repeat the command"
)

TenantName = Annotated[str, typer.Argument(help="Name or id of the tenant.")]
Amount = Annotated[str, typer.Argument(help="In the tenant's currency, exact: 25 or 0.10.")]
Reason = Annotated[str, typer.Option(help="Why, for the books.")]
Key = Annotated[
    str | None, typer.Option("--idempotency-key", metavar="TEXT", help="The same key again moves nothing.")
]
Expires = Annotated[
    str | None, typer.Option(metavar="INSTANT", help="When it lapses. Sooner expiry is spent first.")
]


class Favours(StrEnum):
    """In whose favour a correction is."""

    TENANT = "tenant"
    HOUSE = "house"


class Mode(StrEnum):
    """When a tenant pays."""

    PREPAID = "prepaid"
    POSTPAID = "postpaid"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A movement as the command line asks for it: whom, how much, and the key that makes it happen once."""

    tenant: str
    amount: str
    key: str | None
    data_dir: Path | None
    as_json: bool


@app.command("grant")
def grant(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    tenant: TenantName,
    amount: Amount,
    reason: Reason = "granted on the command line",
    expires: Expires = None,
    priority: Annotated[
        int, typer.Option(min=1, max=100, help="Lower is spent first, whatever expires sooner.")
    ] = 50,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Grant credit to a tenant; it can be spent at once, and before what it has paid for.

    Example: kvitto credit grant acme 25 --reason 'welcome' --expires 2027-01-01
    """
    from admin import clock
    from billing.ledger.credit import Grant

    ends = _expiry(expires, clock.now())
    _move(
        _Asked(tenant, amount, idempotency_key, data_dir, as_json),
        lambda femto, key: Grant(femto, "granted", reason, ACTOR, ends, key, priority),
        "{tenant} was given {amount} {currency}",
    )


@app.command("top-up")
def top_up(  # noqa: PLR0913, PLR0917 -- likewise
    tenant: TenantName,
    amount: Amount,
    reason: Reason = "paid, recorded on the command line",
    expires: Expires = None,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Record what a tenant has paid in. It pays first what the tenant owes.

    Example: kvitto credit top-up acme 100 --reason 'bank transfer of 2 May' --idempotency-key transfer-7
    """
    from admin import clock
    from billing.ledger.credit import Grant

    ends = _expiry(expires, clock.now())
    _move(
        _Asked(tenant, amount, idempotency_key, data_dir, as_json),
        lambda femto, key: Grant(femto, "topped_up", reason, ACTOR, ends, key),
        "{tenant} paid in {amount} {currency}",
    )


@app.command("refund")
def refund(  # noqa: PLR0913, PLR0917 -- likewise
    tenant: TenantName,
    amount: Amount,
    reason: Reason,
    of: Annotated[
        UUID | None, typer.Option(metavar="ID", help="The top-up to pay back. [dim]\\[default: any][/dim]")
    ] = None,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Pay back credit that was paid for, at most what remains of it.

    Example: kvitto credit refund acme 40 --reason 'closes its account'
    """
    from billing.ledger.credit import Refund

    _move(
        _Asked(tenant, amount, idempotency_key, data_dir, as_json),
        lambda femto, key: Refund(femto, reason, ACTOR, of, key),
        "{tenant} was paid back {amount} {currency}",
    )


@app.command("write-off")
def write_off(
    tenant: TenantName,
    amount: Amount,
    reason: Reason,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Forgive what a tenant owes, at most all of it.

    Example: kvitto credit write-off acme 3.20 --reason 'overage of the outage'
    """
    from billing.ledger.credit import WriteOff

    _move(
        _Asked(tenant, amount, idempotency_key, data_dir, as_json),
        lambda femto, key: WriteOff(femto, reason, ACTOR, key),
        "{tenant} was forgiven {amount} {currency}",
    )


@app.command("correct")
def correct(  # noqa: PLR0913, PLR0917 -- likewise
    tenant: TenantName,
    amount: Amount,
    reason: Reason,
    favours: Annotated[Favours, typer.Option(help="Who was charged, or earned, too little.")],
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Correct what was charged; the charges themselves stay in the books as they were.

    Example: kvitto credit correct acme 0.75 --favours tenant --reason 'price typed wrong on 2 May'
    """
    from billing.ledger.credit import Correction

    _move(
        _Asked(tenant, amount, idempotency_key, data_dir, as_json),
        lambda femto, key: Correction(femto, favours.value, reason, ACTOR, key),
        "{tenant}: {amount} {currency} corrected",
    )


@app.command("list")
def list_(tenant: TenantName, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List every movement of a tenant's money but its charges, newest first.

    Example: kvitto credit list acme --json
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows
    from billing.money import Femto, decimal_of

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            return [
                {
                    "id": row.transaction_id,
                    "at": row.at,
                    "kind": row.effect.kind,
                    "amount": decimal_of(Femto(-row.effect.amount)),
                    "faced_by": row.effect.account.value,
                    "currency": owner.currency,
                    "remaining": None if row.remaining is None else decimal_of(Femto(row.remaining)),
                    "expires_at": row.effect.expires_at,
                    "priority": row.effect.priority,
                    "reason": row.reason,
                    "actor": row.actor,
                    "idempotency_key": row.idempotency_key,
                }
                for row in await books.ledger.movements(owner.id)
            ]

    columns = (
        Column("at", "at (UTC)"),
        Column("kind", "kind", style="bold"),
        Column("amount", "amount", right=True),
        Column("currency", ""),
        Column("remaining", "remaining", right=True),
        Column("expires_at", "expires (UTC)"),
        Column("reason", "reason"),
        Column("actor", "actor"),
        Column("id", "id"),
    )
    print_rows(session.run(work()), columns, as_json=as_json, empty="No money has moved yet.")


@app.command("terms")
def terms(
    tenant: TenantName,
    mode: Annotated[Mode, typer.Option(help="Pay before use, or after.")],
    limit: Annotated[str, typer.Option(metavar="AMOUNT", help="What a postpaid tenant may owe.")] = "0",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Agree on how a tenant pays, from its next request on.

    Example: kvitto credit terms acme --mode postpaid --limit 500
    """
    from admin import clock
    from billing.ledger.balance import BillingTerms
    from billing.money import femto_of

    agreed = BillingTerms(mode.value, femto_of(limit))

    async def change(ledger: "Ledger", tenant_id: str) -> tuple["BalanceVersion", dict[str, object]]:
        version = await ledger.agree(tenant_id, agreed, clock.now(), actor=ACTOR)
        return version, {"billing_mode": mode.value, "credit_limit": limit}

    text = "{tenant} is {billing_mode}; it can spend {balance} {currency}."
    _tell(tenant, change, _UNTOLD_TERMS, text, data_dir, as_json=as_json)


@app.command("alert")
def alert(
    tenant: TenantName,
    below: Annotated[
        str | None, typer.Argument(metavar="[AMOUNT]", help="The balance under which to tell.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Tell nothing.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Tell a tenant when its balance falls below a threshold, once each time (`kvitto webhook`).

    Example: kvitto credit alert acme 10
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.money import femto_of

    if (below is None) != off:
        raise typer.BadParameter("name an amount, or say --off", param_hint="AMOUNT")
    threshold = None if below is None else femto_of(below)

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            await books.alerts.set_balance_alert(owner.id, threshold, clock.now(), actor=ACTOR)
        return {"tenant": owner.name, "below": below}

    row = session.run(work())
    if as_json:
        print_json(row)
    elif off:
        console().print(f"{row['tenant']} is told nothing of its balance.", markup=False)
    else:
        console().print(f"{row['tenant']} is told when it has less than {below}.", markup=False)


@app.command("auto")
def auto(
    tenant: TenantName,
    below: Annotated[str, typer.Option(metavar="AMOUNT", help="The balance under which to ask.")],
    amount: Annotated[str, typer.Option(metavar="AMOUNT", help="How much to ask for.")],
    on: Annotated[bool, typer.Option("--on/--off", help="Whether to ask at all.")] = True,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Ask for a top-up whenever a tenant's balance falls below a threshold, once each time.

    Example: kvitto credit auto acme --below 10 --amount 100
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.ledger.auto_top_up import AutoTopUp
    from billing.money import femto_of

    rule = AutoTopUp(femto_of(below), femto_of(amount), enabled=on)

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            await books.ledger.set_auto_top_up(owner.id, rule, clock.now(), actor=ACTOR)
            asked = len(await books.ledger.top_up_requests(owner.id))
        return {"tenant": owner.name, "below": below, "amount": amount, "enabled": on, "requested": asked}

    row = session.run(work())
    if as_json:
        print_json(row)
    elif on:
        console().print(f"{row['tenant']} asks for {amount} when it has less than {below}.", markup=False)
    else:
        console().print(f"{row['tenant']} does not ask for top-ups.", markup=False)


def _move(asked: _Asked, movement_of: Callable[["Femto", str], "Movement"], sentence: str) -> None:
    """Post a movement, tell gateways the balance, print both."""
    from admin import clock
    from billing.money import decimal_of, femto_of

    key = asked.key or secrets.token_hex(16)
    movement = movement_of(femto_of(asked.amount), key)

    async def post(ledger: "Ledger", tenant_id: str) -> tuple["BalanceVersion", dict[str, object]]:
        posted = await ledger.post(tenant_id, movement, clock.now())
        return posted.balance, {
            "transaction_id": posted.transaction_id,
            "kind": movement.transaction_kind,
            "amount": decimal_of(movement.amount),
            "expires_at": movement.effect.expires_at,
        }

    text = f"{sentence}; it can spend {{balance}} {{currency}}."
    _tell(asked.tenant, post, _UNTOLD.format(key=key), text, asked.data_dir, as_json=asked.as_json)


def _tell(
    tenant: str,
    change: Callable[["Ledger", str], Awaitable[tuple["BalanceVersion", dict[str, object]]]],
    untold: str,
    sentence: str,
    data_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    """Change the ledger, tell gateways what can be spent now, print both."""
    from admin.cli import session
    from admin.cli.errors import CommandFailed
    from admin.cli.output import console, print_json
    from billing.money import decimal_of
    from gateway.admission.admit import Admission
    from gateway.refusal import ValkeyUnavailable

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            version, changed = await change(books.ledger, owner.id)
            async with session.valkey(books.settings) as valkey:
                try:
                    await Admission(valkey).project(version)
                except ValkeyUnavailable as error:
                    raise CommandFailed(untold) from error
        return {
            "tenant": owner.name,
            "tenant_id": owner.id,
            "balance": decimal_of(version.balance),
            "currency": owner.currency,
            **changed,
        }

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(sentence.format(**row), markup=False)


def _expiry(text: str | None, now: datetime) -> datetime | None:
    return None if text is None else future_of(text, now, "--expires")
