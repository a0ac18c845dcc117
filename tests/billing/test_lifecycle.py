"""Tenants suspended, resumed, erased: what is refused, what is gone, and what still adds up and verifies."""

import asyncio
import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.alerts.service import Alerts
from billing.audit.service import Audit
from billing.db.access import OWNER
from billing.errors import ErasureRefused, TenancyInvalid, TenantMissing
from billing.invoicing.agreements.service import Agreements
from billing.invoicing.party import Party
from billing.ledger.auto_top_up import AutoTopUp
from billing.lifecycle.service import Lifecycle
from billing.money import Femto, femto_of
from billing.notify.webhooks import Webhooks
from billing.payments.inbox import Inbox
from billing.payments.service import Payments
from billing.reports.rollup import Rollups
from billing.settlement.idempotency import IdempotencyRecord
from billing.settlement.posting import post
from billing.tenancy.api_key import KeyTerms, network_of
from billing.tenancy.limits import Limit
from billing.tenancy.projects.service import Projects
from billing.tenancy.rules.rule import Owner
from billing.tenancy.rules.service import Rules
from billing.tenancy.users.service import Users
from gateway.vault import Vault
from tests.billing.conftest import NOON
from tests.billing.payments.fake_stripe import WEBHOOK_SECRET, FakeStripe

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Named:
    """A tenant that has one of everything, and the names that must go with it."""

    house: Any
    name: str
    email: str
    key: str
    host: str
    project: str
    network: str

    @property
    def tenant_id(self) -> str:
        return str(self.house.tenant_id)

    def named_in(self, dump: str) -> list[str]:
        """Which of its names are there, as text or as the bytes of one."""
        names = (self.name, self.email, self.key, self.host, self.project, self.network)
        return [name for name in names if name in dump or name.encode().hex() in dump]


@pytest.fixture
def lifecycle(house: Any) -> Lifecycle:
    return Lifecycle(house.database)


async def sql(house: Any, statement: str, **values: Any) -> list[Any]:
    async with house.database.transaction(OWNER) as connection:
        found = await connection.execute(text(statement), values)
        return list(found.all()) if found.returns_rows else []


async def test_a_suspended_tenants_grants_say_so_and_a_resumed_ones_do_not(
    house: Any, lifecycle: Lifecycle
) -> None:
    issued = await house.tenancy.create_key(house.tenant_id, "k", NOON)
    digest = house.tenancy.digest(issued.secret)
    assert (await house.tenancy.find_key(digest)).suspended_by is None
    suspended = await lifecycle.suspend(house.tenant_id, "leaked keys", NOON, actor="ann")
    assert suspended == await house.tenancy.tenant(house.tenant_id)
    assert suspended.suspension.because == "leaked keys"
    assert (await house.tenancy.find_key(digest)).suspended_by == "operator"
    resumed = await lifecycle.resume(house.tenant_id, "rotated", NOON, actor="ann")
    assert resumed.suspension is None
    assert (await house.tenancy.find_key(digest)).suspended_by is None


async def test_both_are_in_the_audit_log_with_their_reasons_and_again_changes_nothing(
    house: Any, lifecycle: Lifecycle
) -> None:
    for _ in range(2):
        await asyncio.gather(
            *(lifecycle.suspend(house.tenant_id, "leaked keys", NOON, actor="ann") for _ in range(3))
        )
    for _ in range(2):
        await lifecycle.resume(house.tenant_id, "rotated", NOON, actor="bob")
    deeds = [event.deed for event in await Audit(house.database).events(house.tenant_id)][-2:]
    assert [(deed.actor, deed.action) for deed in deeds] == [
        ("ann", "tenant.suspend"),
        ("bob", "tenant.resume"),
    ]
    assert deeds[0].after["suspension"]["because"] == "leaked keys"
    assert deeds[1].after["reason"] == "rotated"
    assert deeds[1].before["suspension"]["by"] == "operator"


async def test_what_means_nothing_is_refused(house: Any, lifecycle: Lifecycle) -> None:
    name = (await house.tenancy.tenant(house.tenant_id)).name
    for nobody in ("ten_nobody", name):
        with pytest.raises(TenantMissing):
            await lifecycle.suspend(nobody, "why", NOON, actor="ann")
    with pytest.raises(TenancyInvalid, match="reason"):
        await lifecycle.suspend(house.tenant_id, " ", NOON, actor="ann")


