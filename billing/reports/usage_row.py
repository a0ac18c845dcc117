"""One line of usage, and which lines to read."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from billing.money import Femto
from billing.tenancy.limits import Level


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Requests rated in ``[since, until)``, of one tenant or all; with a ``limit``, the newest."""

    tenant_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class UseFilter:
    """Requests rated in ``[since, until)`` of a tenant, a project or a key; of one model, or all."""

    tenant_id: str
    level: Level
    owner_id: str
    since: datetime
    until: datetime
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """What such requests came to: those settled up to this version of the tenant's balance, no other."""

    charge: Femto
    tokens: int
    balance_version: int


@dataclass(frozen=True, slots=True)
class OwedRow:
    """Owed tokens of a tenant that were billed as hits. ``cost``: what as misses they had brought beyond."""

    tenant_id: str
    currency: str
    tokens: int
    cost: Femto


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """A request whose usage cannot be. ``tenant`` is a name, or the id that was said where there is none.

    ``attestation`` is what a worker signed of it; all that workers did, if it came with their journals.
    """

    request_id: UUID
    tenant: str
    recorded_at: datetime
    reason: str
    attestation: str | None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A usage event. ``tenant`` and ``key`` are names, for reading; the ids stand beside them."""

    request_id: UUID
    tenant: str
    key: str
    model: str
    rated_at: datetime
    status: str
    cache_hit: int
    cache_owed: int
    cache_write: int
    cache_miss: int
    output: int
    charge: Femto
    currency: str
    tenant_id: str
    key_id: str
    price_row_id: str
    price_window: str
