"""The audit log: append in the transaction of the change, read, prove that nothing was altered."""

from typing import Final

from billing.audit import repository
from billing.audit.event import GENESIS, AuditEvent, Deed, chained
from billing.db.access import reading
from billing.db.transaction import Connection, Database

_BATCH: Final = 1_000


async def append(connection: Connection, deed: Deed) -> None:
    """Record a deed in the transaction that does it.

    To be called last: it locks the tenant's chain until the transaction ends. Who records deeds of several
    tenants goes by their ids in order, so that two such transactions wait instead of deadlocking.
    """
    position, previous = await repository.lock_head(connection, deed.tenant_id)
    event = AuditEvent(position + 1, deed, chained(previous, position + 1, deed))
    await repository.insert_event(connection, event)


class Audit:
    """Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def events(self, tenant_id: str | None = None, *, events_max: int = 100) -> list[AuditEvent]:
        """The last events of one chain, or of all, newest last."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_newest(connection, tenant_id, events_max)

    async def verify(self, tenant_id: str | None = None) -> list[str]:
        """Compute one chain again, or all: every fault as a sentence; empty when nothing was altered."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            heads = await repository.select_heads(connection, tenant_id)
        return [fault for head in heads if (fault := await self._fault(head)) is not None]

    async def _fault(self, head: repository.Head) -> str | None:
        """The first fault of a chain: behind it nothing can be told."""
        if head.position != (head.newest or 0):
            return f"{head.tenant_id}: the head is at {head.position}, the newest event at {head.newest}"
        position, previous = 0, GENESIS
        while position < head.position:
            async with self._database.transaction(reading(head.tenant_id)) as connection:
                events = await repository.select_chain(connection, head.tenant_id, position, _BATCH)
            if not events:
                return f"{head.tenant_id}: event {position + 1} is missing"
            for event in events[: head.position - position]:  # later ones came after the head was read
                position += 1
                if event.position != position:
                    return f"{head.tenant_id}: event {position} is missing"
                if event.hash != chained(previous, position, event.deed):
                    return f"{head.tenant_id}: event {position} was altered"
                previous = event.hash
        if previous != head.hash:
            return f"{head.tenant_id}: the head has another hash than event {position}"
        return None
