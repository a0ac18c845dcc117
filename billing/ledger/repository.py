"""Statements on the ledger: wallets under lock, transactions appended, balances read."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import ScalarSelect, Select, and_, case, func, insert, literal, null, select, text, update
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import Bulk, Rows, as_text
from billing.db.tables import (
    auto_top_up,
    balance,
    credit_lot,
    ledger_entry,
    ledger_transaction,
    tenant,
    top_up_request,
)
from billing.ledger.auto_top_up import AutoTopUp, TopUpRequest
from billing.ledger.balance import Balance, BalanceVersion, BillingTerms
from billing.ledger.credit import Effect, MovementRow
from billing.ledger.entries import CREDIT_ACCOUNTS, TENANTS_ACCOUNTS, Account, Transaction
from billing.ledger.integrity import RULES
from billing.ledger.lot import Lot
from billing.ledger.wallet import Wallet
from billing.money import Femto


def _count(rows: Select[Any]) -> ScalarSelect[int]:
    return select(func.count()).select_from(rows.subquery()).scalar_subquery()


def _replacing(insert: Insert, key: str, names: Sequence[str]) -> Insert:
    """These columns of rows that are there already."""
    return insert.on_conflict_do_update(
        index_elements=[key], set_={name: insert.excluded[name] for name in names}
    )


_TRANSACTION: Final = ("id", "tenant_id", "kind", "at", "actor", "reason", "idempotency_key")
_ENTRY: Final = ("transaction_id", "position", "tenant_id", "account", "lot_id", "amount")
_LOT: Final = ("id", "account", "amount", "remaining", "created_at", "expires_at", "priority")
_BALANCE: Final = ("tenant_id", "granted", "topped_up", "receivable", "version")
_balance_text: Final = [
    of if name in {"tenant_id", "version"} else as_text(of) for name in _BALANCE for of in (balance.c[name],)
]
_lot_text: Final = [
    as_text(of) if name in {"amount", "remaining"} else of for name in _LOT for of in (credit_lot.c[name],)
]
_TERMS: Final = (tenant.c.billing_mode, tenant.c.credit_limit)

_wanted: Final = Rows(balance, ["tenant_id"], "wanted_balance")
_is_wanted: Final = balance.c.tenant_id.in_(select(_wanted.values))
# None of them unless all are there: a lock taken before a row is made would be taken out of order.
_LOCK: Final = Bulk(
    select(*_balance_text)
    .where(
        _is_wanted, _count(select(balance.c.tenant_id).where(_is_wanted)) == _count(select(_wanted.values))
    )
    .order_by(balance.c.tenant_id)
    .with_for_update(key_share=True),
    _wanted,
)
_MAKE_AND_LOCK: Final = Bulk(
    upsert(balance)
    .from_select(_BALANCE, select(_wanted.values.c.tenant_id, *(text("0") for _ in _BALANCE[1:])))
    .on_conflict_do_update(index_elements=["tenant_id"], set_={"version": balance.c.version})
    .returning(*_balance_text),
    _wanted,
)
_TERMS_AND_LOTS: Final = Bulk(
    select(tenant.c.id.label("tenant_id"), _TERMS[0], as_text(_TERMS[1]), *_lot_text)
    .outerjoin(credit_lot, and_(credit_lot.c.tenant_id == tenant.c.id, ~credit_lot.c.spent))
    .where(tenant.c.id.in_(select(_wanted.values))),
    _wanted,
)
_transactions: Final = Rows(ledger_transaction, _TRANSACTION)
_OPEN: Final = Bulk(_transactions.insert(), _transactions)
_entries: Final = Rows(ledger_entry, _ENTRY)
_lots: Final = Rows(credit_lot, ("tenant_id", *_LOT))
_balances: Final = Rows(balance, _BALANCE)
_BOOK: Final = Bulk(
    _entries.insert().add_cte(
        _replacing(_lots.insert(), "id", ["remaining"]).cte("lots"),
        _replacing(_balances.insert(), "tenant_id", _BALANCE[1:]).cte("balances"),
    ),
    *(_lots, _balances, _entries),
)

_transaction: Final = attrgetter(*_TRANSACTION)
_lot_row: Final = attrgetter(*_LOT)
_balance: Final = attrgetter(*_BALANCE)


async def open_wallets(connection: AsyncConnection, tenant_ids: Collection[str]) -> dict[str, Wallet]:
    """Lock the balances of these tenants until the transaction ends; each gets its next version.

    A sorted SELECT ... FOR UPDATE, or INSERT ... ON CONFLICT DO UPDATE where one has no balance yet: several
    at once wait for each other and never deadlock, which a sorted UPDATE ... FROM does not promise.
    """
    wanted = [(tenant_id,) for tenant_id in sorted(tenant_ids)]
    locked = await _LOCK.run(connection, wanted) or await _MAKE_AND_LOCK.run(connection, wanted)
    lots: defaultdict[str, list[Lot]] = defaultdict(list)
    # After the balances are locked: who changes terms locks them too.
    terms: dict[str, BillingTerms] = {}
    for row in await _TERMS_AND_LOTS.run(connection, wanted):
        tenant_id, mode, limit, lot_id, account, amount, remaining, *more = row.values()
        if tenant_id not in terms:
            terms[tenant_id] = BillingTerms(mode, Femto(int(limit)))
        if lot_id is not None:
            lot = Lot(lot_id, CREDIT_ACCOUNTS[account], Femto(int(amount)), Femto(int(remaining)), *more)
            lots[tenant_id].append(lot)
    wallets: dict[str, Wallet] = {}
    for tenant_id, *amounts, version in (row.values() for row in locked):
        granted, topped_up, receivable = (Femto(int(amount)) for amount in amounts)
        wallets[tenant_id] = Wallet(
            tenant_id, granted, topped_up, version + 1, lots[tenant_id], receivable, terms[tenant_id]
        )
    return wallets


async def append(
    connection: AsyncConnection, transactions: Collection[Transaction], wallets: Iterable[Wallet]
) -> None:
    """Append transactions with their entries, and write the wallets that they left, which are locked."""
    await _OPEN.run(connection, map(_transaction, transactions))
    await book(connection, transactions, wallets)


def opening(charges: Select[Any]) -> Insert:
    """The transactions of charges: selected are their ids, tenants, kind and instants."""
    return upsert(ledger_transaction).from_select(_TRANSACTION[:4], charges)


async def book(
    connection: AsyncConnection, transactions: Collection[Transaction], wallets: Iterable[Wallet]
) -> None:
    """Write the entries of transactions that are there, and the wallets that they left, which are locked.

    The order of either is free.
    """
    opened = list(wallets)
    for wallet in opened:
        wallet.check()
    await _BOOK.run(
        connection,
        ((wallet.tenant_id, *_lot_row(lot)) for wallet in opened for lot in wallet.changed.values()),
        map(_balance, opened),
        (
            (transaction.id, position, transaction.tenant_id, entry.account, entry.lot_id, entry.amount)
            for transaction in transactions
            for position, entry in enumerate(transaction.entries)
        ),
    )


async def select_balance(connection: AsyncConnection, tenant_id: str) -> Balance | None:
    """None when there is no such tenant; all zero when it has no transaction yet."""
    return (await _select_balances(connection, [tenant_id])).get(tenant_id)


async def select_versions(connection: AsyncConnection, tenant_ids: Collection[str]) -> list[BalanceVersion]:
    """What the tenants can spend now."""
    return [
        BalanceVersion(tenant_id, present.spendable, present.version)
        for tenant_id, present in (await _select_balances(connection, tenant_ids)).items()
    ]


async def _select_balances(connection: AsyncConnection, tenant_ids: Collection[str]) -> dict[str, Balance]:
    amounts = (func.coalesce(balance.c[name], 0) for name in ("granted", "topped_up", "receivable"))
    statement = (
        select(tenant.c.id, *amounts, tenant.c.currency, func.coalesce(balance.c.version, 0), *_TERMS)
        .select_from(tenant.outerjoin(balance))
        .where(tenant.c.id.in_(tenant_ids))
    )
    return {
        tenant_id: Balance(granted, topped_up, receivable, currency, version, BillingTerms(*terms))
        for tenant_id, granted, topped_up, receivable, currency, version, *terms in await connection.execute(
            statement
        )
    }


async def update_terms(connection: AsyncConnection, tenant_id: str, terms: BillingTerms) -> None:
    """The tenant's balance must be locked."""
    await connection.execute(
        update(tenant)
        .where(tenant.c.id == tenant_id)
        .values(billing_mode=terms.mode, credit_limit=terms.credit_limit)
    )


