"""A tenant: who pays, in one immutable currency."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Tenant:
    """``id`` is opaque and random, ``name`` unique."""

    id: str
    name: str
    currency: str
    created_at: datetime
