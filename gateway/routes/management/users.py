"""Users of the key's organisation and their roles."""

from datetime import datetime
from typing import Final, Literal

import msgspec
from litestar import delete, get, patch, post
from litestar.params import FromPath, JSONBody

from billing.tenancy.users.user import Role, User
from gateway.desk import AnyRequest
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Deleted, Listed, Name, RowsMax


class UserShown(msgspec.Struct):
    """A person of the organisation; ``email`` is in lower case."""

    id: str
    email: str
    role: Role
    created_at: datetime
    object: Literal["organization.user"] = "organization.user"


class NewUser(msgspec.Struct, forbid_unknown_fields=True):
    """An address that is unique in the organisation, and what its owner may do."""

    email: Name
    role: Role


class UserPatch(msgspec.Struct, forbid_unknown_fields=True):
    """Another role."""

    role: Role


@get("/users")
async def list_users(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[UserShown]:
    """List users."""
    page = edge.one_more(after, limit)
    rows = await edge.organization(request).users.users(edge.manager(request).tenant_id, page)
    return edge.listed(rows, limit, _shown)


@post("/users")
async def create_user(request: AnyRequest, data: JSONBody[NewUser]) -> UserShown:
    """Add a user."""
    by = edge.manager(request)
    at = await edge.now(request)
    users = edge.organization(request).users
    return _shown(await users.create(by.tenant_id, data.email, data.role, at, actor=by.key_id))


@get("/users/{user_id:str}")
async def show_user(request: AnyRequest, user_id: FromPath[str]) -> UserShown:
    """Show a user."""
    return _shown(await edge.organization(request).users.user(user_id, edge.manager(request).tenant_id))


@patch("/users/{user_id:str}")
async def change_role(request: AnyRequest, user_id: FromPath[str], data: JSONBody[UserPatch]) -> UserShown:
    """Give a user another role."""
    by = edge.manager(request)
    at = await edge.now(request)
    changed = await edge.organization(request).users.change_role(
        user_id, data.role, at, actor=by.key_id, tenant_id=by.tenant_id
    )
    return _shown(changed)


@delete("/users/{user_id:str}", status_code=200)
async def remove_user(request: AnyRequest, user_id: FromPath[str]) -> Deleted:
    """Remove a user. What they did stays in the audit log."""
    by = edge.manager(request)
    at = await edge.now(request)
    removed = await edge.organization(request).users.remove(
        user_id, at, actor=by.key_id, tenant_id=by.tenant_id
    )
    return Deleted(removed.id, "organization.user")


def _shown(user: User) -> UserShown:
    return UserShown(id=user.id, email=user.email, role=user.role, created_at=user.created_at)


HANDLERS: Final = [list_users, create_user, show_user, change_role, remove_user]
