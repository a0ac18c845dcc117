"""A tenant, who pays in one immutable currency, and the projects its keys belong to."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from billing.errors import TenancyInvalid

BillingMode = Literal["prepaid", "postpaid"]
SuspendedBy = Literal["operator", "dunning"]

DEFAULT_PROJECT: Final = "default"  # every tenant has it, and keys of nothing else in particular are its


@dataclass(frozen=True, slots=True)
class Suspension:
    """Inference is refused since ``at``. Payment resumes what dunning has suspended, operators anything."""

    by: SuspendedBy
    because: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Tenant:
    """``id`` is opaque and random, ``name`` unique. Days, weeks and months of its budgets begin in ``tz``.

    An erased one has its id for a name, and stays suspended.

    Raises:
        TenancyInvalid: no such time zone.
    """

    id: str
    name: str
    currency: str
    created_at: datetime
    billing_mode: BillingMode = "prepaid"
    tz: str = "UTC"
    suspension: Suspension | None = None
    erased_at: datetime | None = None

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise TenancyInvalid("tz", f"{self.tz!r} is no time zone such as Europe/Stockholm") from None


@dataclass(frozen=True, slots=True)
class Project:
    """A part of a tenant. An archived one keeps its usage and has no key in use."""

    id: str
    tenant_id: str
    name: str
    created_at: datetime
    archived_at: datetime | None = None
