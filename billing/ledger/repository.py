"""Statements on the ledger: wallets under lock, transactions appended, balances read."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import arrays, unnested
from billing.db.tables import balance, credit_lot, ledger_entry, ledger_transaction, tenant
from billing.ledger.balance import Balance, BalanceVersion
from billing.ledger.credit import Lot
from billing.ledger.entries import CREDIT_ACCOUNTS, Transaction
from billing.ledger.integrity import RULES
from billing.ledger.wallet import Wallet

_TRANSACTION: Final = ("id", "tenant_id", "kind", "at", "actor", "reason", "idempotency_key")
_ENTRY: Final = ("transaction_id", "position", "tenant_id", "account", "lot_id", "amount")
_LOT: Final = ("id", "account", "amount", "remaining", "created_at", "expires_at")
_BALANCE: Final = ("tenant_id", "granted", "topped_up")


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
    lots = await _open_lots(connection, tenant_ids)
    return {row["tenant_id"]: Wallet(**row, lots=lots[row["tenant_id"]]) for row in locked}


async def _open_lots(connection: AsyncConnection, tenant_ids: Collection[str]) -> defaultdict[str, list[Lot]]:
    statement = select(credit_lot.c.tenant_id, *(credit_lot.c[name] for name in _LOT)).where(
        credit_lot.c.tenant_id.in_(tenant_ids), credit_lot.c.remaining > 0
    )
    lots: defaultdict[str, list[Lot]] = defaultdict(list)
    for tenant_id, *columns in await connection.execute(statement):
        lots[tenant_id].append(_lot(*columns))
    return lots


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
        .values(granted=rows.c.granted, topped_up=rows.c.topped_up)
    )
    await connection.execute(statement, arrays(values, _BALANCE))


async def select_balance(connection: AsyncConnection, tenant_id: str) -> Balance | None:
    """None when there is no such tenant; all zero when it has no transaction yet."""
    statement = (
        select(
            func.coalesce(balance.c.granted, 0),
            func.coalesce(balance.c.topped_up, 0),
            tenant.c.currency,
            func.coalesce(balance.c.version, 0),
        )
        .select_from(tenant.outerjoin(balance))
        .where(tenant.c.id == tenant_id)
    )
    row = (await connection.execute(statement)).first()
    return None if row is None else Balance(*row)


async def select_versions(connection: AsyncConnection, tenant_ids: Collection[str]) -> list[BalanceVersion]:
    """Present totals of those of the tenants that have any transaction."""
    statement = select(balance).where(balance.c.tenant_id.in_(tenant_ids))
    return [
        BalanceVersion(row.tenant_id, row.granted + row.topped_up, row.version)
        for row in await connection.execute(statement)
    ]


async def select_credit(connection: AsyncConnection, tenant_id: str, idempotency_key: str) -> Lot | None:
    """The lot opened under an idempotency key."""
    statement = (
        select(*(credit_lot.c[name] for name in _LOT))
        .join(ledger_transaction, ledger_transaction.c.id == credit_lot.c.id)
        .where(
            ledger_transaction.c.tenant_id == tenant_id,
            ledger_transaction.c.idempotency_key == idempotency_key,
        )
    )
    row = (await connection.execute(statement)).first()
    return None if row is None else _lot(*row)


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
