"""Suspend, resume and erase tenants.

A suspended tenant is refused inference by every gateway within two seconds, as a revoked key is; what it
reads of usage, invoices and receipts it still reads. Requests in flight end, and are billed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from billing.audit import service as audit
from billing.audit.event import ERASE, Deed, facts_of
from billing.audit.service import Audit
from billing.db.transaction import Connection, Database
from billing.errors import ErasureRefused, TenancyInvalid, TenantMissing
from billing.lifecycle.erasure import ERASURES
from billing.tenancy import repository as tenants
from billing.tenancy.tenant import Suspension, Tenant


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure dropped: how many rows of what."""

    tenant: Tenant
    dropped: Mapping[str, int]


class Lifecycle:
    """Whatever changes is in the audit log. Gateways are told by the caller, as of a revoked key."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def suspend(self, tenant_id: str, reason: str, at: datetime, *, actor: str) -> Tenant:
        """Have inference refused until an operator resumes it; payment does not. Again changes nothing.

        Raises:
            TenantMissing: no tenant has this id.
            TenancyInvalid: no reason.
        """
        if not reason.strip():
            raise TenancyInvalid("reason", "a suspension says why")
        async with self._database.transaction() as connection:
            before = await locked(connection, tenant_id)
            if before.suspension is not None and before.suspension.by == "operator":
                return before
            after = replace(before, suspension=Suspension("operator", reason, at))
            return await change(
                connection, before, after, Deed(tenant_id, actor, "tenant.suspend", tenant_id, at)
            )

    async def resume(self, tenant_id: str, reason: str, at: datetime, *, actor: str) -> Tenant:
        """Have inference admitted again, whatever it was suspended for; again changes nothing.

        Raises:
            TenantMissing: no tenant has this id.
            TenancyInvalid: it is erased.
        """
        async with self._database.transaction() as connection:
            before = await locked(connection, tenant_id)
            if before.erased_at is not None:
                raise TenancyInvalid("tenant", f"{tenant_id} is erased")
            if before.suspension is None:
                return before
            deed = Deed(tenant_id, actor, "tenant.resume", tenant_id, at, after={"reason": reason})
            return await change(connection, before, replace(before, suspension=None), deed)

    async def erase(self, tenant_id: str, at: datetime, *, actor: str) -> Erased:
        """Drop whatever names people or opens doors; again drops what has come since.

        Name, users, names and secrets of keys, webhooks and notices, what Stripe said of it, idempotency
        records, and what the audit log says of before and after are gone; keys are revoked. Ledger, events,
        attestations and the log of receipts stay, under an id that names nobody.

        Raises:
            TenantMissing: no tenant has this id.
            ErasureRefused: it is not suspended, or its audit log does not verify: nobody could tell later.
        """
        faults = await Audit(self._database).verify(tenant_id)
        if faults:
            raise ErasureRefused(tenant_id, f"its audit log does not verify: {'; '.join(faults)}")
        async with self._database.transaction() as connection:
            before = await locked(connection, tenant_id)
            if before.suspension is None:
                raise ErasureRefused(tenant_id, "suspend it first, so that nothing of it is running")
            dropped = {what: await drop(connection, tenant_id, at) for what, drop in ERASURES.items()}
            suspension = Suspension("operator", "erased", before.suspension.at)
            erased_at = before.erased_at or at
            after = replace(before, name=tenant_id, suspension=suspension, erased_at=erased_at)
            await tenants.update_standing(connection, after)
            await audit.erase(connection, Deed(tenant_id, actor, ERASE, tenant_id, at, after=dropped))
        return Erased(after, dropped)


async def locked(connection: Connection, tenant_id: str) -> Tenant:
    """The tenant, which nobody else changes before this transaction ends; raises TenantMissing."""
    found = await tenants.select_tenant(connection, tenant_id, lock=True)
    if found is None or found.id != tenant_id:
        raise TenantMissing(tenant_id)
    return found


async def change(connection: Connection, before: Tenant, after: Tenant, deed: Deed) -> Tenant:
    """Write what has become of a tenant that is locked, and the deed, with what it says beside."""
    await tenants.update_standing(connection, after)
    facts = {**facts_of(after), **(deed.after or {})}
    await audit.append(connection, replace(deed, before=facts_of(before), after=facts))
    return after
