"""API keys of the key's organisation."""

from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, cast

import msgspec
from litestar import delete, get, patch, post
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Meta, UnsetType

from billing.tenancy.api_key import (
    TRAFFIC_CLASSES,
    USUAL_SCOPES,
    ApiKey,
    IssuedKey,
    KeyChanges,
    KeyTerms,
    Scope,
    TrafficClass,
    network_of,
)
from billing.tenancy.tenant import DEFAULT_PROJECT
from gateway.desk import AnyRequest
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Instant, Listed, Name, RowsMax

GRACE_DEFAULT_S: Final = 24 * 3600
GRACE_MAX_S: Final = 365 * 24 * 3600


class KeyShown(msgspec.Struct):
    """A key, never with its secret. ``prefix`` is the beginning of the present one."""

    id: str
    project_id: str
    name: str
    prefix: str
    scopes: list[Scope]
    models: list[str] | None
    networks: list[str] | None
    traffic_class: TrafficClass | None
    traffic_classes: list[TrafficClass]
    max_tokens: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    object: Literal["organization.key"] = "organization.key"


class KeyIssued(KeyShown, kw_only=True):
    """A key with its new secret, which is shown this once."""

    secret: str


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """What a key is to be allowed; what is left out is not restricted.

    ``networks`` are addresses and CIDR blocks. ``traffic_classes`` may be chosen by the header
    ``X-Traffic-Class``. A key of management can have no scope of inference.
    """

    name: Name
    project: str = DEFAULT_PROJECT
    scopes: list[Scope] = msgspec.field(default_factory=lambda: sorted(USUAL_SCOPES))
    models: list[str] | None = None
    networks: list[str] | None = None
    expires_at: Instant | None = None
    traffic_class: TrafficClass | None = None
    traffic_classes: list[TrafficClass] = msgspec.field(default_factory=lambda: sorted(TRAFFIC_CLASSES))
    max_tokens: int | None = None


class KeyPatch(msgspec.Struct, forbid_unknown_fields=True):
    """What is to change; null takes a restriction away, what is left out stays."""

    name: Name | UnsetType = UNSET
    models: list[str] | UnsetType | None = UNSET
    networks: list[str] | UnsetType | None = UNSET
    expires_at: Instant | UnsetType | None = UNSET
    traffic_class: TrafficClass | UnsetType | None = UNSET
    traffic_classes: list[TrafficClass] | UnsetType = UNSET
    max_tokens: int | UnsetType | None = UNSET


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """For how long the secrets before go on working."""

    grace_s: Annotated[int, Meta(ge=0, le=GRACE_MAX_S)] = GRACE_DEFAULT_S


@get("/keys")
async def list_keys(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[KeyShown]:
    """List keys, revoked ones too."""
    page = edge.one_more(after, limit)
    rows = await edge.organization(request).tenancy.keys(edge.manager(request).tenant_id, page)
    return edge.listed(rows, limit, _shown)


@post("/keys")
async def create_key(request: AnyRequest, data: JSONBody[NewKey]) -> KeyIssued:
    """Create a key. Its secret is in this answer and nowhere else."""
    by = edge.manager(request)
    terms = KeyTerms(
        scopes=frozenset(data.scopes),
        models=None if data.models is None else frozenset(data.models),
        networks=None if data.networks is None else tuple(map(network_of, data.networks)),
        expires_at=data.expires_at,
        traffic_class=data.traffic_class,
        traffic_classes=frozenset(data.traffic_classes),
        max_tokens=data.max_tokens,
    )
    at = await edge.now(request)
    issued = await edge.organization(request).tenancy.create_key(
        by.tenant_id, data.name, at, terms=terms, project=data.project, actor=by.key_id
    )
    return _issued(issued)


@get("/keys/{key_id:str}")
async def show_key(request: AnyRequest, key_id: FromPath[str]) -> KeyShown:
    """Show a key."""
    return _shown(await edge.organization(request).tenancy.key(key_id, edge.manager(request).tenant_id))


@patch("/keys/{key_id:str}")
async def change_key(request: AnyRequest, key_id: FromPath[str], data: JSONBody[KeyPatch]) -> KeyShown:
    """Change a key. Every gateway follows within two seconds."""
    by = edge.manager(request)
    at = await edge.now(request)
    changed = await edge.organization(request).tenancy.change_key(
        key_id, _changes(data), at, tenant_id=by.tenant_id, actor=by.key_id
    )
    await edge.tell(request, changed.id)
    return _shown(changed)


@post("/keys/{key_id:str}/rotate", status_code=200)
async def rotate_key(request: AnyRequest, key_id: FromPath[str], data: JSONBody[Rotation]) -> KeyIssued:
    """Give a key a new secret, in this answer and nowhere else. Those before work for the grace."""
    by = edge.manager(request)
    at = await edge.now(request)
    issued = await edge.organization(request).tenancy.rotate_key(
        key_id, timedelta(seconds=data.grace_s), at, tenant_id=by.tenant_id, actor=by.key_id
    )
    await edge.tell(request, key_id)
    return _issued(issued)


@delete("/keys/{key_id:str}", status_code=200)
async def revoke_key(request: AnyRequest, key_id: FromPath[str]) -> KeyShown:
    """Revoke a key for good. Every gateway refuses it within two seconds."""
    by = edge.manager(request)
    at = await edge.now(request)
    revoked = await edge.organization(request).tenancy.revoke_key(
        key_id, at, tenant_id=by.tenant_id, actor=by.key_id
    )
    await edge.tell(request, revoked.id)
    return _shown(revoked)


def _changes(data: KeyPatch) -> KeyChanges:
    given = {field: value for field in data.__struct_fields__ if (value := getattr(data, field)) is not UNSET}
    for field in ("models", "traffic_classes"):
        if given.get(field) is not None:
            given[field] = frozenset(given[field])
    if given.get("networks") is not None:
        given["networks"] = tuple(map(network_of, given["networks"]))
    return cast("KeyChanges", given)


def _shown(key: ApiKey) -> KeyShown:
    terms = key.terms
    return KeyShown(
        id=key.id,
        project_id=key.project_id,
        name=key.name,
        prefix=key.prefix,
        scopes=sorted(terms.scopes),
        models=None if terms.models is None else sorted(terms.models),
        networks=None if terms.networks is None else [str(network) for network in terms.networks],
        traffic_class=terms.traffic_class,
        traffic_classes=sorted(terms.traffic_classes),
        max_tokens=terms.max_tokens,
        created_at=key.created_at,
        expires_at=terms.expires_at,
        revoked_at=key.revoked_at,
    )


def _issued(issued: IssuedKey) -> KeyIssued:
    return KeyIssued(**msgspec.structs.asdict(_shown(issued.key)), secret=issued.secret)


HANDLERS: Final = [list_keys, create_key, show_key, change_key, rotate_key, revoke_key]
