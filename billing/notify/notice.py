"""Something that a tenant is to know, as it is stored and as its endpoints get it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from billing.notify.kind import Kind
from engine.proof.signed import canonical

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened to a tenant or is about to.

    Args:
        tenant_id: who is to know.
        kind: of what.
        at: when it was noticed.
        facts: JSON of texts, whole numbers below 2^53, booleans, lists and objects. Amounts are decimal
            texts, instants RFC 3339. No secrets, no prompts: tenants send their notices wherever they like.
        dedupe: names the occasion; a second notice of it is none. None: each one counts.
    """

    tenant_id: str
    kind: Kind
    at: datetime
    facts: Facts
    dedupe: str | None = None


@dataclass(frozen=True, slots=True)
class KeptNotice:
    """A notice as it is stored; ``id`` is what receivers tell repeated deliveries by."""

    id: str
    notice: Notice

    @property
    def body(self) -> bytes:
        """The payload, the same bytes in each delivery: ``type``, ``timestamp`` and ``data``, as Standard
        Webhooks wants them, with ``id`` and ``tenant_id`` beside.
        """
        notice = self.notice
        return canonical(
            {
                "id": self.id,
                "type": notice.kind,
                "timestamp": instant_text(notice.at),
                "tenant_id": notice.tenant_id,
                "data": notice.facts,
            }
        )


def instant_text(at: datetime) -> str:
    """RFC 3339 in UTC with a Z, as facts write instants."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