async def paid_by_stripe(house: Any, tenant_id: str, billed_to: Any) -> None:
    """A payment that Stripe told of by two events: the one that moves money, and one that is ignored."""
    fake = FakeStripe(NOON)
    customer_id = fake.make_customer()["id"]
    await Payments(house.database).link(tenant_id, customer_id, NOON, actor="ann")
    said = {"customer": customer_id, "amount": 100, "currency": "usd", "confirm": "true"}
    method = fake.give_card(customer_id)
    fake.make_payment(**said, payment_method=method, metadata={"kvitto_purpose": "top_up"})
    (paid,) = fake.told("payment_intent.succeeded")
    paid["data"]["object"]["shipping"] = billed_to
    charge = {"id": "ch_1", "object": "charge", "customer": customer_id, "billing_details": billed_to}
    charged = {**paid, "id": fake.new_id("evt"), "type": "charge.succeeded", "data": {"object": charge}}
    for event in (paid, charged):
        await Inbox(house.database, WEBHOOK_SECRET).receive(*fake.signed(event), NOON)


async def filled(house: Any) -> Named:
    token, by = secrets.token_hex(4), {"actor": "ann"}
    tenant = await house.tenancy.create_tenant(f"Lovelace {token} Analytics", at=NOON)
    one = Named(
        replace(house, tenant_id=tenant.id),
        name=tenant.name,
        email=f"ada-{token}@lovelace.example",
        key=f"ada's laptop {token}",
        host=f"{token}.lovelace.example",
        project=f"difference engine {token}",
        network=f"2001:db8:1{token[:3]}:1{token[3:6]}::/64",
    )
    project = await Projects(house.database).create(tenant.id, one.project, NOON, **by)
    terms = KeyTerms(networks=(network_of(one.network),), expires_at=NOON + DAY)
    begun = NOON - 30 * DAY
    key = (await house.tenancy.create_key(tenant.id, one.key, begun, terms=terms, project=project.id)).key
    await house.tenancy.rotate_key(key.id, DAY, NOON)
    await Users(house.database).create(tenant.id, one.email, "owner", NOON, **by)
    owner = Owner(tenant.id, key_id=key.id)
    await Rules(house.database).set_limit(owner, Limit("key", key.id, "concurrent", 3), NOON, **by)
    await Rules(house.database).create_budget(owner, Femto(10), "daily", NOON, hard=True, **by)
    webhooks = Webhooks(house.database, Vault(b"deployment"), lambda _: None)
    added = await webhooks.add(tenant.id, f"https://{one.host}/in", None, NOON, **by)
    await webhooks.test(added.endpoint.id, NOON)
    profile = Party(one.name, one.host, "SE", "", one.email)
    await Agreements(house.database).name(tenant.id, profile, NOON, **by)
    alerts = Alerts(house.database)
    await alerts.set_balance_alert(tenant.id, femto_of("5"), NOON, **by)
    await alerts.look_at_keys(NOON)
    await house.ledger.set_auto_top_up(tenant.id, AutoTopUp(femto_of("1"), femto_of("20")), NOON, **by)
    await paid_by_stripe(house, tenant.id, {"name": one.name, "email": one.email})
    whole = replace(house, tenant_id=tenant.id, key_id=key.id)
    await whole.topped_up("10")
    answers = IdempotencyRecord(tenant.id, bytes(32), bytes(32), whole.request_id(0), NOON)
    await post(house.database, [replace(whole.event(0), answers=answers), whole.event(1)])
    await Rollups(house.database, lag=timedelta(0)).build()
    return replace(one, house=whole)


async def whole_dump(house: Any) -> str:
    """Every column of every table, as text, of all tenants."""
    tables = await sql(
        house,
        "SELECT format('%I.%I', table_schema, table_name) AS name FROM information_schema.tables"
        " WHERE table_type = 'BASE TABLE' AND table_schema IN ('public', 'queue')",
    )
    rows = [
        row[0]
        for table in tables
        for row in await sql(house, f"SELECT to_jsonb(each)::text FROM {table.name} AS each")  # noqa: S608  names of tables
    ]
    assert len(tables) > 30
    return "\n".join(rows)


async def test_an_erased_tenant_is_named_nowhere_in_the_whole_database(
    house: Any, lifecycle: Lifecycle
) -> None:
    one = await filled(house)
    assert len(one.named_in(await whole_dump(house))) == 6
    await lifecycle.suspend(one.tenant_id, f"asked by {one.name}", NOON, actor="ann")
    erased = await lifecycle.erase(one.tenant_id, NOON, actor="ann")
    assert one.named_in(await whole_dump(house)) == []
    assert erased.dropped == {
        "keys": 1,
        "projects": 1,
        "users": 1,
        "profiles": 1,
        "prompt_nonces": 1,
        "webhooks": 1,
        "notices": 2,
        "alerts": 1,
        "top_up_rules": 1,
        "payment_events": 2,
        "idempotency_records": 1,
    }


