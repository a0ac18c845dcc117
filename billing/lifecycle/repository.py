"""Statements on what was demanded of tenants."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.tables import dunning_step
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
