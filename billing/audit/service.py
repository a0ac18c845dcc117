"""The audit log: append in the transaction of the change, read, prove that nothing was altered."""

import secrets
from dataclasses import replace
from typing import Final

from billing.audit import repository
from billing.audit.event import ERASE, GENESIS, SALT_BYTES, AuditEvent, Deed, chained, digest_of
from billing.db.access import reading
from billing.db.transaction import Connection, Database

_BATCH: Final = 1_000


async def append(connection: Connection, deed: Deed) -> None:
    """Record a deed in the transaction that does it.

    To be called last: it locks the tenant's chain until the transaction ends. Who records deeds of several
    tenants goes by their ids in order, so that two such transactions wait instead of deadlocking.
    """
    position, previous = await repository.lock_head(connection, deed.tenant_id)
    salt = secrets.token_bytes(SALT_BYTES)
    digest = digest_of(salt, deed)
    event = AuditEvent(position + 1, deed, chained(previous, position + 1, deed, digest), digest, salt)
    await repository.insert_event(connection, event)


async def erase(connection: Connection, deed: Deed) -> None:
    """Drop what all entries of the deed's chain say of before and after, then append the deed that says so.

    To be called last, as `append`. What was altered before cannot be found any more: verify first.
    """
    assert deed.action == ERASE
    await repository.lock_head(connection, deed.tenant_id)
    of_first_format = await repository.drop_facts(connection, deed.tenant_id)
    await append(connection, replace(deed, after={**(deed.after or {}), "first_format": of_first_format}))


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
        proof = _Proof()
        while proof.position < head.position:
            async with self._database.transaction(reading(head.tenant_id)) as connection:
                events = await repository.select_chain(connection, head.tenant_id, proof.position, _BATCH)
            if not events:
                return f"{head.tenant_id}: event {proof.position + 1} is missing"
            for event in events[: head.position - proof.position]:  # later ones came after the head was read
                fault = proof.add(event)
                if fault is not None:
                    return f"{head.tenant_id}: {fault}"
        if proof.hash != head.hash:
            return f"{head.tenant_id}: the head has another hash than event {proof.position}"
        fault = proof.unexplained
        return None if fault is None else f"{head.tenant_id}: {fault}"


class _Proof:
    """A chain computed again, event by event. Facts may be missing before the deed that erases the tenant."""

    def __init__(self) -> None:
        self.position = 0
        self.hash = GENESIS
        self._bare = 0  # the last event without its facts
        self._unproven = 0  # the last of the first format that is not what its hash says, without its facts
        self._erased_at = 0
        self._first_format = 0

    def add(self, event: AuditEvent) -> str | None:
        """What is wrong with the next event."""
        self.position += 1
        if event.position != self.position:
            return f"event {self.position} is missing"
        deed, has_facts = event.deed, event.deed.before is not None or event.deed.after is not None
        matches = event.hash == chained(self.hash, self.position, deed, event.digest)
        if event.digest is None and not matches and not has_facts:
            self._unproven = self.position
        elif not matches or (event.digest is not None and not self._proven(event, has_facts)):
            return f"event {self.position} was altered"
        if deed.action == ERASE and has_facts:
            self._erased_at, self._first_format = self.position, (deed.after or {}).get("first_format", 0)
        self.hash = event.hash
        return None

    @property
    def unexplained(self) -> str | None:
        """Facts that are missing though nobody erased them."""
        if self._bare > self._erased_at:
            return f"event {self._bare} was altered: its facts are gone"
        if self._unproven > min(self._first_format, self._erased_at):
            return f"event {self._unproven} was altered"
        return None

    def _proven(self, event: AuditEvent, has_facts: bool) -> bool:
        if event.salt is not None:
            return event.digest == digest_of(event.salt, event.deed)
        self._bare = self.position
        return not has_facts
