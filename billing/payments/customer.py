"""A tenant as Stripe knows it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Customer:
    """A tenant as Stripe knows it; ``method`` is the default one."""

    tenant_id: str
    customer_id: str
    currency: str
    linked_at: datetime
    method: str | None
    deleted: str | None
