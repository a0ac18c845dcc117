"""The ledger: give credit, take back what has expired, read balances, prove that it adds up."""

import secrets
from datetime import datetime
from uuid import UUID

from billing.db.access import OPERATOR_READ, SETTLER, of_tenant
from billing.db.transaction import Database
from billing.errors import GrantConflict, StoreRefused, TenantMissing
from billing.ledger import repository
from billing.ledger.balance import Balance, BalanceVersion
from billing.ledger.credit import Grant
from billing.ledger.entries import Transaction
from billing.request_id import RANDOM_BYTES, mint


class Ledger:
    """Facts only, appended. Charges arrive by settlement; holds are not here but in Valkey."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def grant(self, tenant_id: str, grant: Grant, at: datetime) -> BalanceVersion:
        """Give credit; debt is paid from it first.

        Raises:
            TenantMissing: no tenant has this id.
            GrantConflict: the idempotency key names a grant of another amount or kind. The same grant again
                changes nothing and returns the present balance.
        """
        try:
            async with self._database.transaction(SETTLER) as connection:
                wallets = await repository.open_wallets(connection, [tenant_id])
                wallet = wallets[tenant_id]
                transaction_id = _transaction_id(at)
                transaction = Transaction(
                    id=transaction_id,
                    tenant_id=tenant_id,
                    kind="credit",
                    at=at,
                    entries=wallet.credit(transaction_id, grant, at),
                    actor=grant.actor,
                    reason=grant.reason,
                    idempotency_key=grant.idempotency_key,
                )
                await repository.append(connection, [transaction], [wallet])
        except StoreRefused as refusal:
            if refusal.constraint == "fk_balance_tenant_id":
                raise TenantMissing(tenant_id) from refusal
            if refusal.constraint == "uq_ledger_transaction_tenant_id_idempotency_key":
                return await self._granted_before(tenant_id, grant)
            raise
        return wallet.balance

    async def _granted_before(self, tenant_id: str, grant: Grant) -> BalanceVersion:
        key = grant.idempotency_key
        assert key is not None
        async with self._database.transaction(SETTLER) as connection:
            lot = await repository.select_credit(connection, tenant_id, key)
            if lot is None or (lot.amount, lot.account) != (grant.amount, grant.account):
                raise GrantConflict(tenant_id, key)
            (present,) = await repository.select_versions(connection, [tenant_id])
        return present

    async def expire(self, at: datetime) -> list[BalanceVersion]:
        """Take back what remains of credit that has ended by ``at``; until then it can still be spent."""
        async with self._database.transaction(SETTLER) as connection:
            tenant_ids = await repository.tenants_with_ended_credit(connection, at)
            if not tenant_ids:
                return []
            wallets = await repository.open_wallets(connection, tenant_ids)
            taken_back = {wallet.tenant_id: wallet.expire(at) for wallet in wallets.values()}
            transactions = [
                Transaction(_transaction_id(at), tenant_id, "expiry", at, entries)
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

    async def check_integrity(self) -> list[str]:
        """Everything that does not add up, a sentence each; empty when all is well."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_faults(connection)


def _transaction_id(at: datetime) -> UUID:
    return mint(at, secrets.token_bytes(RANDOM_BYTES))
