"""Limits of the key's organisation. Those of all of it are its operator's: here they are read."""

from dataclasses import replace
from datetime import datetime
from typing import Final, Literal

import msgspec
from litestar import delete, get, patch, post
from litestar.params import FromPath, JSONBody

from billing.errors import LimitInvalid
from billing.tenancy.limits import Level, Limit, Measure
from billing.tenancy.rules.rule import KeptLimit, Owner
from gateway.desk import AnyRequest
from gateway.refusal import NotPermitted
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Deleted, Listed, RowsMax


class LimitShown(msgspec.Struct):
    """How much of ``measure`` requests of ``owner_id`` may use at a time; 0 allows none."""

    id: str
    level: Level
    owner_id: str
    measure: Measure
    amount: int
    model: str | None
    per_user: bool
    cached_free: bool
    created_at: datetime
    object: Literal["organization.limit"] = "organization.limit"


class NewLimit(msgspec.Struct, forbid_unknown_fields=True):
    """For a project or for a key. It takes the place of one of the same measure, model and ``per_user``."""

    measure: Measure
    amount: int
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    per_user: bool = False
    cached_free: bool = False


class LimitPatch(msgspec.Struct, forbid_unknown_fields=True):
    """Another amount."""

    amount: int


@get("/limits")
async def list_limits(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[LimitShown]:
    """List limits of the organisation, its projects and its keys."""
    page = edge.one_more(after, limit)
    rows = await edge.organization(request).rules.limits(edge.manager(request).tenant_id, page)
    return edge.listed(rows, limit, _shown)


@post("/limits")
async def set_limit(request: AnyRequest, data: JSONBody[NewLimit]) -> LimitShown:
    """Put a limit in force."""
    owner = owner_of(edge.manager(request).tenant_id, data.project_id, data.key_id)
    limit = Limit(
        owner.level, owner.id, data.measure, data.amount, data.model, data.per_user, data.cached_free
    )
    return await _set(request, owner, limit)


@get("/limits/{limit_id:str}")
async def show_limit(request: AnyRequest, limit_id: FromPath[str]) -> LimitShown:
    """Show a limit."""
    return _shown(await edge.organization(request).rules.limit(limit_id, edge.manager(request).tenant_id))


@patch("/limits/{limit_id:str}")
async def change_limit(
    request: AnyRequest, limit_id: FromPath[str], data: JSONBody[LimitPatch]
) -> LimitShown:
    """Change a limit's amount."""
    kept = await edge.organization(request).rules.limit(limit_id, edge.manager(request).tenant_id)
    return await _set(request, kept.owner, replace(kept.limit, amount=data.amount))


@delete("/limits/{limit_id:str}", status_code=200)
async def remove_limit(request: AnyRequest, limit_id: FromPath[str]) -> Deleted:
    """Take a limit out of force."""
    by, rules = edge.manager(request), edge.organization(request).rules
    _refuse_operators((await rules.limit(limit_id, by.tenant_id)).owner)
    at = await edge.now(request)
    gone = await rules.remove_limit(limit_id, at, actor=by.key_id, tenant_id=by.tenant_id)
    await edge.tell(request, gone.owner.id)
    return Deleted(gone.id, "organization.limit")


def owner_of(tenant_id: str, project_id: str | None, key_id: str | None) -> Owner:
    """Whose limit or budget a body means.

    Raises:
        LimitInvalid: it names both a project and a key.
    """
    if project_id is not None and key_id is not None:
        raise LimitInvalid("a key has one project: name one of the two")
    return Owner(tenant_id, project_id, key_id)


async def _set(request: AnyRequest, owner: Owner, limit: Limit) -> LimitShown:
    _refuse_operators(owner)
    at = await edge.now(request)
    kept = await edge.organization(request).rules.set_limit(
        owner, limit, at, actor=edge.manager(request).key_id
    )
    await edge.tell(request, owner.id)
    return _shown(kept)


def _refuse_operators(owner: Owner) -> None:
    if owner.level == "tenant":
        raise NotPermitted("limits of the whole organisation are its operator's: name a project or a key")


def _shown(kept: KeptLimit) -> LimitShown:
    limit = kept.limit
    return LimitShown(
        id=kept.id,
        level=limit.level,
        owner_id=limit.owner_id,
        measure=limit.measure,
        amount=limit.amount,
        model=limit.model,
        per_user=limit.per_user,
        cached_free=limit.cached_free,
        created_at=kept.created_at,
    )


HANDLERS: Final = [list_limits, set_limit, show_limit, change_limit, remove_limit]
