"""Statements on the ledger: wallets under lock, transactions appended, balances read."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import Bulk, Rows
from billing.db.tables import balance, credit_lot, ledger_entry, ledger_transaction, tenant
from billing.ledger.balance import Balance, BalanceVersion
from billing.ledger.credit import Lot
from billing.ledger.entries import CREDIT_ACCOUNTS, Transaction
from billing.ledger.integrity import RULES
from billing.ledger.wallet import Wallet


def _replacing(insert: Insert, key: str, names: Sequence[str]) -> Insert:
    """These columns of rows that are there already."""
    return insert.on_conflict_do_update(
        index_elements=[key], set_={name: insert.excluded[name] for name in names}
    )


_TRANSACTION: Final = ("id", "tenant_id", "kind", "at", "actor", "reason", "idempotency_key")
_ENTRY: Final = ("transaction_id", "position", "tenant_id", "account", "lot_id", "amount")
_LOT: Final = ("id", "account", "amount", "remaining", "created_at", "expires_at")
_AMOUNTS: Final = ("granted", "topped_up")
_BALANCE: Final = ("tenant_id", *_AMOUNTS, "version")

_wanted: Final = Rows(balance, ["tenant_id"])
_LOCK_BALANCES: Final = Bulk(
    upsert(balance)
    .from_select(
        _BALANCE,
        select(_wanted.values.c.tenant_id, *(text("0") for _ in _AMOUNTS), text("1")),
    )
    .on_conflict_do_update(index_elements=["tenant_id"], set_={"version": balance.c.version + text("1")})
    .returning(*balance.c),
    _wanted,
)
_OPEN_LOTS: Final = Bulk(
    select(credit_lot.c.tenant_id, *(credit_lot.c[name] for name in _LOT)).where(
        credit_lot.c.tenant_id.in_(select(_wanted.values)), credit_lot.c.remaining > text("0")
    ),
    _wanted,
)
_transactions: Final = Rows(ledger_transaction, _TRANSACTION)
_entries: Final = Rows(ledger_entry, _ENTRY)
_lots: Final = Rows(credit_lot, ("tenant_id", *_LOT))
_balances: Final = Rows(balance, _BALANCE)
_APPEND: Final = Bulk(
    _entries.insert().add_cte(
        _transactions.insert().cte("transactions"),
        _replacing(_lots.insert(), "id", ["remaining"]).cte("lots"),
        _replacing(_balances.insert(), "tenant_id", _AMOUNTS).cte("balances"),
    ),
    *(_transactions, _lots, _balances, _entries),
)

_transaction: Final = attrgetter(*_TRANSACTION)
_lot_row: Final = attrgetter(*_LOT)
_balance: Final = attrgetter(*_BALANCE)


async def open_wallets(connection: AsyncConnection, tenant_ids: Iterable[str]) -> dict[str, Wallet]:
    """Lock the balances of these tenants until the transaction ends; each gets its next version.

    A sorted INSERT ... ON CONFLICT DO UPDATE: several at once wait for each other and never deadlock, which a
    sorted UPDATE ... FROM does not promise.
    """
    wanted = [(tenant_id,) for tenant_id in sorted(tenant_ids)]
    locked = await _LOCK_BALANCES.run(connection, wanted)
    lots: defaultdict[str, list[Lot]] = defaultdict(list)
    for row in await _OPEN_LOTS.run(connection, wanted):
        lots[row["tenant_id"]].append(_lot(*(row[name] for name in _LOT)))
    return {row["tenant_id"]: Wallet(**row, lots=lots[row["tenant_id"]]) for row in locked}


def _lot(lot_id: UUID, account: str, *more: Any) -> Lot:
    """From the columns of ``_LOT``."""
    return Lot(lot_id, CREDIT_ACCOUNTS[account], *more)


async def append(
    connection: AsyncConnection, transactions: Collection[Transaction], wallets: Iterable[Wallet]
) -> None:
    """Append transactions, and write the wallets that they left, which are locked: their order is free."""
    opened = list(wallets)
    for wallet in opened:
        wallet.check()
    await _APPEND.run(
        connection,
        map(_transaction, transactions),
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
