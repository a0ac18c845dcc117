"""A movement of money within a transaction that does more than that."""

import secrets
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from billing.audit import service as audit
from billing.audit.event import Deed, facts_of
from billing.db.transaction import Connection
from billing.errors import MovementConflict
from billing.ledger import repository
from billing.ledger.credit import Movement, Posted
from billing.ledger.entries import Transaction
from billing.ledger.wallet import Wallet
from billing.money import decimal_of
from billing.request_id import RANDOM_BYTES, mint


async def post(connection: Connection, tenant_id: str, movement: Movement, at: datetime) -> Posted:
    """Move money, once for each idempotency key, if the settler's transaction that is open commits.

    The balance is locked first, so that nobody else can post under the key meanwhile. The tenant's audit
    chain stays locked until the transaction ends: what locks anything else comes before.

    Returns:
        The transaction and the balance after it; of a movement made before, that and the present balance.

    Raises:
        AmountExceeds: there is not so much to pay back, or to forgive.
        MovementConflict: the idempotency key names a movement of another kind, amount or use.
        StoreRefused: no tenant has this id.
    """
    wallet = (await repository.open_wallets(connection, [tenant_id]))[tenant_id]
    before = await _posted_before(connection, tenant_id, movement)
    if before is not None:
        return before
    transaction_id, balances = new_transaction_id(at), _balances(wallet)
    transaction = Transaction(
        id=transaction_id,
        tenant_id=tenant_id,
        kind=movement.transaction_kind,
        at=at,
        entries=wallet.move(transaction_id, movement, at),
        actor=movement.actor,
        reason=movement.reason,
        idempotency_key=movement.idempotency_key,
    )
    await repository.append(connection, [transaction], [wallet])
    await repository.rearm(connection, wallet.balance)
    deed = Deed(tenant_id, movement.actor, movement.action, str(transaction_id), at, balances)
    after = {**_facts(movement), **_balances(wallet)}
    await audit.append(connection, replace(deed, after=after))
    return Posted(transaction_id, wallet.balance)


async def _posted_before(connection: Connection, tenant_id: str, movement: Movement) -> Posted | None:
    key = movement.idempotency_key
    if key is None:
        return None
    found = await repository.select_movements(connection, tenant_id, key)
    if not found:
        return None
    if found[0].effect != movement.effect:
        raise MovementConflict(tenant_id, key)
    (present,) = await repository.select_versions(connection, [tenant_id])
    return Posted(found[0].transaction_id, present)


def new_transaction_id(at: datetime) -> UUID:
    """The id of a transaction that is no charge."""
    return mint(at, secrets.token_bytes(RANDOM_BYTES))


def _balances(wallet: Wallet) -> dict[str, str]:
    amounts = {"granted": wallet.granted, "topped_up": wallet.topped_up, "receivable": wallet.receivable}
    return {f"balance_{name}": decimal_of(amount) for name, amount in amounts.items()}


def _facts(movement: Movement) -> dict[str, Any]:
    """Amount, reason and use. An idempotency key is a word of somebody else's: it is no fact."""
    facts = {**facts_of(movement), "amount": decimal_of(movement.amount)}
    return {name: fact for name, fact in facts.items() if name not in {"actor", "idempotency_key"}}
