"""An API key of a tenant, without its secret."""

from dataclasses import dataclass, field
from datetime import datetime

from billing.tenancy.limits import Budget, Limit


@dataclass(frozen=True, slots=True)
class ApiKey:
    """``prefix`` is the beginning of the secret, for its owner's eyes; ``revoked_at`` None means in use."""

    id: str
    tenant_id: str
    name: str
    prefix: str
    created_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key with its secret, which is shown this once and kept by nobody."""

    secret: str = field(repr=False)
    key: ApiKey


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What a gateway needs of a key to admit a request. A revoked key is returned, not hidden.

    ``limits`` and ``budgets`` are those of the key, its project and its tenant together.
    """

    key_id: str
    tenant_id: str
    currency: str
    revoked_at: datetime | None
    name: str
    limits: tuple[Limit, ...] = ()
    budgets: tuple[Budget, ...] = ()
