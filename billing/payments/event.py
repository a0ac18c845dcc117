"""An event as a webhook brings it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from billing.errors import WebhookRefused
from billing.payments.fact import Fact, Unread, fact_of


@dataclass(frozen=True, slots=True)
class Received:
    """An event of Stripe's in the inbox, without its body."""

    id: str
    tenant_id: str | None
    object_id: str
    type: str
    created_at: datetime
    received_at: datetime
    outcome: Literal["applied", "ignored", "waiting"]
    reason: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """``at`` is when it happened, by Stripe's clock; ``fact`` what it says of ``fact.id``."""

    id: str
    type: str
    at: datetime
    fact: Fact


class _Content(msgspec.Struct):
    object: dict[str, Any]


class _Envelope(msgspec.Struct):
    id: str
    object: str
    type: str
    created: int | datetime
    data: _Content | None = None


def event_of(body: bytes) -> Event:
    """Read an event; what it says may be nothing that we read.

    Raises:
        WebhookRefused: it is none.
    """
    try:
        found = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WebhookRefused(f"it is no event: {error}") from error
    created = found.created
    at = created if isinstance(created, datetime) else datetime.fromtimestamp(created, UTC)
    return Event(found.id, found.type, at, _fact(found, at))


def _fact(found: _Envelope, at: datetime) -> Fact:
    if found.object != "event" or found.data is None:
        return Unread(found.id, f"a {found.object} brings no object: only events of version 1 are read")
    try:
        return fact_of(found.data.object, at, f"{found.type}:{found.id}")
    except msgspec.ValidationError as error:
        object_id = found.data.object.get("id")
        return Unread(
            object_id if isinstance(object_id, str) else found.id, f"its object is not read: {error}"
        )
