"""The ledger: move money, take back what has expired, read balances, prove that it adds up."""

import secrets
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from billing.audit import service as audit
from billing.audit.event import Deed, facts_of
from billing.db.access import OPERATOR_READ, SETTLER, of_tenant
from billing.db.transaction import Database
from billing.errors import AmountExceeds, MovementConflict, StoreRefused, TenantMissing
from billing.ledger import repository
from billing.ledger.auto_top_up import AutoTopUp, TopUpRequest
from billing.ledger.balance import Balance, BalanceVersion, BillingTerms
from billing.ledger.credit import Grant, Movement, MovementRow, Posted
from billing.ledger.entries import Transaction
from billing.ledger.wallet import Wallet
from billing.money import decimal_of
from billing.request_id import RANDOM_BYTES, mint

SYSTEM: Final = "system"

_NO_TENANT: Final = ("fk_balance_tenant_id", "fk_auto_top_up_tenant_id")
_KEY_TAKEN: Final = "uq_ledger_transaction_tenant_id_idempotency_key"


class Ledger:
    """Facts only, appended. Charges arrive by settlement; holds are not here but in Valkey.

    What people do is in the audit log besides, in the same transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def post(self, tenant_id: str, movement: Movement, at: datetime) -> Posted:
        """Move money, once for each idempotency key.

        The key is a column of the transaction itself: where it fails nothing is taken, and again is safe.

        Returns:
            The transaction and the balance after it; of a movement made before, that and the present balance.

        Raises:
            TenantMissing: no tenant has this id.
            AmountExceeds: there is not so much to pay back, or to forgive.
            MovementConflict: the idempotency key names a movement of another kind, amount or use.
        """
        try:
            return await self._post(tenant_id, movement, at)
        except (StoreRefused, AmountExceeds) as refusal:
            if isinstance(refusal, StoreRefused) and refusal.constraint != _KEY_TAKEN:
                raise _tenant_missing(tenant_id, refusal) from refusal
            before = await self._posted_before(tenant_id, movement)
            if before is None:
                raise
            return before

    async def grant(self, tenant_id: str, grant: Grant, at: datetime) -> BalanceVersion:
        """Give credit; what is owed is paid from it first. Raises as `post`."""
        return (await self.post(tenant_id, grant, at)).balance

    async def _post(self, tenant_id: str, movement: Movement, at: datetime) -> Posted:
        async with self._database.transaction(SETTLER) as connection:
            wallet = (await repository.open_wallets(connection, [tenant_id]))[tenant_id]
            transaction_id, before = _transaction_id(at), _balances(wallet)
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
            deed = Deed(tenant_id, movement.actor, movement.action, str(transaction_id), at, before)
            after = {**_facts(movement), **_balances(wallet)}
            await audit.append(connection, replace(deed, after=after))
        return Posted(transaction_id, wallet.balance)

    async def _posted_before(self, tenant_id: str, movement: Movement) -> Posted | None:
        key = movement.idempotency_key
        if key is None:
            return None
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            found = await repository.select_movements(connection, tenant_id, key)
            if not found:
                return None
            if found[0].effect != movement.effect:
                raise MovementConflict(tenant_id, key)
            (present,) = await repository.select_versions(connection, [tenant_id])
        return Posted(found[0].transaction_id, present)

    async def movements(self, tenant_id: str) -> list[MovementRow]:
        """Every movement of a tenant's money but its charges, newest first."""
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            return await repository.select_movements(connection, tenant_id)

    async def agree(self, tenant_id: str, terms: BillingTerms, at: datetime, *, actor: str) -> BalanceVersion:
        """Change how a tenant pays from its next charge on, and what it may owe; what it owes stays owed.

        Raises:
            TenantMissing: no tenant has this id.
        """
        try:
            async with self._database.transaction(SETTLER) as connection:
                wallet = (await repository.open_wallets(connection, [tenant_id]))[tenant_id]
                before, wallet.terms = wallet.terms, terms
                await repository.update_terms(connection, tenant_id, terms)
                await repository.rearm(connection, wallet.balance)
                facts = _terms(before), _terms(terms)
                await audit.append(connection, Deed(tenant_id, actor, "credit.terms", tenant_id, at, *facts))
        except StoreRefused as refusal:
            raise _tenant_missing(tenant_id, refusal) from refusal
        return wallet.balance

    async def expire(self, at: datetime) -> list[BalanceVersion]:
        """Take back what remains of credit that has ended by ``at``; until then it can still be spent."""
        async with self._database.transaction(SETTLER) as connection:
            tenant_ids = await repository.tenants_with_ended_credit(connection, at)
            if not tenant_ids:
                return []
            wallets = await repository.open_wallets(connection, tenant_ids)
            taken_back = {wallet.tenant_id: wallet.expire(at) for wallet in wallets.values()}
            transactions = [
                Transaction(_transaction_id(at), tenant_id, "expiry", at, entries, SYSTEM, "expired")
                for tenant_id, entries in taken_back.items()
                if entries
            ]
            await repository.append(connection, transactions, wallets.values())
        return [wallet.balance for wallet in wallets.values()]

    async def balance(self, tenant_id: str) -> Balance:
        """The present balance.

        Raises:
            TenantMissing: no tenant has this id.
        """
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            found = await repository.select_balance(connection, tenant_id)
        if found is None:
            raise TenantMissing(tenant_id)
        return found

    async def set_auto_top_up(self, tenant_id: str, rule: AutoTopUp, at: datetime, *, actor: str) -> None:
        """Set a tenant's rule, armed: a balance that is below already asks at once.

        Raises:
            TenantMissing: no tenant has this id.
        """
        try:
            async with self._database.transaction() as connection:
                before = await repository.select_auto_top_up(connection, tenant_id)
                await repository.upsert_auto_top_up(connection, tenant_id, rule)
                facts = None if before is None else _rule(before), _rule(rule)
                await audit.append(connection, Deed(tenant_id, actor, "credit.auto", tenant_id, at, *facts))
        except StoreRefused as refusal:
            raise _tenant_missing(tenant_id, refusal) from refusal

    async def request_top_ups(self, at: datetime) -> list[TopUpRequest]:
        """Record a request for each rule whose threshold has been crossed, once a crossing."""
        async with self._database.transaction(SETTLER) as connection:
            rules = await repository.lock_auto_top_ups(connection)
            requests = [
                TopUpRequest(present.tenant_id, requested + 1, rule.amount, at, present)
                for present in await repository.select_versions(connection, rules.keys())
                for rule, requested in [rules[present.tenant_id]]
                if rule.top_up_due(present.balance)
            ]
            if requests:
                await repository.insert_top_up_requests(connection, requests)
        return requests

    async def top_up_requests(self, tenant_id: str) -> list[TopUpRequest]:
        """What a tenant's rule has asked for, oldest first."""
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            return await repository.select_top_up_requests(connection, tenant_id)

    async def check_integrity(self) -> list[str]:
        """Everything that does not add up, a sentence each; empty when all is well."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_faults(connection)


def _tenant_missing(tenant_id: str, refusal: StoreRefused) -> TenantMissing | StoreRefused:
    return TenantMissing(tenant_id) if refusal.constraint in _NO_TENANT else refusal


def _balances(wallet: Wallet) -> dict[str, str]:
    amounts = {"granted": wallet.granted, "topped_up": wallet.topped_up, "receivable": wallet.receivable}
    return {f"balance_{name}": decimal_of(amount) for name, amount in amounts.items()}


def _facts(movement: Movement) -> dict[str, Any]:
    """Amount, reason and use. An idempotency key is a word of somebody else's: it is no fact."""
    facts = {**facts_of(movement), "amount": decimal_of(movement.amount)}
    return {name: fact for name, fact in facts.items() if name not in {"actor", "idempotency_key"}}


def _terms(terms: BillingTerms) -> dict[str, str]:
    return {"billing_mode": terms.mode, "credit_limit": decimal_of(terms.credit_limit)}


def _rule(rule: AutoTopUp) -> dict[str, Any]:
    amounts = {"threshold": decimal_of(rule.threshold), "amount": decimal_of(rule.amount)}
    return {**amounts, "enabled": rule.enabled}


def _transaction_id(at: datetime) -> UUID:
    return mint(at, secrets.token_bytes(RANDOM_BYTES))
