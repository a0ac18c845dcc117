"""Answers kept in Valkey for clients that ask again, and the claims on idempotency keys.

A claim is a lease: who holds it answers the key, and its row then keeps the answer for a day. Which request
has answered a key is for Postgres to say (`billing.settlement.idempotency`); all that is lost here is bodies.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from billing.settlement.idempotency import KEPT_FOR
from gateway.valkey import Script, Valkey, Word
from gateway.vault import Vault

# A client gives up, or has asked again, long before.
UNDELIVERED_FOR: Final = timedelta(minutes=5)
# Of identical requests, as many answers as this wait for their clients at most.
UNDELIVERED_MAX: Final = 16
PLACES: Final = ("idempotency", "undelivered")
SCANNED_AT_ONCE: Final = 1000

CLAIM: Final = Script(Path(__file__).with_name("claim.lua").read_text(encoding="utf-8"))
OWN: Final = Script(Path(__file__).with_name("own.lua").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as its retry would look. ``name`` is the digest of its idempotency key, or of itself.

    ``keyed``: it has an idempotency key. ``again``: its client has asked before.
    """

    tenant_id: str
    name: bytes
    body: bytes
    keyed: bool
    again: bool

    @property
    def place(self) -> str:
        """Where in Valkey; also what a sealed answer is bound to."""
        return f"kv:{{{self.tenant_id}}}:{PLACES[0] if self.keyed else PLACES[1]}:{self.name.hex()}"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer as it was sent, whole; ``request_id`` is that of the request that was charged."""

    request_id: UUID
    answer: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """The key has been answered, but the answer is not kept: why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Running:
    """Another request is answering the key. It has no id until it is admitted."""

    request_id: UUID | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The key is the caller's to answer. ``before``: a request that died answering it."""

    before: UUID | None


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key belongs to another body."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Nobody answers the key, or has."""


class Kept:
    """All that is kept. Every method raises ValkeyUnavailable when Valkey does not answer.

    Args:
        lease_s: how long a claim outlives the last renewal by its owner.
    """

    def __init__(self, valkey: Valkey, vault: Vault, *, lease_s: float) -> None:
        self._valkey = valkey
        self.vault = vault
        self._lease_ms = round(lease_s * 1000)

    async def claim(self, ask: Ask, owner: str) -> KeptAnswer | Lost | Running | Claimed | Conflict | Absent:
        """Claim a key for ``owner``; with an owner of ``""`` see what became of it."""
        words = (ask.body.hex(), owner, self._lease_ms, _ms(KEPT_FOR))
        match await self._valkey.run(CLAIM, (ask.place,), words):
            case ["conflict"]:
                return Conflict()
            case ["kept", request_id, sealed]:
                answer = await self.vault.open(sealed, ask.place)
                return Lost("unreadable") if answer is None else KeptAnswer(UUID(request_id), answer)
            case ["lost", reason]:
                return Lost(reason)
            case ["running", request_id]:
                return Running(_uuid(request_id))
            case ["claimed", before]:
                return Claimed(_uuid(before))
            case _:
                return Absent()

    async def admitted(self, ask: Ask, owner: str, request_id: UUID) -> None:
        """Say under which request id the owner answers."""
        await self._own(ask, owner, "request_id", str(request_id))

    async def renew(self, ask: Ask, owner: str) -> None:
        """Extend the lease."""
        await self._own(ask, owner)

    async def keep(self, ask: Ask, owner: str, answer: bytes) -> None:
        """Put the answer where the claim is, unless somebody else owns it by now."""
        await self._own(ask, owner, "answer", await self.vault.seal(answer, ask.place))

    async def lose(self, ask: Ask, owner: str, reason: str) -> None:
        """Say that the key has been answered by something that is not kept."""
        await self._own(ask, owner, "lost", reason)

    async def let_go(self, ask: Ask, owner: str) -> None:
        """Give the key up: it was not answered, and who asks again is served."""
        await self._valkey.run(OWN, (ask.place,), (owner, 0))

    async def give(self, ask: Ask, answer: KeptAnswer) -> None:
        """Keep an answer that its client did not get."""
        sealed = await self.vault.seal(answer.answer, ask.place)
        await asyncio.gather(
            self._valkey.call("RPUSH", ask.place, f"{answer.request_id} {sealed}"),
            self._valkey.call("LTRIM", ask.place, -UNDELIVERED_MAX, -1),
            self._valkey.call("PEXPIRE", ask.place, _ms(UNDELIVERED_FOR)),
        )

    async def take(self, ask: Ask) -> KeptAnswer | None:
        """Take the oldest answer that a client of such a request did not get; nobody else gets it."""
        found = await self._valkey.call("LPOP", ask.place)
        if found is None:
            return None
        request_id, _, sealed = found.partition(" ")
        answer = await self.vault.open(sealed, ask.place)
        return None if answer is None else KeptAnswer(UUID(request_id), answer)

    async def forget_tenant(self, tenant_id: str) -> int:
        """Drop all answers and claims of a tenant; returns how many rows went."""
        gone, cursor = 0, "0"
        while True:
            cursor, found = await self._valkey.call(
                "SCAN", cursor, "MATCH", f"kv:{{{tenant_id}}}:*", "COUNT", SCANNED_AT_ONCE
            )
            rows = [row for row in found if row.split(":")[2] in PLACES]
            if rows:
                gone += await self._valkey.call("DEL", *rows)
            if str(cursor) == "0":
                return gone

    async def _own(self, ask: Ask, owner: str, *fields: Word) -> None:
        await self._valkey.run(OWN, (ask.place,), (owner, self._lease_ms, *fields))


def _uuid(text: str) -> UUID | None:
    return UUID(text) if text else None


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
