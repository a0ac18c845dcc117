"""The ledger: move money, take back what has expired, read balances, prove that it adds up."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from billing.audit import service as audit
from billing.audit.event import Deed
from billing.db.access import OPERATOR_READ, SETTLER, of_tenant
from billing.db.transaction import Connection, Database
from billing.errors import StoreRefused, TenantMissing
from billing.ledger import posting, repository
from billing.ledger.auto_top_up import AutoTopUp, TopUpRequest
from billing.ledger.balance import Balance, BalanceVersion, BillingTerms
from billing.ledger.credit import Grant, Movement, MovementRow, Posted
from billing.ledger.entries import Transaction
from billing.money import decimal_of

SYSTEM: Final = "system"

AlsoDone = Callable[[Connection, list[TopUpRequest]], Awaitable[None]]

_NO_TENANT: Final = ("fk_balance_tenant_id", "fk_auto_top_up_tenant_id")


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
            async with self._database.transaction(SETTLER) as connection:
                return await posting.post(connection, tenant_id, movement, at)
        except StoreRefused as refusal:
            raise _tenant_missing(tenant_id, refusal) from refusal

    async def grant(self, tenant_id: str, grant: Grant, at: datetime) -> BalanceVersion:
        """Give credit; what is owed is paid from it first. Raises as `post`."""
        return (await self.post(tenant_id, grant, at)).balance

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
                Transaction(
                    posting.new_transaction_id(at), tenant_id, "expiry", at, entries, SYSTEM, "expired"
                )
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

    async def request_top_ups(self, at: datetime, also: AlsoDone | None = None) -> list[TopUpRequest]:
        """Record a request for each rule whose threshold has been crossed, once a crossing.

        A rule whose payment was declined asks again when that is due. ``also`` is what to do
        about the requests in the same transaction, a settler's.
        """
        async with self._database.transaction(SETTLER) as connection:
            rules = await repository.lock_auto_top_ups(connection, at)
            requests = [
                TopUpRequest(present.tenant_id, requested + 1, rule.amount, at, present)
                for present in await repository.select_versions(connection, rules.keys())
                for rule, requested in [rules[present.tenant_id]]
                if rule.top_up_due(present.balance)
            ]
            if requests:
                await repository.insert_top_up_requests(connection, requests)
                if also is not None:
                    await also(connection, requests)
        return requests

    async def top_up_requests(self, tenant_id: str) -> list[TopUpRequest]:
        """What a tenant's rule has asked for, oldest first."""
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            return await repository.select_top_up_requests(connection, tenant_id)

    async def check_integrity(self) -> list[str]:
        """Everything that does not add up, a sentence each; empty when all is well."""
        return [fault for _, fault in await self.violations()]

    async def violations(self) -> list[tuple[str, str]]:
        """The same, each with the id of the transaction, request, tenant or lot that it is about."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_faults(connection)


def _tenant_missing(tenant_id: str, refusal: StoreRefused) -> TenantMissing | StoreRefused:
    return TenantMissing(tenant_id) if refusal.constraint in _NO_TENANT else refusal


def _terms(terms: BillingTerms) -> dict[str, str]:
    return {"billing_mode": terms.mode, "credit_limit": decimal_of(terms.credit_limit)}


def _rule(rule: AutoTopUp) -> dict[str, Any]:
    amounts = {"threshold": decimal_of(rule.threshold), "amount": decimal_of(rule.amount)}
    return {**amounts, "enabled": rule.enabled}
