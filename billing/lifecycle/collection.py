"""Collecting what is overdue: reminders told, tenants suspended, and resumed when they have paid."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol

from billing.audit.event import Deed
from billing.db.transaction import Connection, Database
from billing.lifecycle import repository
from billing.lifecycle.dunning import Decision, Demand, DunningPolicy, OverdueDocument, decide
from billing.lifecycle.service import change, locked
from billing.money import decimal_of
from billing.notify.notice import Notice, instant_text
from billing.notify.service import emit
from billing.tenancy import repository as tenants
from billing.tenancy.tenant import Suspension, Tenant

ACTOR: Final = "dunning"


class Receivables(Protocol):
    """Who owes what (`billing.invoicing`)."""

    async def overdue(
        self, connection: Connection, at: datetime, tenant_id: str | None = None
    ) -> Mapping[str, Sequence[OverdueDocument]]:
        """Documents that were due before ``at`` and are not paid, by tenant; of one, or of all."""


class Dunning:
    """Reminds, suspends and resumes by what is overdue. Any number may look at once."""

    def __init__(
        self, database: Database, receivables: Receivables, policy: DunningPolicy | None = None
    ) -> None:
        self._database = database
        self._receivables = receivables
        self._policy = policy or DunningPolicy()

    async def look(self, at: datetime) -> list[Tenant]:
        """Take each step that is due; returns the tenants suspended or resumed, of whom gateways are told."""
        async with self._database.transaction() as connection:
            owing = await self._receivables.overdue(connection, at)
            suspended = await tenants.select_suspended(connection, "dunning")
        changed = [await self.look_at(tenant_id, at) for tenant_id in sorted({*owing, *suspended})]
        return [tenant for tenant in changed if tenant is not None]

    async def look_at(self, tenant_id: str, at: datetime) -> Tenant | None:
        """Likewise of one tenant, such as one that has just paid; None where its standing is as it was.

        Raises:
            TenantMissing: no tenant has this id.
        """
        async with self._database.transaction() as connection:
            before = await locked(connection, tenant_id)
            if before.erased_at is not None:
                return None
            documents = (await self._receivables.overdue(connection, at, tenant_id)).get(tenant_id, ())
            taken = await repository.select_steps(connection, tenant_id)
            suspended_by = None if before.suspension is None else before.suspension.by
            decision = decide(documents, taken, suspended_by, self._policy, at)
            for demand in decision.demands:
                await repository.insert_step(connection, tenant_id, demand, at)
                await emit(connection, self._notice(tenant_id, demand, at))
            return await _apply(connection, before, decision, at)

    def _notice(self, tenant_id: str, demand: Demand, at: datetime) -> Notice:
        document = demand.document
        facts = {
            "document_id": document.id,
            "number": document.number,
            "step": demand.step,
            "amount": decimal_of(document.open_amount),
            "currency": document.currency,
            "due_at": instant_text(document.due_at),
            "suspension_after": instant_text(document.due_at + self._policy.suspension),
        }
        occasion = f"payment.overdue/{document.id}/{demand.step}"
        return Notice(tenant_id, "payment.overdue", at, facts, occasion)


async def _apply(connection: Connection, before: Tenant, decision: Decision, at: datetime) -> Tenant | None:
    if decision.suspend:
        after = replace(before, suspension=Suspension("dunning", "documents are overdue", at))
        return await change(
            connection, before, after, Deed(before.id, ACTOR, "tenant.suspend", before.id, at)
        )
    if decision.resume:
        after = replace(before, suspension=None)
        return await change(connection, before, after, Deed(before.id, ACTOR, "tenant.resume", before.id, at))
    return None
