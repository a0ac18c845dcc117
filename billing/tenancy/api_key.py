"""An API key of a tenant, without its secret."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final, Literal, TypedDict

from billing.errors import TenancyInvalid
from billing.tenancy.limits import Budget, Limit
from billing.tenancy.tenant import SuspendedBy

Scope = Literal["inference", "usage_read", "management"]
TrafficClass = Literal["agent", "chat"]
Network = IPv4Network | IPv6Network

MAX_TOKENS_BOUND: Final = 2**31 - 1
USUAL_SCOPES: Final[frozenset[Scope]] = frozenset({"inference", "usage_read"})
TRAFFIC_CLASSES: Final[frozenset[TrafficClass]] = frozenset({"agent", "chat"})


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """What a key may do.

    Attributes:
        scopes: ``inference`` asks models, ``usage_read`` reads balance and usage, ``management`` changes
            projects, keys, users, limits and budgets. Management and inference never come in one key.
        models: public names it may ask; None: all.
        networks: addresses it may be used from; None: any.
        expires_at: it works until then; None: until it is revoked.
        traffic_class: retention class of its requests; None: as each request looks.
        traffic_classes: classes that a request may choose by the header ``X-Traffic-Class``.
        max_tokens: the longest answer it may ask for, in tokens; None: as long as the model allows.

    Raises:
        TenancyInvalid: a key that could do nothing, or too much.
    """

    scopes: frozenset[Scope] = USUAL_SCOPES
    models: frozenset[str] | None = None
    networks: tuple[Network, ...] | None = None
    expires_at: datetime | None = None
    traffic_class: TrafficClass | None = None
    traffic_classes: frozenset[TrafficClass] = TRAFFIC_CLASSES
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.scopes:
            raise TenancyInvalid("scopes", "a key needs one at least")
        if {"management", "inference"} <= self.scopes:
            raise TenancyInvalid("scopes", "a management key cannot call inference: make two keys")
        for name, listed in (("models", self.models), ("networks", self.networks)):
            if listed is not None and not listed:
                raise TenancyInvalid(name, "an empty list would allow nothing; leave it out to allow all")
        if self.max_tokens is not None and not 1 <= self.max_tokens <= MAX_TOKENS_BOUND:
            raise TenancyInvalid("max_tokens", f"it is from 1 to {MAX_TOKENS_BOUND}")


class KeyChanges(TypedDict, total=False):
    """What of a key may be changed; what is left out stays. Scopes stay for good: the prefix tells them."""

    name: str
    models: frozenset[str] | None
    networks: tuple[Network, ...] | None
    expires_at: datetime | None
    traffic_class: TrafficClass | None
    traffic_classes: frozenset[TrafficClass]
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """``prefix`` is the beginning of the secret, for its owner's eyes; ``revoked_at`` None means in use."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    prefix: str
    created_at: datetime
    terms: KeyTerms = KeyTerms()
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key with a new secret, which is shown this once and kept by nobody."""

    secret: str = field(repr=False)
    key: ApiKey


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What a gateway needs of a key to admit a request. A revoked or lapsed key is returned, not hidden.

    ``limits`` and ``budgets`` are those of the key, its project and its tenant together. ``lapses_in`` counts
    from the reading of this grant, by the database's clock, to the end of the key or of this secret of it;
    zero or less: it has lapsed; None: it will not. ``suspended_by``: whose suspension of the tenant stands.
    ``nonce_secret`` hides its tenant's prompts (`engine.proof.attestation.prompt_nonce`).
    """

    key_id: str
    tenant_id: str
    currency: str
    revoked_at: datetime | None
    name: str
    limits: tuple[Limit, ...] = ()
    budgets: tuple[Budget, ...] = ()
    project_id: str = ""
    terms: KeyTerms = KeyTerms()
    lapses_in: timedelta | None = None
    tz: str = "UTC"
    suspended_by: SuspendedBy | None = None
    nonce_secret: bytes = field(default=b"", repr=False)


def network_of(text: str) -> Network:
    """Read an address or a CIDR block.

    Raises:
        TenancyInvalid: it is neither, or has bits behind its mask, which is mostly a typing error.
    """
    try:
        return ip_network(text)
    except ValueError as error:
        raise TenancyInvalid("networks", str(error)) from None
