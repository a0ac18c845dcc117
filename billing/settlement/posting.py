"""One transaction for many finished requests: all it leaves, or nothing."""

from collections.abc import Collection
from uuid import UUID

from billing.db.access import SETTLER
from billing.db.transaction import Database
from billing.ledger import repository as ledger
from billing.ledger.balance import BalanceVersion
from billing.ledger.entries import Transaction
from billing.ledger.wallet import Wallet
from billing.receipts import repository as receipts
from billing.settlement import repository
from billing.settlement.event import UsageEvent


async def post(database: Database, events: Collection[UsageEvent]) -> dict[UUID, BalanceVersion]:
    """Settle requests that differ in their ids; those settled before are left as they are.

    Returns:
        For each request, settled now or before, its tenant's balance after this.

    Raises:
        StoreUnavailable: nothing is known to be settled; the same again is safe.
        StoreRefused: one event or another cannot be stored, and none was. By `idempotency.ANSWERED`: another
            request has answered the same idempotency key.
    """
    async with database.transaction(SETTLER) as connection:
        new_ids = await repository.insert_events(connection, events)
        fresh = sorted(
            (event for event in events if event.request_id in new_ids), key=lambda event: event.request_id
        )
        balances: dict[str, BalanceVersion] = {}
        if fresh:
            wallets = await ledger.open_wallets(connection, {event.tenant_id for event in fresh})
            charges = [_charge(wallets[event.tenant_id], event) for event in fresh]
            await ledger.append(connection, charges, wallets.values())
            await receipts.insert_attempts(
                connection, [(e.request_id, e.tenant_id, attempt) for e in fresh for attempt in e.attempts]
            )
            await receipts.insert_attestations(
                connection, [(e.request_id, attested) for e in fresh for attested in e.attestations]
            )
            answered = [event.answers for event in fresh if event.answers is not None]
            if answered:
                await repository.insert_answers(connection, answered)
            balances = {wallet.tenant_id: wallet.balance for wallet in wallets.values()}
        others = {event.tenant_id for event in events} - balances.keys()
        if others:
            for present in await ledger.select_versions(connection, others):
                balances[present.tenant_id] = present
    return {event.request_id: balances[event.tenant_id] for event in events}


def _charge(wallet: Wallet, event: UsageEvent) -> Transaction:
    entries = wallet.charge(event.charge.amount)
    return Transaction(event.request_id, event.tenant_id, "charge", event.rated_at, entries)
