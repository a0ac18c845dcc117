"""Statements on the ledger: wallets under lock, transactions appended, balances read."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import and_, func, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import arrays, unnested
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

_TRANSACTION: Final = ("id", "tenant_id", "kind", "at", "actor", "reason", "idempotency_key")
_ENTRY: Final = ("transaction_id", "position", "tenant_id", "account", "lot_id", "amount")
_LOT: Final = ("id", "account", "amount", "remaining", "created_at", "expires_at", "priority")
_BALANCE: Final = ("tenant_id", "granted", "topped_up", "receivable")
_TERMS: Final = (tenant.c.billing_mode, tenant.c.credit_limit)


async def open_wallets(connection: AsyncConnection, tenant_ids: Collection[str]) -> dict[str, Wallet]:
    """Lock the balances of these tenants until the transaction ends; each gets its next version.

    A sorted INSERT ... ON CONFLICT DO UPDATE: several at once wait for each other and never deadlock, which a
    sorted UPDATE ... FROM does not promise.
    """
    rows = unnested(balance, ["tenant_id"])
    zero = select(rows.c.tenant_id, literal(0), literal(0), literal(1)).order_by(rows.c.tenant_id)
    statement = (
        upsert(balance)
        .from_select(["tenant_id", "granted", "topped_up", "version"], zero)
        .on_conflict_do_update(index_elements=["tenant_id"], set_={"version": balance.c.version + 1})
        .returning(*balance.c)
    )
    locked = (await connection.execute(statement, {"all_tenant_id": sorted(tenant_ids)})).mappings().all()
    terms, lots = await _terms_and_lots(connection, tenant_ids)
    return {(id_ := row["tenant_id"]): Wallet(**row, lots=lots[id_], terms=terms[id_]) for row in locked}


async def _terms_and_lots(
    connection: AsyncConnection, tenant_ids: Collection[str]
) -> tuple[dict[str, BillingTerms], defaultdict[str, list[Lot]]]:
    """Read after the balances are locked: who changes terms locks them too."""
    is_open = and_(credit_lot.c.tenant_id == tenant.c.id, credit_lot.c.remaining > 0)
    statement = (
        select(tenant.c.id, *_TERMS, *(credit_lot.c[name] for name in _LOT))
        .select_from(tenant.outerjoin(credit_lot, is_open))
        .where(tenant.c.id.in_(tenant_ids))
    )
    terms: dict[str, BillingTerms] = {}
    lots: defaultdict[str, list[Lot]] = defaultdict(list)
    for tenant_id, mode, limit, lot_id, *columns in await connection.execute(statement):
        terms[tenant_id] = BillingTerms(mode, limit)
        if lot_id is not None:
            lots[tenant_id].append(_lot(lot_id, *columns))
    return terms, lots


def _lot(lot_id: UUID, account: str, *more: Any) -> Lot:
    """From the columns of ``_LOT``."""
    return Lot(lot_id, CREDIT_ACCOUNTS[account], *more)


async def append(
    connection: AsyncConnection, transactions: Collection[Transaction], wallets: Iterable[Wallet]
) -> None:
    """Append transactions, and write the wallets that they left."""
    opened = list(wallets)
    await _insert_transactions(connection, transactions)
    await _write_lots(connection, opened)
    await _insert_entries(connection, transactions)
    await _write_balances(connection, opened)


async def _insert_transactions(connection: AsyncConnection, transactions: Iterable[Transaction]) -> None:
    rows = [{name: getattr(transaction, name) for name in _TRANSACTION} for transaction in transactions]
    statement = insert(ledger_transaction).from_select(
        _TRANSACTION, select(unnested(ledger_transaction, _TRANSACTION))
    )
    await connection.execute(statement, arrays(rows, _TRANSACTION))


async def _write_lots(connection: AsyncConnection, wallets: Iterable[Wallet]) -> None:
    rows = [
        {"tenant_id": wallet.tenant_id} | {name: getattr(lot, name) for name in _LOT}
        for wallet in wallets
        for lot in wallet.changed.values()
    ]
    if not rows:
        return
    names = ("tenant_id", *_LOT)
    statement = upsert(credit_lot).from_select(names, select(unnested(credit_lot, names)))
    statement = statement.on_conflict_do_update(
        index_elements=["id"], set_={"remaining": statement.excluded.remaining}
    )
    await connection.execute(statement, arrays(rows, names))


async def _insert_entries(connection: AsyncConnection, transactions: Iterable[Transaction]) -> None:
    rows = [
        {
            "transaction_id": transaction.id,
            "position": position,
            "tenant_id": transaction.tenant_id,
            "account": entry.account,
            "lot_id": entry.lot_id,
            "amount": entry.amount,
        }
        for transaction in transactions
        for position, entry in enumerate(transaction.entries)
    ]
    if not rows:
        return
    statement = insert(ledger_entry).from_select(_ENTRY, select(unnested(ledger_entry, _ENTRY)))
    await connection.execute(statement, arrays(rows, _ENTRY))


async def _write_balances(connection: AsyncConnection, wallets: Iterable[Wallet]) -> None:
    """The rows are locked already, so that their order does not matter."""
    values = [{name: getattr(wallet, name) for name in _BALANCE} for wallet in wallets]
    rows = unnested(balance, _BALANCE)
    statement = (
        update(balance)
        .where(balance.c.tenant_id == rows.c.tenant_id)
        .values(granted=rows.c.granted, topped_up=rows.c.topped_up, receivable=rows.c.receivable)
    )
    await connection.execute(statement, arrays(values, _BALANCE))


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
    statement = select(credit_lot.c.tenant_id).where(
        credit_lot.c.remaining > 0, credit_lot.c.expires_at <= at
    )
    return set((await connection.execute(statement)).scalars())


async def select_faults(connection: AsyncConnection) -> list[str]:
    """Violations of the ledger's rules, all seen at one instant."""
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    return [
        sentence.format(*row)
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


async def select_auto_top_up(connection: AsyncConnection, tenant_id: str) -> AutoTopUp | None:
    """A tenant's rule, locked; None when it has none."""
    statement = select(auto_top_up).where(auto_top_up.c.tenant_id == tenant_id).with_for_update()
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


async def lock_auto_top_ups(connection: AsyncConnection) -> dict[str, tuple[AutoTopUp, int]]:
    """The rules that may ask, by tenant, each with the number of its requests so far."""
    statement = (
        select(auto_top_up)
        .where(auto_top_up.c.enabled, auto_top_up.c.armed)
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
        .values(armed=False, requested=auto_top_up.c.requested + 1)
    )


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