async def select_movements(
    connection: AsyncConnection, tenant_id: str, idempotency_key: str | None = None
) -> list[MovementRow]:
    """All but the charges, newest first; or the one under an idempotency key."""
    moved = ledger_transaction.c
    statement = (
        select(
            *(moved.id, moved.at, moved.kind, ledger_entry.c.account, ledger_entry.c.amount),
            *(credit_lot.c.expires_at, credit_lot.c.priority),
            *(moved.reason, moved.actor, moved.idempotency_key, credit_lot.c.remaining),
        )
        .select_from(
            ledger_transaction.join(ledger_entry, ledger_entry.c.transaction_id == moved.id).outerjoin(
                credit_lot, credit_lot.c.id == moved.id
            )
        )
        .where(moved.tenant_id == tenant_id, moved.kind != "charge")
        .where(ledger_entry.c.account.not_in(TENANTS_ACCOUNTS))
        .order_by(moved.id.desc(), ledger_entry.c.position)
    )
    if idempotency_key is not None:
        statement = statement.where(moved.idempotency_key == idempotency_key)
    return [
        MovementRow(id_, at, Effect(kind, Account(account), amount, *use), *why)
        for id_, at, kind, account, amount, *use_and_why in await connection.execute(statement)
        for use, why in [(use_and_why[:2], use_and_why[2:])]
    ]


