"""The audit log: in the transaction of the change, never forked, never edited, never with a secret."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.audit import service as audit
from billing.audit.event import HOUSE, AuditEvent, Deed, facts_of
from billing.audit.service import Audit
from billing.db.access import OWNER
from billing.errors import StoreRefused
from billing.money import Femto
from billing.tenancy.api_key import KeyTerms, network_of
from billing.tenancy.limits import Limit
from billing.tenancy.projects.service import Projects
from billing.tenancy.rules.rule import Owner
from billing.tenancy.rules.service import Rules
from billing.tenancy.users.service import Users
from tests.billing.conftest import NOON


async def deeds(house: Any) -> list[AuditEvent]:
    return await Audit(house.database).events(house.tenant_id)


async def test_whatever_changes_a_tenant_is_recorded_once_with_actor_before_and_after(house: Any) -> None:
    tenancy, tenant_id, by = house.tenancy, house.tenant_id, {"actor": "key_boss"}
    projects, users, rules = Projects(house.database), Users(house.database), Rules(house.database)
    recorded = len(await deeds(house))
    project = await projects.create(tenant_id, "p", NOON, **by)
    await projects.rename(project.id, "q", NOON, **by)
    key = (await tenancy.create_key(tenant_id, "k", NOON, project=project.id, **by)).key
    await tenancy.change_key(key.id, {"name": "l", "networks": (network_of("::1"),)}, NOON, **by)
    await tenancy.rotate_key(key.id, timedelta(hours=1), NOON, **by)
    owner = Owner(tenant_id, key_id=key.id)
    limit = await rules.set_limit(owner, Limit("key", key.id, "concurrent", 3), NOON, **by)
    await rules.remove_limit(limit.id, NOON, **by)
    budget = await rules.create_budget(owner, Femto(10**16), "daily", NOON, hard=True, **by)
    await rules.change_budget(replace(budget.budget, amount=Femto(1)), NOON, **by)
    await rules.remove_budget(budget.id, NOON, **by)
    user = await users.create(tenant_id, "a@b.se", "owner", NOON, **by)
    await users.change_role(user.id, "viewer", NOON, **by)
    await users.remove(user.id, NOON, **by)
    await tenancy.revoke_key(key.id, NOON, **by)
    await tenancy.revoke_key(key.id, NOON, **by)  # changes nothing
    await projects.archive(project.id, NOON, **by)
    await tenancy.change_tenant(tenant_id, NOON, tz="Asia/Tokyo", **by)

    events = (await deeds(house))[recorded:]
    assert [(event.deed.action, event.deed.object) for event in events] == [
        ("project.create", project.id), ("project.rename", project.id),
        ("key.create", key.id), ("key.set", key.id), ("key.rotate", key.id),
        ("limit.set", limit.id), ("limit.remove", limit.id),
        ("budget.create", budget.id), ("budget.set", budget.id), ("budget.remove", budget.id),
        ("user.create", user.id), ("user.role", user.id), ("user.remove", user.id),
        ("key.revoke", key.id), ("project.archive", project.id), ("tenant.set", tenant_id),
    ]  # fmt: skip
    assert {event.deed.actor for event in events} == {"key_boss"}
    named = {event.deed.action: event.deed for event in events}
    assert (named["key.set"].before["name"], named["key.set"].after["name"]) == ("k", "l")
    assert named["key.set"].after["terms"]["networks"] == ["::1/128"]
    assert named["budget.set"].before["budget"]["amount"] == "10"
    assert named["user.remove"].after is None
    assert named["tenant.set"].after["tz"] == "Asia/Tokyo"
    assert await Audit(house.database).verify(tenant_id) == []


async def test_no_secret_and_no_digest_is_in_the_log(house: Any) -> None:
    """BerriAI/litellm#30670, BerriAI/litellm#18731: a canary key is not in the audit log."""
    terms = KeyTerms(scopes=frozenset({"management"}))
    issued = await house.tenancy.create_key(house.tenant_id, "canary", NOON, terms=terms)
    rotated = await house.tenancy.rotate_key(issued.key.id, timedelta(hours=1), NOON)
    await house.tenancy.revoke_key(issued.key.id, NOON)
    async with house.database.transaction() as connection:
        rows = await connection.execute(text("SELECT row_to_json(audit_event)::text FROM audit_event"))
        written = "".join(rows.scalars())
    assert "canary" in written
    for secret in (issued.secret, rotated.secret):
        assert secret not in written
        assert secret[12:] not in written
        assert house.tenancy.digest(secret).hex() not in written