async def test_after_an_erasure_money_and_proofs_are_as_they_were(house: Any, lifecycle: Lifecycle) -> None:
    one = await filled(house)
    kept = "SELECT * FROM {} WHERE tenant_id = :id ORDER BY 1, 2, 3"
    tables = ("usage_event", "attestation", "ledger_transaction", "ledger_entry", "credit_lot", "balance")
    before = [await sql(house, kept.format(table), id=one.tenant_id) for table in (*tables, "usage_rollup")]
    assert all(before)
    balance = await house.ledger.balance(one.tenant_id)
    heads = [event.hash for event in await Audit(house.database).events(one.tenant_id)]
    await lifecycle.suspend(one.tenant_id, "left", NOON, actor="ann")
    await lifecycle.erase(one.tenant_id, NOON, actor="ann")
    assert before == [
        await sql(house, kept.format(table), id=one.tenant_id) for table in (*tables, "usage_rollup")
    ]
    assert await house.ledger.balance(one.tenant_id) == balance
    assert balance.total < femto_of("11")
    assert await house.ledger.check_integrity() == []
    assert await Audit(house.database).verify() == []
    events = await Audit(house.database).events(one.tenant_id)
    assert [event.hash for event in events][: len(heads)] == heads
    await post(house.database, [one.house.event(2)])  # a request that was settled late
    assert await house.ledger.check_integrity() == []


async def test_no_key_of_an_erased_tenant_works_and_none_asks_for_a_payment(
    house: Any, lifecycle: Lifecycle
) -> None:
    one = await filled(house)
    issued = await house.tenancy.create_key(one.tenant_id, "k", NOON)
    await lifecycle.suspend(one.tenant_id, "left", NOON, actor="ann")
    await lifecycle.erase(one.tenant_id, NOON, actor="ann")
    assert await house.tenancy.find_key(house.tenancy.digest(issued.secret)) is None
    revoked = await sql(
        house, "SELECT count(*) FROM api_key WHERE tenant_id = :id AND revoked_at IS NULL", id=one.tenant_id
    )
    assert revoked[0][0] == 0
    assert one.tenant_id not in {request.tenant_id for request in await house.ledger.request_top_ups(NOON)}
    with pytest.raises(TenancyInvalid, match="is erased"):
        await lifecycle.resume(one.tenant_id, "back", NOON, actor="ann")


async def test_nothing_of_another_tenant_is_erased(house: Any, lifecycle: Lifecycle) -> None:
    one, other = await filled(house), await filled(await house.other_tenant())
    counted = "SELECT count(*) FROM {} WHERE tenant_id = :id"
    tables = ("api_key", "key_secret", "tenant_user", "webhook_endpoint", "notice", "idempotency_record")
    before = [await sql(house, counted.format(table), id=other.tenant_id) for table in tables]
    await lifecycle.suspend(one.tenant_id, "left", NOON, actor="ann")
    await lifecycle.erase(one.tenant_id, NOON, actor="ann")
    assert before == [await sql(house, counted.format(table), id=other.tenant_id) for table in tables]
    assert len(other.named_in(await whole_dump(house))) == 6
    facts = [event.deed.after for event in await Audit(house.database).events(other.tenant_id)]
    assert None not in facts


async def test_an_erasure_can_be_repeated_and_drops_what_has_come_since(
    house: Any, lifecycle: Lifecycle
) -> None:
    one = await filled(house)
    await lifecycle.suspend(one.tenant_id, "left", NOON, actor="ann")
    first = await lifecycle.erase(one.tenant_id, NOON, actor="ann")
    await Users(house.database).create(one.tenant_id, one.email, "owner", NOON, actor="ann")
    again = await lifecycle.erase(one.tenant_id, NOON + DAY, actor="ann")
    assert again.tenant.erased_at == first.tenant.erased_at
    assert again.dropped["users"] == 1
    assert await Audit(house.database).verify(one.tenant_id) == []


async def test_who_is_admitted_or_has_an_altered_log_is_not_erased(house: Any, lifecycle: Lifecycle) -> None:
    with pytest.raises(ErasureRefused, match="suspend it first"):
        await lifecycle.erase(house.tenant_id, NOON, actor="ann")
    await lifecycle.suspend(house.tenant_id, "left", NOON, actor="ann")
    await sql(
        house, "UPDATE audit_event SET actor = 'x' WHERE tenant_id = :id AND position = 1", id=house.tenant_id
    )
    with pytest.raises(ErasureRefused, match="event 1 was altered"):
        await lifecycle.erase(house.tenant_id, NOON, actor="ann")
    with pytest.raises(TenantMissing):
        await lifecycle.erase("ten_nobody", NOON, actor="ann")
    await sql(
        house,
        "UPDATE audit_event SET actor = 'operator' WHERE tenant_id = :id AND position = 1",
        id=house.tenant_id,
    )
