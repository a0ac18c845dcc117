"""Statements on what was demanded of tenants, and on what Stripe said of those that are erased."""

from datetime import datetime

from sqlalchemy import func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.tables import dunning_step, payment_customer, payment_inbox
from billing.lifecycle.dunning import Demand, Taken


async def select_steps(connection: AsyncConnection, tenant_id: str) -> Taken:
    """When each step was taken."""
    found = await connection.execute(select(dunning_step).where(dunning_step.c.tenant_id == tenant_id))
    return {(row.document_id, row.step): row.at for row in found}


async def insert_step(connection: AsyncConnection, tenant_id: str, demand: Demand, at: datetime) -> None:
    """Once a document and step; the tenant is locked."""
    await connection.execute(
        insert(dunning_step).values(
            tenant_id=tenant_id, document_id=demand.document.id, step=demand.step, at=at
        )
    )


async def blank_payment_events(connection: AsyncConnection, tenant_id: str) -> int:
    """Drop the bodies of webhooks on a tenant, also of those that moved no money and name its customer.

    What waits to be applied is kept: money hangs on it. Its next erasure drops that.

    Returns:
        How many.
    """
    said, customer = payment_inbox.c, payment_customer.c
    named = (
        select(customer.customer_id)
        .where(
            customer.tenant_id == tenant_id,
            func.position(func.convert_to(customer.customer_id, "UTF8").op("IN")(said.body)) > 0,
        )
        .exists()
    )
    statement = update(payment_inbox).where(
        said.outcome != "waiting", said.body != b"", or_(said.tenant_id == tenant_id, named)
    )
    blanked = await connection.execute(statement.values(body=literal(b"")).returning(said.id))
    return len(blanked.all())