async def test_writers_at_once_make_one_chain(house: Any) -> None:
    make = [house.tenancy.create_key(house.tenant_id, str(number), NOON) for number in range(20)]
    await asyncio.gather(*make)
    events = await deeds(house)
    assert [event.position for event in events] == list(range(1, 23))  # the tenant and its first key before
    assert await Audit(house.database).verify(house.tenant_id) == []


async def test_a_change_that_fails_leaves_no_deed_and_a_deed_that_fails_no_change(house: Any) -> None:
    before = await deeds(house)
    deed = Deed(house.tenant_id, "test", "key.set", "key_x", NOON, after={"name": "nul \0"})

    async def change() -> None:
        async with house.database.transaction() as connection:
            await connection.execute(text("UPDATE tenant SET tz = 'Asia/Tokyo'"))
            await audit.append(connection, deed)

    with pytest.raises(StoreRefused):
        await change()
    assert (await house.tenancy.tenant(house.tenant_id)).tz == "UTC"
    assert await deeds(house) == before


@pytest.mark.parametrize(
    ("tampering", "fault"),
    [
        ("UPDATE audit_event SET actor = 'somebody' WHERE {0} AND position = 2", "event 2 was altered"),
        ("UPDATE audit_event SET after = '{{}}' WHERE {0} AND position = 1", "event 1 was altered"),
        ("UPDATE audit_event SET at = at + interval '1 second' WHERE {0}", "event 1 was altered"),
        ("DELETE FROM audit_event WHERE {0} AND position = 2", "event 2 is missing"),
        ("DELETE FROM audit_event WHERE {0} AND position = 4", "the newest event at 3"),
        ("DELETE FROM audit_event WHERE {0}", "the newest event at None"),
        ("DELETE FROM audit_head WHERE {0}", "the head is at None"),
        ("UPDATE audit_head SET hash = sha256('') WHERE {0}", "another hash"),
    ],
)
async def test_whatever_is_altered_is_found(house: Any, tampering: str, fault: str) -> None:
    for name in ("a", "b"):
        await house.tenancy.create_key(house.tenant_id, name, NOON)
    async with house.database.transaction(OWNER) as connection:
        await connection.execute(text(tampering.format(f"tenant_id = '{house.tenant_id}'")))
    (found,) = await Audit(house.database).verify(house.tenant_id)
    assert fault in found
    assert found in await Audit(house.database).verify()


async def test_the_house_has_a_chain_of_its_own(house: Any) -> None:
    async with house.database.transaction() as connection:
        await audit.append(connection, Deed(HOUSE, "test", "price.publish", "row", NOON))
    (event,) = await Audit(house.database).events(HOUSE)
    assert event.position == 1
    assert await Audit(house.database).verify(HOUSE) == []


async def test_nobody_but_the_owner_may_edit_the_log(house: Any) -> None:
    async with house.database.transaction(OWNER) as connection:
        granted = await connection.execute(
            text("""
            SELECT grantee, privilege_type FROM information_schema.role_table_grants
            WHERE table_name = 'audit_event' AND privilege_type IN ('UPDATE', 'DELETE', 'TRUNCATE')
                AND grantee <> (SELECT tableowner FROM pg_tables WHERE tablename = 'audit_event')""")
        )
        assert granted.all() == []


async def test_the_newest_events_come_last_and_are_counted(house: Any) -> None:
    await house.tenancy.create_key(house.tenant_id, "k", NOON + timedelta(seconds=1))
    (event,) = await Audit(house.database).events(house.tenant_id, events_max=1)
    assert (event.position, event.deed.action) == (3, "key.create")


def test_facts_are_the_same_text_whatever_the_order_of_a_set() -> None:
    one = KeyTerms(models=frozenset({"a", "b", "c"}), networks=(network_of("10.0.0.0/8"),), expires_at=NOON)
    other = KeyTerms(models=frozenset({"c", "b", "a"}), networks=(network_of("10.0.0.0/8"),), expires_at=NOON)
    assert json.dumps(facts_of(one)) == json.dumps(facts_of(other))
    assert facts_of(one)["expires_at"] == "2026-11-02T12:00:00Z"
