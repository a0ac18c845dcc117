"""Bringing notices to endpoints: at least once, each attempt recorded, tried again for three days."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from billing.audit import service as audit
from billing.audit.event import Deed
from billing.db.access import SETTLER
from billing.db.transaction import Connection, Database
from billing.notify import repository
from billing.notify.endpoint import Attempt, Due, Endpoint
from billing.notify.schedule import JITTER_PARTS, disabling, next_attempt
from billing.notify.signature import signed_headers
from billing.notify.webhooks import Sealing

ACTOR: Final = "system"
AT_ONCE: Final = 32
OF_ENDPOINT_AT_ONCE: Final = 4  # so that one slow endpoint does not take all places
LEASE: Final = timedelta(seconds=60)  # well beyond what a sender may take: until then nobody else tries
ROUNDS_MAX: Final = 20  # of a run: the next one goes on
ERROR_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Reply:
    """How an attempt went: ``status`` None, there was no answer; ``said`` is its beginning, or the fault."""

    status: int | None
    said: str
    duration: timedelta

    @property
    def taken(self) -> bool:
        """Whether the endpoint has taken the notice: any 2xx says so."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def error(self) -> str | None:
        """What to record of an attempt in vain: bounded, of characters that a column and a terminal take."""
        if self.taken:
            return None
        said = "".join(c if c.isprintable() else " " for c in self.said).strip()
        answered = f"answered {self.status}: {said}" if self.status is not None and said else said
        return (answered or f"answered {self.status}")[:ERROR_CHARACTERS_MAX]


class Sender(Protocol):
    """Posts to an address that a tenant has written. Follows no redirect, reads little, never raises."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """One attempt, in a bounded time that is well below `LEASE`."""


class Deliveries:
    """The delivering job. Any number may run: each delivery is leased to one of them at a time.

    A run that is killed leaves its leases behind; when they end, what was on its way is sent again.
    """

    def __init__(
        self, database: Database, sealing: Sealing, sender: Sender, now: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._sealing = sealing
        self._sender = sender
        self._now = now

    async def deliver_due(self) -> int:
        """Try all that is due; returns how many attempts were made.

        Raises:
            StoreUnavailable: what was not recorded is tried again.
        """
        made = 0
        for _ in range(ROUNDS_MAX):
            due = await self._claim()
            if not due:
                break
            await asyncio.gather(*map(self._try, due))
            made += len(due)
        return made

    async def _claim(self) -> list[Due]:
        at = self._now()
        async with self._database.transaction(SETTLER) as connection:
            claim = repository.Claim(at, at + LEASE, AT_ONCE, OF_ENDPOINT_AT_ONCE)
            return await repository.claim_due(connection, claim)

    async def _try(self, due: Due) -> None:
        at = self._now()
        keys = [await self._sealing.open(sealed, name) for name, sealed in due.sealed]
        readable = [key for key in keys if key is not None]
        if readable:
            body = due.kept.body
            reply = await self._sender.post(due.url, body, signed_headers(due.kept.id, at, body, readable))
        else:
            reply = Reply(None, "its secret cannot be read any more: rotate it", timedelta(0))
        await self._record(due, reply, at)

    async def _record(self, due: Due, reply: Reply, at: datetime) -> None:
        async with self._database.transaction(SETTLER) as connection:
            # The endpoint first, in every transaction: its disabling touches all its deliveries.
            endpoint = await repository.lock_endpoint(connection, due.endpoint_id)
            progress = await repository.lock_delivery(connection, due.kept.id, due.endpoint_id)
            if endpoint is None or progress is None:
                return  # removed meanwhile, with all that was known of it
            number, tries = progress.attempts + 1, progress.tries + 1
            made = Attempt(number, at, reply.duration // timedelta(milliseconds=1), reply.status, reply.error)
            again = None
            if endpoint.enabled and not reply.taken:
                again = next_attempt(tries, self._now(), secrets.randbelow(JITTER_PARTS))
            after = repository.Progress(
                state="delivered" if reply.taken else "given_up" if again is None else "pending",
                due_at=again or at,
                tries=tries,
                attempts=number,
            )
            await repository.insert_attempt(connection, due, made)
            await repository.update_delivery(connection, due, after)
            await self._judge(connection, endpoint, reply, at)

    async def _judge(self, connection: Connection, before: Endpoint, reply: Reply, at: datetime) -> None:
        """Remember since when an endpoint fails, and disable it where it is gone, or has failed for long."""
        if reply.taken:
            after = replace(before, failing_since=None)
        else:
            failing_since = before.failing_since or at
            reason = disabling(reply.status, failing_since, at) if before.enabled else None
            after = replace(before, failing_since=failing_since)
            if reason is not None:
                after = replace(after, enabled=False, disabled_for=reason)
        if after != before:
            await repository.update_endpoint(connection, after)
        if after.enabled != before.enabled:
            await repository.give_up(connection, after.id)
            deed = Deed(before.tenant_id, ACTOR, "webhook.disable", before.id, at, before.facts, after.facts)
            await audit.append(connection, deed)
