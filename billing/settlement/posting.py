"""One transaction for many finished requests: all it leaves, or nothing."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final
from uuid import UUID

from billing.db.access import SETTLER
from billing.db.transaction import Database
from billing.ledger import repository as ledger
from billing.ledger.balance import BalanceVersion
from billing.ledger.entries import Transaction
from billing.ledger.wallet import Wallet
from billing.settlement import repository
from billing.settlement.event import UsageEvent

_by_id: Final = attrgetter("request_id")


async def post(database: Database, events: Iterable[UsageEvent]) -> dict[UUID, BalanceVersion]:
    """Settle requests that differ in their ids; those settled before are left as they are.

    What needs no balance is written first: several flushers hold up one another as late and as shortly as can
    be, and always in the order events, their transactions, attestations, answers, balances, each sorted, so
    that they never deadlock.

    Returns:
        For each request, settled now or before, its tenant's balance after this.

    Raises:
        StoreUnavailable: nothing is known to be settled; the same again is safe.
        StoreRefused: one event or another cannot be stored, and none was. By `idempotency.ANSWERED`: another
            request has answered the same idempotency key.
    """
    asked = sorted(events, key=_by_id)
    async with database.transaction(SETTLER) as connection:
        fresh = await repository.insert_events(connection, asked)
        await repository.insert_answers(connection, [e.answers for e in fresh if e.answers is not None])
        wallets = await ledger.open_wallets(connection, {event.tenant_id for event in fresh})
        charges = [_charge(wallets[event.tenant_id], event) for event in fresh]
        await ledger.book(connection, charges, wallets.values())
        balances = {wallet.tenant_id: wallet.balance for wallet in wallets.values()}
        others = {event.tenant_id for event in asked} - balances.keys()
        if others:
            present = await ledger.select_versions(connection, others)
            balances |= {balance.tenant_id: balance for balance in present}
    return {event.request_id: balances[event.tenant_id] for event in asked}


def _charge(wallet: Wallet, event: UsageEvent) -> Transaction:
    entries = wallet.charge(event.charge.amount)
    return Transaction(event.request_id, event.tenant_id, "charge", event.rated_at, entries)
