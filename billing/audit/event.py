"""An entry of the audit log, and the hash that chains it to the one before.

What an entry says of before and after may name people, and people may want to be forgotten. So the chain
holds these facts by a digest with a random salt: facts and salt can be dropped, the digest then tells
nothing, and the entry is still proven with all else it says. Entries of the first format have no digest:
their hash covers the facts themselves.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import rfc8785

HOUSE: Final = "house"  # the chain of what concerns no tenant alone
GENESIS: Final = bytes(32)
SALT_BYTES: Final = 32
ERASE: Final = "tenant.erase"  # the deed before which facts may be missing

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that was changed, to be recorded in the transaction that changes it.

    Args:
        tenant_id: whose chain it joins; ``HOUSE`` for what concerns no tenant alone.
        actor: who did it: ``command line``, an id ``key_…`` or ``usr_…``.
        action: what was done, ``noun.verb``.
        object: id of what was changed.
        at: when, as the actor's process saw it.
        before: what it was, from ``facts_of``; None: it was not there.
        after: what it is now; None: it is gone.
    """

    tenant_id: str
    actor: str
    action: str
    object: str
    at: datetime
    before: Facts | None = None
    after: Facts | None = None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A deed in its place: ``position`` counts a tenant's deeds from 1.

    ``digest`` None: of the first format. ``salt`` None beside a digest: the facts were dropped.
    """

    position: int
    deed: Deed
    hash: bytes
    digest: bytes | None = None
    salt: bytes | None = None


def facts_of(thing: Any) -> dict[str, Any]:
    """A dataclass as JSON: sets sorted, instants in RFC 3339, addresses as text.

    Secrets have no place in what is handed here, nor have integers beyond 2^53: amounts are decimal texts.
    """
    plain: dict[str, Any] = msgspec.to_builtins(thing, order="deterministic", enc_hook=str)
    return plain


def digest_of(salt: bytes, deed: Deed) -> bytes:
    """SHA-256 over a salt of 32 bytes and what the entry says of before and after, in canonical JSON."""
    assert len(salt) == SALT_BYTES
    return hashlib.sha256(salt + rfc8785.dumps({"before": deed.before, "after": deed.after})).digest()


def chained(previous: bytes, position: int, deed: Deed, digest: bytes | None) -> bytes:
    """SHA-256 over the hash before and the entry in canonical JSON (RFC 8785), its facts by their digest."""
    record: dict[str, Any] = {
        "tenant_id": deed.tenant_id,
        "position": position,
        "at": deed.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "actor": deed.actor,
        "action": deed.action,
        "object": deed.object,
    }
    if digest is None:
        record |= {"before": deed.before, "after": deed.after}
    else:
        record["facts"] = digest.hex()
    return hashlib.sha256(previous + rfc8785.dumps(record)).digest()
