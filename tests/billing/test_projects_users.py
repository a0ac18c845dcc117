"""Projects, users and what a tenant is, as the database keeps them."""

from typing import Any

import pytest

from billing.errors import (
    ProjectExists,
    ProjectMissing,
    StoreRefused,
    TenancyInvalid,
    TenantMissing,
    UserExists,
    UserMissing,
)
from billing.tenancy.projects.service import Projects
from billing.tenancy.users.service import Users
from tests.billing.conftest import NOON


@pytest.fixture
def projects(house: Any) -> Projects:
    return Projects(house.database)


@pytest.fixture
def users(house: Any) -> Users:
    return Users(house.database)


async def test_every_tenant_begins_with_its_default_project(house: Any, projects: Projects) -> None:
    assert [project.name for project in await projects.projects(house.tenant_id)] == ["default"]


async def test_a_tenant_says_how_it_is_billed_and_where_its_days_begin(house: Any) -> None:
    made = await house.tenancy.create_tenant("abroad", at=NOON, billing_mode="postpaid", tz="Asia/Kolkata")
    assert await house.tenancy.tenant(made.id) == made
    moved = await house.tenancy.change_tenant(made.id, NOON, tz="Europe/Stockholm")
    assert (moved.billing_mode, moved.tz) == ("postpaid", "Europe/Stockholm")
    assert await house.tenancy.tenant(made.id) == moved
    for tz in ("Mars/Base", "", "../etc/passwd"):
        with pytest.raises(TenancyInvalid):
            await house.tenancy.create_tenant(f"nowhere {tz}", at=NOON, tz=tz)
    with pytest.raises(TenantMissing):
        await house.tenancy.change_tenant("ten_nobody", NOON, tz="UTC")


async def test_a_project_is_found_by_name_in_its_tenant_and_by_id_anywhere(
    house: Any, projects: Projects
) -> None:
    made = await projects.create(house.tenant_id, "search", NOON, actor="test")
    assert await projects.project("search", house.tenant_id) == made
    assert await projects.project(made.id) == made
    for name, tenant_id in (("search", None), ("search", "ten_nobody"), (made.id, "ten_nobody")):
        with pytest.raises(ProjectMissing):
            await projects.project(name, tenant_id)


async def test_a_project_has_a_name_that_its_tenant_uses_once(house: Any, projects: Projects) -> None:
    made = await projects.create(house.tenant_id, "search", NOON, actor="test")
    other = await projects.create(house.tenant_id, "chat", NOON, actor="test")
    with pytest.raises(ProjectExists):
        await projects.create(house.tenant_id, "search", NOON, actor="test")
    with pytest.raises(ProjectExists):
        await projects.rename(other.id, "search", NOON, actor="test")
    with pytest.raises(StoreRefused):
        await projects.create(house.tenant_id, "", NOON, actor="test")
    with pytest.raises(TenantMissing):
        await projects.create("ten_nobody", "search", NOON, actor="test")
    assert (await projects.rename(made.id, "find", NOON, actor="test")).name == "find"


async def test_an_archived_project_has_no_key_in_use_and_takes_no_new_one(
    house: Any, projects: Projects
) -> None:
    made = await projects.create(house.tenant_id, "search", NOON, actor="test")
    issued = await house.tenancy.create_key(house.tenant_id, "k", NOON, project="search")
    archived = await projects.archive(made.id, NOON, actor="test")
    assert archived.archived_at == NOON
    assert await projects.archive(made.id, NOON, actor="test") == archived
    assert (await house.tenancy.key(issued.key.id)).revoked_at == NOON
    assert (await house.tenancy.key(house.key_id)).revoked_at is None
    with pytest.raises(ProjectMissing):
        await house.tenancy.create_key(house.tenant_id, "k", NOON, project="search")


async def test_the_default_project_stays(house: Any, projects: Projects) -> None:
    (default,) = await projects.projects(house.tenant_id)
    with pytest.raises(TenancyInvalid):
        await projects.archive(default.id, NOON, actor="test")
    with pytest.raises(TenancyInvalid):
        await projects.rename(default.id, "other", NOON, actor="test")


async def test_a_user_has_one_role_in_each_tenant(house: Any, users: Users) -> None:
    made = await users.create(house.tenant_id, " Ada@Example.com ", "owner", NOON, actor="test")
    assert made.email == "ada@example.com"
    with pytest.raises(UserExists):
        await users.create(house.tenant_id, "ADA@example.com", "viewer", NOON, actor="test")
    other = await house.other_tenant()
    there = await users.create(other.tenant_id, "ada@example.com", "viewer", NOON, actor="test")
    changed = await users.change_role(made.id, "finance", NOON, actor="test")
    assert await users.users(house.tenant_id) == [changed]
    assert await users.user(there.id) == there


async def test_a_removed_user_is_gone_and_anothers_cannot_be_removed(house: Any, users: Users) -> None:
    made = await users.create(house.tenant_id, "bo@example.com", "developer", NOON, actor="test")
    with pytest.raises(UserMissing):
        await users.remove(made.id, NOON, actor="test", tenant_id="ten_nobody")
    await users.remove(made.id, NOON, actor="test")
    with pytest.raises(UserMissing):
        await users.user(made.id)
    with pytest.raises(TenantMissing):
        await users.create("ten_nobody", "bo@example.com", "viewer", NOON, actor="test")


@pytest.mark.parametrize("email", ["", "ada", "@example.com", "ada@", "a da@example.com", "a\0@example.com"])
async def test_what_is_no_address_is_refused(house: Any, users: Users, email: str) -> None:
    with pytest.raises(TenancyInvalid):
        await users.create(house.tenant_id, email, "viewer", NOON, actor="test")