async def tenants_with_ended_credit(connection: AsyncConnection, at: datetime) -> set[str]:
    """Who has something left in a lot that has ended by ``at``."""
    statement = select(credit_lot.c.tenant_id).where(~credit_lot.c.spent, credit_lot.c.expires_at <= at)
    return set((await connection.execute(statement)).scalars())


async def select_faults(connection: AsyncConnection) -> list[tuple[str, str]]:
    """Violations of the ledger's rules, all seen at one instant: of what, and the whole sentence."""
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    return [
        (row[0], sentence.format(*row))
        for sentence, query in RULES.items()
        for row in await connection.execute(text(query))
    ]


async def upsert_auto_top_up(connection: AsyncConnection, tenant_id: str, rule: AutoTopUp) -> None:
    """Refused by fk_auto_top_up_tenant_id when there is no such tenant. Requests made stay counted."""
    values = {
        "threshold": rule.threshold,
        "amount": rule.amount,
        "enabled": rule.enabled,
        "armed": rule.armed,
    }
    statement = upsert(auto_top_up).values(tenant_id=tenant_id, **values)
    await connection.execute(statement.on_conflict_do_update(index_elements=["tenant_id"], set_=values))


async def disable_auto_top_up(connection: AsyncConnection, tenant_id: str) -> int:
    """A tenant's rule asks no more; returns how many did."""
    statement = (
        update(auto_top_up)
        .where(auto_top_up.c.tenant_id == tenant_id, auto_top_up.c.enabled)
        .values(enabled=False)
        .returning(auto_top_up.c.tenant_id)
    )
    return len((await connection.execute(statement)).all())


async def select_auto_top_up(
    connection: AsyncConnection, tenant_id: str, *, lock: bool = True
) -> AutoTopUp | None:
    """A tenant's rule, locked; None when it has none."""
    statement = select(auto_top_up).where(auto_top_up.c.tenant_id == tenant_id)
    statement = statement.with_for_update() if lock else statement
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else AutoTopUp(row.threshold, row.amount, row.enabled, row.armed)


async def rearm(connection: AsyncConnection, present: BalanceVersion) -> None:
    """A balance that has risen to its threshold may cross it again."""
    await connection.execute(
        update(auto_top_up)
        .where(
            auto_top_up.c.tenant_id == present.tenant_id,
            auto_top_up.c.threshold <= present.balance,
            auto_top_up.c.armed.is_(False),
        )
        .values(armed=True)
    )


async def lock_auto_top_ups(connection: AsyncConnection, at: datetime) -> dict[str, tuple[AutoTopUp, int]]:
    """The rules that may ask at this instant, by tenant, each with the number of its requests so far."""
    statement = (
        select(auto_top_up)
        .where(auto_top_up.c.enabled, auto_top_up.c.armed | (auto_top_up.c.retry_at <= at))
        .order_by(auto_top_up.c.tenant_id)
        .with_for_update()
    )
    return {
        row.tenant_id: (AutoTopUp(row.threshold, row.amount), row.requested)
        for row in await connection.execute(statement)
    }


async def insert_top_up_requests(connection: AsyncConnection, requests: Sequence[TopUpRequest]) -> None:
    """Record crossings; their rules must be locked, and are disarmed."""
    rows = [
        {
            "tenant_id": request.tenant_id,
            "number": request.number,
            "amount": request.amount,
            "requested_at": request.requested_at,
            "balance": request.crossed_at.balance,
            "balance_version": request.crossed_at.version,
        }
        for request in requests
    ]
    await connection.execute(insert(top_up_request), rows)
    await connection.execute(
        update(auto_top_up)
        .where(auto_top_up.c.tenant_id.in_([request.tenant_id for request in requests]))
        .values(armed=False, requested=auto_top_up.c.requested + 1, retry_at=None)
    )


async def update_declines(
    connection: AsyncConnection, tenant_id: str, retry_at: Sequence[datetime] | None
) -> None:
    """Count a decline of a rule's payment, or forget them all.

    Args:
        connection: a settler's transaction.
        tenant_id: who has the rule; nothing happens without one.
        retry_at: when to ask again after the first decline in a row, the second …, the last and any later.
            None: a payment came in.
    """
    rule = auto_top_up.c
    if retry_at is None:
        values = {"declines": literal(0), "retry_at": null()}
    else:
        again = case(dict(enumerate(retry_at[:-1])), value=rule.declines, else_=retry_at[-1])
        values = {"declines": rule.declines + 1, "retry_at": again}
    await connection.execute(update(auto_top_up).where(rule.tenant_id == tenant_id).values(values))


async def select_top_up_requests(connection: AsyncConnection, tenant_id: str) -> list[TopUpRequest]:
    """Of one tenant, oldest first."""
    statement = (
        select(top_up_request)
        .where(top_up_request.c.tenant_id == tenant_id)
        .order_by(top_up_request.c.number)
    )
    return [
        TopUpRequest(
            row.tenant_id,
            row.number,
            row.amount,
            row.requested_at,
            BalanceVersion(row.tenant_id, row.balance, row.balance_version),
        )
        for row in await connection.execute(statement)
    ]
