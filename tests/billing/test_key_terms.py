"""What keys may do, how they change, how they end: as the database keeps it."""

import asyncio
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from sqlalchemy import event, text

from billing.db.pages import Page
from billing.errors import KeyMissing, ProjectMissing, StoreRefused, TenancyInvalid
from billing.tenancy.api_key import KeyTerms, network_of
from billing.tenancy.keys import checksum_ok, digest
from billing.tenancy.projects.service import Projects
from tests.billing.conftest import NOON

TERMS = KeyTerms(
    scopes=frozenset({"inference"}),
    models=frozenset({"one", "two"}),
    networks=(ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")),
    expires_at=NOON + timedelta(days=1),
    traffic_class="agent",
    traffic_classes=frozenset({"agent"}),
    max_tokens=5,
)


async def grant_of(house: Any, secret: str) -> Any:
    return await house.tenancy.find_key(house.tenancy.digest(secret))


async def test_a_grant_carries_what_the_key_may_do(house: Any) -> None:
    issued = await house.tenancy.create_key(house.tenant_id, "narrow", NOON, terms=TERMS)
    grant = await grant_of(house, issued.secret)
    assert grant.terms == issued.key.terms == TERMS
    assert grant.project_id == issued.key.project_id
    assert (grant.tz, grant.limits, grant.budgets) == ("UTC", (), ())
    assert await house.tenancy.key(issued.key.id) == issued.key


async def test_a_key_without_terms_answers_and_shows_usage(house: Any) -> None:
    issued = await house.tenancy.create_key(house.tenant_id, "usual", NOON)
    assert issued.key.terms == KeyTerms()
    assert (await Projects(house.database).project(issued.key.project_id)).name == "default"


@pytest.mark.parametrize(
    ("scopes", "prefix"),
    [
        ({"inference"}, "kv_live_"),
        ({"inference", "usage_read"}, "kv_live_"),
        ({"management"}, "kv_mgmt_"),
        ({"management", "usage_read"}, "kv_mgmt_"),
        ({"usage_read"}, "kv_read_"),
    ],
)
async def test_the_beginning_of_a_secret_tells_its_kind(house: Any, scopes: Any, prefix: str) -> None:
    terms = KeyTerms(scopes=frozenset(scopes))
    issued = await house.tenancy.create_key(house.tenant_id, "k", NOON, terms=terms)
    rotated = await house.tenancy.rotate_key(issued.key.id, timedelta(0), NOON)
    for secret in (issued.secret, rotated.secret):
        assert secret.startswith(prefix)
        assert checksum_ok(secret)


@pytest.mark.parametrize(
    "terms",
    [
        {"scopes": frozenset()},
        {"scopes": frozenset({"inference", "management"})},
        {"models": frozenset()},
        {"networks": ()},
        {"max_tokens": 0},
    ],
)
def test_terms_that_allow_nothing_or_too_much_are_refused(terms: Any) -> None:
    with pytest.raises(TenancyInvalid) as refused:
        KeyTerms(**terms)
    assert refused.value.field == next(iter(terms))


@pytest.mark.parametrize("written", ["10.0.0.1/8", "300.1.1.1", "localhost", ""])
def test_what_is_no_network_is_refused(written: str) -> None:
    with pytest.raises(TenancyInvalid):
        network_of(written)


async def test_a_key_that_has_expired_is_not_made(house: Any) -> None:
    with pytest.raises(TenancyInvalid):
        await house.tenancy.create_key(house.tenant_id, "late", NOON, terms=KeyTerms(expires_at=NOON))


async def test_a_change_changes_what_it_names_alone(house: Any) -> None:
    issued = await house.tenancy.create_key(house.tenant_id, "narrow", NOON, terms=TERMS)
    changed = await house.tenancy.change_key(issued.key.id, {"name": "wide", "models": None}, NOON)
    assert (changed.name, changed.terms.models, changed.terms.max_tokens) == ("wide", None, 5)
    assert (await grant_of(house, issued.secret)).terms == changed.terms
    with pytest.raises(TenancyInvalid):
        await house.tenancy.change_key(issued.key.id, {"max_tokens": 0}, NOON)
    assert await house.tenancy.key(issued.key.id) == changed


async def test_both_secrets_of_a_rotated_key_are_one_key_until_the_grace_ends(house: Any) -> None:
    now = datetime.now(UTC)
    first = await house.tenancy.create_key(house.tenant_id, "k", now)
    second = await house.tenancy.rotate_key(first.key.id, timedelta(hours=1), now)
    old, new = await grant_of(house, first.secret), await grant_of(house, second.secret)
    assert old.key_id == new.key_id == first.key.id
    assert timedelta(minutes=59) < old.lapses_in <= timedelta(hours=1)
    assert new.lapses_in is None
    assert (await house.tenancy.key(first.key.id)).prefix == second.key.prefix == second.secret[:12]


async def test_a_rotation_without_grace_ends_all_secrets_before_it(house: Any) -> None:
    now = datetime.now(UTC)
    first = await house.tenancy.create_key(house.tenant_id, "k", now)
    second = await house.tenancy.rotate_key(first.key.id, timedelta(hours=1), now)
    third = await house.tenancy.rotate_key(first.key.id, timedelta(0), now)
    for secret in (first.secret, second.secret):
        assert (await grant_of(house, secret)).lapses_in <= timedelta(0)
    assert (await grant_of(house, third.secret)).lapses_in is None


async def test_a_longer_grace_does_not_bring_an_ended_secret_back(house: Any) -> None:
    now = datetime.now(UTC)
    first = await house.tenancy.create_key(house.tenant_id, "k", now)
    await house.tenancy.rotate_key(first.key.id, timedelta(0), now)
    await house.tenancy.rotate_key(first.key.id, timedelta(days=1), now)
    assert (await grant_of(house, first.secret)).lapses_in <= timedelta(0)


async def test_rotations_at_once_leave_one_present_secret(house: Any) -> None:
    issued = await house.tenancy.create_key(house.tenant_id, "k", NOON)
    rotate = [house.tenancy.rotate_key(issued.key.id, timedelta(hours=1), NOON) for _ in range(4)]
    secrets = [each.secret for each in await asyncio.gather(*rotate)]
    ends = [(await grant_of(house, secret)).lapses_in for secret in secrets]
    assert ends.count(None) == 1
    assert len([key for key in await house.tenancy.keys(house.tenant_id) if key.id == issued.key.id]) == 1


async def test_a_revoked_key_is_not_rotated_back_to_life(house: Any) -> None:
    issued = await house.tenancy.create_key(house.tenant_id, "k", NOON)
    second = await house.tenancy.rotate_key(issued.key.id, timedelta(hours=1), NOON)
    await house.tenancy.revoke_key(issued.key.id, NOON)
    for secret in (issued.secret, second.secret):
        assert (await grant_of(house, secret)).revoked_at == NOON
    with pytest.raises(TenancyInvalid):
        await house.tenancy.rotate_key(issued.key.id, timedelta(hours=1), NOON)
    with pytest.raises(TenancyInvalid):
        await house.tenancy.rotate_key(issued.key.id, timedelta(seconds=-1), NOON)


async def test_keys_of_another_tenant_are_not_there(house: Any) -> None:
    other = await house.other_tenant()
    calls = (
        house.tenancy.key(house.key_id, other.tenant_id),
        house.tenancy.revoke_key(house.key_id, NOON, tenant_id=other.tenant_id),
        house.tenancy.rotate_key(house.key_id, timedelta(0), NOON, tenant_id=other.tenant_id),
        house.tenancy.change_key(house.key_id, {"name": "mine"}, NOON, tenant_id=other.tenant_id),
    )
    for call in calls:
        with pytest.raises(KeyMissing):
            await call
    theirs = (await Projects(house.database).projects(other.tenant_id))[0].id
    with pytest.raises(ProjectMissing):
        await house.tenancy.create_key(house.tenant_id, "k", NOON, project=theirs)


async def test_pages_follow_one_another_without_gap_or_overlap(house: Any) -> None:
    for number in range(6):  # all of one instant: ids decide
        await house.tenancy.create_key(house.tenant_id, str(number), NOON)
    whole = await house.tenancy.keys(house.tenant_id)
    assert len(whole) == 7
    paged: list[Any] = []
    while page := await house.tenancy.keys(house.tenant_id, Page(paged[-1].id if paged else None, 3)):
        paged += page
    assert paged == whole
    assert await house.tenancy.keys(house.tenant_id, Page("key_nobody", 3)) == []


async def test_the_database_refuses_a_key_that_mixes_management_with_inference(house: Any) -> None:
    with pytest.raises(StoreRefused) as refused:
        async with house.database.transaction() as connection:
            await connection.execute(text("UPDATE api_key SET scopes = '{inference,management}'"))
    assert refused.value.constraint == "ck_api_key_apart"


async def test_a_digest_is_looked_up_in_one_statement(house: Any) -> None:
    """Limits and budgets come with the key: a cold key costs one round trip, however much bounds it."""
    statements: list[str] = []
    engine = house.database._engine.sync_engine

    def listener(*call: Any) -> None:
        statements.append(call[2])

    event.listen(engine, "before_cursor_execute", listener)
    await house.tenancy.find_key(digest("nobody", b"pepper"))
    event.remove(engine, "before_cursor_execute", listener)
    assert len(statements) == 1
