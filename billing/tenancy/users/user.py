"""A person of a tenant, and what they may do."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from billing.errors import TenancyInvalid

Role = Literal["owner", "admin", "finance", "developer", "viewer"]


@dataclass(frozen=True, slots=True)
class User:
    """``email`` is in lower case and unique in its tenant. How they sign in is not kept here.

    Raises:
        TenancyInvalid: no e-mail address.
    """

    id: str
    tenant_id: str
    email: str
    role: Role
    created_at: datetime

    def __post_init__(self) -> None:
        name, at, domain = self.email.rpartition("@")
        if not (name and at and domain) or any(c.isspace() or not c.isprintable() for c in self.email):
            raise TenancyInvalid("email", f"{self.email!r} is no e-mail address")
        if self.email != self.email.lower():
            raise TenancyInvalid("email", f"{self.email!r} is not in lower case")
