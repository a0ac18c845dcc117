"""Where a tenant wants to be told, and what became of telling it there."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from billing.errors import TenancyInvalid
from billing.notify.kind import Kind
from billing.notify.notice import KeptNotice, instant_text

ENDPOINTS_MAX: Final = 20  # of a tenant: each gets every notice that it wants
GRACE_MAX: Final = timedelta(days=365)

State = Literal["pending", "delivered", "given_up"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL that notices are posted to.

    Attributes:
        kinds: of the notices it gets; None: all.
        enabled: others get none.
        disabled_for: why, where that was not its tenant's doing.
        failing_since: first attempt in vain since it has last taken one; None: it took the last.

    Raises:
        TenancyInvalid: it would get nothing.
    """

    id: str
    tenant_id: str
    url: str
    kinds: frozenset[Kind] | None
    created_at: datetime
    enabled: bool = True
    disabled_for: str | None = None
    failing_since: datetime | None = None

    def __post_init__(self) -> None:
        if self.kinds is not None and not self.kinds:
            raise TenancyInvalid("kinds", "an empty list would want nothing; leave it out to want all")

    @property
    def facts(self) -> dict[str, Any]:
        """What the audit log says of it. Paths and queries of such URLs are often keys to post by."""
        parts = urlsplit(self.url)
        return {
            "origin": f"{parts.scheme}://{parts.netloc}",
            "kinds": None if self.kinds is None else sorted(self.kinds),
            "enabled": self.enabled,
            "disabled_for": self.disabled_for,
            "created_at": instant_text(self.created_at),
        }


@dataclass(frozen=True, slots=True)
class IssuedEndpoint:
    """An endpoint with a new secret, which is shown this once."""

    secret: str = field(repr=False)
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to deliver; ``status`` None: there was no answer; ``error`` None: it was taken."""

    number: int
    at: datetime
    duration_ms: int
    status: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a notice at an endpoint. ``due_at``: of the next attempt, or of what settled it."""

    notice_id: str
    kind: Kind
    at: datetime
    endpoint_id: str
    state: State
    due_at: datetime
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery that is to be tried now, and what signs it: names of sealed secrets, and these."""

    kept: KeptNotice
    endpoint_id: str
    url: str
    sealed: tuple[tuple[str, str], ...]
