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
from billing.errors import AmountExceeds, StoreRefused
from billing.ledger.auto_top_up import AutoTopUp
from billing.ledger.balance import BillingTerms
from billing.ledger.credit import Correction, Grant, Movement, Refund, WriteOff
from billing.money import Femto, femto_of
from billing.pricing.book import Placement, PriceBook
from billing.pricing.publication import LEAD
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
    for number in (1, 2):
        async with house.database.transaction() as connection:
            await audit.append(connection, Deed(HOUSE, "test", "epoch.begin", str(number), NOON))
    *_, first, second = await Audit(house.database).events(HOUSE)
    assert (second.position, second.deed.object) == (first.position + 1, "2")
    assert await Audit(house.database).verify(HOUSE) == []


def movements(**by: Any) -> list[tuple[str, Movement]]:
    """One of each kind, in an order in which each is possible, and what the log calls it."""
    key = {"reason": "why", **by}
    return [
        ("credit.grant", Grant(femto_of("1"), "granted", **key)),
        ("credit.top_up", Grant(femto_of("3"), "topped_up", idempotency_key=CANARY, **key)),
        ("credit.refund", Refund(femto_of("2"), **key)),
        ("credit.correct", Correction(femto_of("5"), "house", **key)),
        ("credit.write_off", WriteOff(femto_of("0.5"), **key)),
    ]


CANARY = "sk_live_canary"


async def test_every_movement_of_money_is_recorded_with_the_balances_before_and_after(house: Any) -> None:
    made = [
        (action, await house.ledger.post(house.tenant_id, movement, NOON))
        for action, movement in movements(actor="usr_ann")
    ]
    events = (await deeds(house))[-5:]
    assert [(event.deed.action, event.deed.object) for event in events] == [
        (action, str(posted.transaction_id)) for action, posted in made
    ]
    assert {event.deed.actor for event in events} == {"usr_ann"}
    spendable = [
        (said["balance_granted"], said["balance_topped_up"])
        for event in events
        for said in (event.deed.before, event.deed.after)
    ]
    assert spendable == [
        ("0", "0"), ("1", "0"), ("1", "0"), ("1", "3"), ("1", "3"), ("1", "1"),
        ("1", "1"), ("0", "-3"), ("0", "-3"), ("0", "-2.5"),
    ]  # fmt: skip
    assert (events[1].deed.after["amount"], events[1].deed.after["reason"]) == ("3", "why")
    assert events[3].deed.after["favours"] == "house"
    assert CANARY not in repr(events)
    assert await Audit(house.database).verify(house.tenant_id) == []


async def test_a_movement_made_before_or_refused_leaves_no_deed(house: Any) -> None:
    paid = Grant(femto_of("3"), "topped_up", "paid", "ann", idempotency_key="pay-1")
    await house.ledger.post(house.tenant_id, paid, NOON)
    before = await deeds(house)
    await house.ledger.post(house.tenant_id, paid, NOON)
    with pytest.raises(AmountExceeds):
        await house.ledger.post(house.tenant_id, Refund(femto_of("9"), "why", "ann"), NOON)
    assert await deeds(house) == before


async def test_a_deed_that_cannot_be_recorded_moves_no_money(house: Any) -> None:
    async with house.database.transaction(OWNER) as connection:
        taken = text("""
            INSERT INTO audit_event (tenant_id, position, at, actor, action, object, hash)
            VALUES (:tenant, 3, now(), 'somebody', 'place.take', 'it', sha256(''))
        """)
        await connection.execute(taken, {"tenant": house.tenant_id})
    with pytest.raises(StoreRefused):
        await house.ledger.post(house.tenant_id, Grant(femto_of("3"), "granted", "why", "ann"), NOON)
    assert await house.ledger.movements(house.tenant_id) == []
    assert (await house.ledger.balance(house.tenant_id)).total == 0


async def test_how_a_tenant_pays_is_recorded(house: Any) -> None:
    terms, rule = BillingTerms("postpaid", femto_of("50")), AutoTopUp(femto_of("5"), femto_of("20"))
    await house.ledger.agree(house.tenant_id, terms, NOON, actor="usr_ann")
    for each in (rule, replace(rule, enabled=False)):
        await house.ledger.set_auto_top_up(house.tenant_id, each, NOON, actor="usr_ann")
    agreed, first, second = (event.deed for event in (await deeds(house))[-3:])
    assert (agreed.action, agreed.before, agreed.after) == (
        "credit.terms",
        {"billing_mode": "prepaid", "credit_limit": "0"},
        {"billing_mode": "postpaid", "credit_limit": "50"},
    )
    on = {"threshold": "5", "amount": "20", "enabled": True}
    assert (first.action, first.before, first.after) == ("credit.auto", None, on)
    assert (second.before, second.after) == (on, {**on, "enabled": False})


async def test_prices_are_published_under_a_name(house: Any) -> None:
    """A tenant's own price and its plan are in its chain, all others in the house's."""
    row = replace(house.book.rows[0], model=f"m-{house.tenant_id}", windows=())
    later = replace(row, effective_from=NOON, standard=replace(row.standard, output=Femto(7)))
    own = replace(row, tenant_id=house.tenant_id)
    plan = f"plan-{house.tenant_id[4:]}"
    published = len(await deeds(house)), len(await Audit(house.database).events(HOUSE, events_max=999))
    await house.prices.publish(PriceBook((later, row, own)), "usr_ann", NOON)
    await house.prices.publish(PriceBook((later, row, own)), "usr_ann", NOON)  # changes nothing
    await house.prices.create_plan(plan, "usr_ann", NOON)
    for number, on in enumerate((plan, None), 1):
        await house.prices.place(Placement(house.tenant_id, NOON + number * LEAD, on), "usr_ann", NOON)
    ours = [event.deed for event in (await deeds(house))[published[0] :]]
    theirs = [e.deed for e in (await Audit(house.database).events(HOUSE, events_max=999))[published[1] :]]
    assert [(deed.action, deed.object) for deed in theirs] == [
        ("price.publish", later.id), ("price.publish", row.id), ("plan.create", plan),
    ]  # fmt: skip
    assert theirs[0].before is not None
    assert theirs[0].before["standard: output"] != theirs[0].after["standard: output"]
    assert theirs[1].before is None
    assert [(deed.action, deed.object) for deed in ours] == [
        ("price.publish", own.id), ("plan.place", house.tenant_id), ("plan.place", house.tenant_id),
    ]  # fmt: skip
    assert [(deed.before["plan"], deed.after["plan"]) for deed in ours[1:]] == [
        (None, plan), (plan, None),
    ]  # fmt: skip
    assert {deed.actor for deed in (*ours, *theirs)} == {"usr_ann"}


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
