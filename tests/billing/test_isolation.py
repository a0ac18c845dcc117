"""Who sees and writes what in Postgres itself, whatever the code above it says."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from sqlalchemy import exc, text

from billing.db import access
from billing.db.access import OPERATOR, OPERATOR_READ, OWNER, SETTLER, Access, of_tenant, view_as
from billing.db.migrate import upgrade
from billing.db.transaction import Database
from billing.errors import RolesMissing
from billing.interval import Interval
from billing.invoicing.agreements.given_coupon import GivenCoupon
from billing.invoicing.agreements.service import Agreements
from billing.invoicing.party import Party
from billing.invoicing.terms import Coupon, Terms
from billing.invoicing.top_ups import PaidIn, top_up_document
from billing.money import Femto
from billing.payments.inbox import Inbox
from billing.payments.order import TopUpOrder
from billing.payments.outbox import put
from billing.payments.service import Payments
from billing.receipts.log.service import ReceiptLog
from billing.reports.export.files.service import ExportFiles
from billing.reports.export.order import ExportOrder
from billing.reports.rollup import Rollups
from billing.settlement.batch import Settlement
from billing.settlement.posting import post
from billing.settlement.quarantine import Quarantined
from billing.tenancy.limits import Limit
from billing.tenancy.rules.rule import Owner
from billing.tenancy.rules.service import Rules
from billing.tenancy.users.service import Users
from tests.billing.conftest import AT_ONCE, NOON
from tests.billing.payments.fake_stripe import WEBHOOK_SECRET, FakeStripe
from tests.deployment import signer

# Tables that belong to no tenant, each with its reason.
GLOBAL = {
    "alembic_version": "which migrations have run",
    "model_alias": "names of models, the operator's",
    "price_plan": "names of plans",
    "price_window": "of a price row, and seen with it",
    "price_tier": "of a price row, and seen with it",
    "rollup_watermark": "one instant, for the usage of all",
    "worker_certificate": "of workers' keys, for everybody who verifies",
    "tree_node": "hashes, which prove and tell nothing",
    "tree_head": "what the deployment has signed, for everybody",
    "log_state": "one row, for the receipts of all",
    "promise_watermark": "likewise",
    **{
        f"queue.procrastinate_{table}": "work to do: ids, no contents, and read by no tenant"
        for table in ("jobs", "events", "workers", "periodic_defers")
    },
}
# Facts: appended by the settler, changed and deleted by nobody.
APPENDED = {
    *("usage_event", "attestation", "usage_quarantine", "ledger_transaction", "ledger_entry"),
    # Of an invoice, how it is settled may be written again: those columns alone are granted.
    *("invoice", "invoice_line", "invoice_usage", "invoice_payment"),
    "receipt_leaf",
}
# Projections of facts, which the settler may write again.
PROJECTED = {"balance", "credit_lot", "usage_rollup", "number_series"}
# What a payment provider said and is to be told: states, which the settler alone writes.
PAID = {"payment", "payment_customer", "payment_inbox", "payment_outbox"}
# What tenants manage themselves, as their management keys do; the audit log is appended by who changes them.
MANAGED = {"project", "api_key", "key_secret", "tenant_user", "usage_limit", "budget", "usage_export"}
LOGGED = {"audit_event"}
# What operators agree with a tenant.
AGREED = {"billing_profile", "billing_terms", "coupon"}

# What tenants are told, in the transaction of what it is about, and where they want it.
TOLD = {"notice", "balance_alert", "webhook_endpoint", "webhook_secret", "webhook_delivery"}

# A row of the tables that a top-up's document leaves empty, behind its number.
MORE = {
    "invoice_usage": "0, tenant_id, 'late', 'm', 'r', 's', 'standard', 'output', 1, 1, 1, 1",
    "invoice_payment": "'r', tenant_id, 1, 'transfer', now(), 'test', gen_random_uuid()",
}

TABLES = """
    SELECT c.oid::regclass::text AS name, relrowsecurity AS secured, relforcerowsecurity AS forced,
        (SELECT count(*) FROM pg_policy WHERE polrelid = c.oid) AS policies, relispartition AS part,
        EXISTS (SELECT 1 FROM information_schema.columns
            WHERE table_schema = nspname AND table_name = relname AND column_name = 'tenant_id') AS owned
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
"""
WRITES = """
    SELECT grantee, table_name, privilege_type FROM information_schema.role_table_grants
    WHERE grantee LIKE 'kvitto\\_%' AND privilege_type <> 'SELECT'
"""


@dataclass(frozen=True)
class Ask:
    """Statements as somebody."""

    database: Database

    async def __call__(self, who: Access, statement: str, **values: object) -> list[Any]:
        async with self.database.transaction(who) as connection:
            found = await connection.execute(text(statement), values)
            return list(found.all()) if found.returns_rows else []

    async def refused(self, who: Access, statement: str, **values: object) -> str:
        with pytest.raises(exc.DBAPIError) as refusal:
            await self(who, statement, **values)
        return str(refusal.value.orig)


@pytest.fixture
def ask(database: Database) -> Ask:
    return Ask(database)


@pytest.fixture
async def two(house: Any) -> tuple[Any, Any]:
    """Two tenants with credit and a settled request each, a user, a limit and a budget."""
    other = await house.other_tenant()
    for one in (house, other):
        await one.topped_up("1")
        await post(one.database, [one.event()])
        impossible = Quarantined(one.request_id(1), one.tenant_id, "impossible", None)
        await Settlement(one.database).quarantine(impossible)
        await managed(one)
        await invoiced(one)
        await paid_for(one)
    await Rollups(house.database, lag=timedelta(0)).build()
    await ReceiptLog(house.database, signer(), AT_ONCE).seal(NOON)
    return house, other


async def invoiced(house: Any) -> None:
    """A profile, terms, a coupon, and the document of a top-up."""
    tenant_id, agreements = house.tenant_id, Agreements(house.database)
    await agreements.name(tenant_id, Party("Acme"), NOON, actor="test")
    await agreements.agree(tenant_id, NOON.date(), Terms(tax_rate="24"), NOON, actor="test")
    given = GivenCoupon(Coupon("C", cents=1), 1, NOON.date(), NOON)
    await agreements.give_coupon(tenant_id, given, actor="test")
    async with house.database.transaction(SETTLER) as connection:
        await top_up_document(connection, signer(), PaidIn(tenant_id, 1, "r", NOON, "test"))
        for table, more in MORE.items():
            rows = f"INSERT INTO {table} SELECT number, {more} FROM invoice WHERE tenant_id = :t"  # noqa: S608  literals
            await connection.execute(text(rows), {"t": tenant_id})


async def paid_for(house: Any) -> None:
    """A customer of Stripe's, a payment that it told us of, and an errand for it."""
    fake = FakeStripe(NOON)
    customer_id = fake.make_customer()["id"]
    await Payments(house.database).link(house.tenant_id, customer_id, NOON, actor="test")
    said = {"customer": customer_id, "amount": 100, "currency": "usd", "confirm": "true"}
    method = fake.give_card(customer_id)
    fake.make_payment(**said, payment_method=method, metadata={"kvitto_purpose": "top_up"})
    for event in fake.events:
        await Inbox(house.database, WEBHOOK_SECRET).receive(*fake.signed(event), NOON)
    async with house.database.transaction(SETTLER) as connection:
        await put(connection, house.tenant_id, "k", TopUpOrder(100, "USD"), NOON)


async def managed(house: Any) -> None:
    owner, rules = Owner(house.tenant_id), Rules(house.database)
    await Users(house.database).create(house.tenant_id, "ann@example.com", "owner", NOON, actor="test")
    limit = Limit("tenant", house.tenant_id, "concurrent", 1)
    await rules.set_limit(owner, limit, NOON, actor="test")
    await rules.create_budget(owner, Femto(1), "daily", NOON, hard=True, actor="test")
    order = ExportOrder("requests", "csv", Interval(NOON, NOON), tenant_id=house.tenant_id)
    await ExportFiles(house.database, None).request(order, "test", NOON)


async def test_every_table_has_its_tenant_and_forced_row_security(ask: Ask) -> None:
    tables = {row.name: row for row in await ask(OWNER, TABLES)}
    assert GLOBAL.keys() <= tables.keys()
    for name, table in tables.items():
        if name not in GLOBAL:
            assert table.owned or name == "tenant", f"{name} lacks its tenant"
            assert table.secured, f"{name} has no row security"
            # A partition has no policy: its owner alone reads it, to move rows; others read its parent.
            assert table.part or table.forced, f"row security of {name} is not forced"
            assert table.policies == (0 if table.part else 3 if name == "receipt_leaf" else 2), name


async def test_what_is_granted_on_facts_is_to_append_them(ask: Ask) -> None:
    granted = {tuple(row) for row in await ask(OWNER, WRITES)}
    on_facts = {(who, what) for who, table, what in granted if table in APPENDED}
    assert on_facts == {(access.SETTLER_ROLE, "INSERT")}
    assert {(who, what) for who, table, what in granted if table in PROJECTED | PAID} == {
        (access.SETTLER_ROLE, "INSERT"),
        (access.SETTLER_ROLE, "UPDATE"),
    }
    assert {(who, what) for who, table, what in granted if table in LOGGED} == {
        (access.OPERATOR_ROLE, "INSERT"),
        (access.SETTLER_ROLE, "INSERT"),
        (access.TENANT_ROLE, "INSERT"),
    }
    assert {(who, what) for who, table, what in granted if table == "notice"} == {
        (access.OPERATOR_ROLE, "DELETE"),  # of a tenant that is erased
        (access.OPERATOR_ROLE, "INSERT"),
        (access.SETTLER_ROLE, "INSERT"),
        (access.TENANT_ROLE, "INSERT"),
    }
    of_tenants = {table for who, table, _ in granted if who == access.TENANT_ROLE}
    assert of_tenants == MANAGED | LOGGED | TOLD | {"audit_head"}
    assert not {who for who, _, _ in granted} & {access.OPERATOR_READ_ROLE, access.VIEW_AS_ROLE}
    assert {what for _, _, what in granted} <= {"INSERT", "UPDATE", "DELETE"}
    # Which request answered a key means nothing after a day; what the others were is in the audit log, and
    # notices go when their tenant is erased.
    deleted = {table for _, table, what in granted if what == "DELETE"}
    # A profile is personal.
    logged = {
        *("model_alias", "tenant_user", "usage_limit", "budget", "webhook_endpoint", "balance_alert"),
        *("key_secret", "billing_profile"),
    }
    assert deleted == {*logged, "idempotency_record", "notice"}


@pytest.mark.parametrize(
    "table", sorted(APPENDED | PROJECTED | PAID | MANAGED | LOGGED | AGREED | {"audit_head"})
)
async def test_a_tenant_sees_its_own_rows_alone(ask: Ask, two: tuple[Any, Any], table: str) -> None:
    house, other = two
    everything = f"SELECT DISTINCT tenant_id FROM {table}"  # noqa: S608  a literal of this test
    for who in (of_tenant, view_as):
        assert [row.tenant_id for row in await ask(who(house.tenant_id), everything)] == [house.tenant_id]
        assert await ask(who("ten_nobody"), everything) == []
        assert await ask(who("' OR 'a' = 'a"), everything) == []
    for see_all in (SETTLER, OPERATOR, OPERATOR_READ):
        assert {row.tenant_id for row in await ask(see_all, everything)} >= {house.tenant_id, other.tenant_id}


async def test_a_tenant_is_seen_by_itself_alone(ask: Ask, two: tuple[Any, Any]) -> None:
    house, _ = two
    assert [row.id for row in await ask(of_tenant(house.tenant_id), "SELECT id FROM tenant")] == [
        house.tenant_id
    ]


async def test_a_role_of_one_tenant_without_a_tenant_sees_nothing(ask: Ask, two: tuple[Any, Any]) -> None:
    nobody = Access(access.TENANT_ROLE)
    assert await ask(nobody, "SELECT 1 FROM usage_event") == []


@pytest.mark.parametrize("table", sorted(APPENDED | PROJECTED | PAID))
async def test_a_tenant_writes_no_events_and_no_ledger(ask: Ask, house: Any, table: str) -> None:
    for statement in (
        f"INSERT INTO {table} DEFAULT VALUES",
        f"UPDATE {table} SET tenant_id = tenant_id",  # noqa: S608  literals of this test
        f"DELETE FROM {table}",  # noqa: S608  likewise
        f"TRUNCATE {table} CASCADE",
    ):
        for who in (of_tenant(house.tenant_id), OPERATOR):
            assert "permission denied" in await ask.refused(who, statement)


async def test_a_tenant_cannot_write_rows_of_another(ask: Ask, two: tuple[Any, Any]) -> None:
    house, other = two
    theirs = "INSERT INTO project (id, tenant_id, name, created_at) VALUES ('prj_x', :tenant, 'x', now())"
    said = await ask.refused(of_tenant(house.tenant_id), theirs, tenant=other.tenant_id)
    assert "row-level security" in said
    revoke = "UPDATE api_key SET revoked_at = now() WHERE id = :key RETURNING id"
    assert await ask(of_tenant(house.tenant_id), revoke, key=other.key_id) == []
    assert await ask(of_tenant(other.tenant_id), revoke, key=other.key_id) != []


async def test_who_views_as_a_tenant_writes_nothing(ask: Ask, house: Any) -> None:
    revoke = "UPDATE api_key SET revoked_at = now()"
    assert "read-only transaction" in await ask.refused(view_as(house.tenant_id), revoke)
    unlocked = Access(access.VIEW_AS_ROLE, house.tenant_id)
    assert "permission denied" in await ask.refused(unlocked, revoke)
    assert "read-only transaction" in await ask.refused(OPERATOR_READ, revoke)


@pytest.mark.parametrize("table", sorted(APPENDED | LOGGED))
async def test_nobody_changes_or_deletes_a_fact(ask: Ask, house: Any, table: str) -> None:
    for statement in (f"UPDATE {table} SET tenant_id = tenant_id", f"DELETE FROM {table}"):  # noqa: S608  likewise
        for who in (SETTLER, OPERATOR, of_tenant(house.tenant_id)):
            assert "permission denied" in await ask.refused(who, statement)


async def test_a_sealed_receipt_can_be_erased_and_not_replaced(ask: Ask, two: tuple[Any, Any]) -> None:
    house, _ = two
    of_house = "WHERE tenant_id = :tenant RETURNING 1"
    replace = f"UPDATE receipt_leaf SET nonce = sha256(''), receipt = '{{}}' {of_house}"  # noqa: S608  literals
    assert "row-level security" in await ask.refused(OPERATOR, replace, tenant=house.tenant_id)
    erase = f"UPDATE receipt_leaf SET nonce = NULL, receipt = NULL {of_house}"  # noqa: S608  likewise
    for who in (SETTLER, of_tenant(house.tenant_id)):
        assert "permission denied" in await ask.refused(who, erase, tenant=house.tenant_id)
    assert await ask(OPERATOR, erase, tenant=house.tenant_id) == [(1,)]


async def test_what_stripe_said_can_be_blanked_and_not_rewritten(ask: Ask, two: tuple[Any, Any]) -> None:
    house, _ = two
    blank = "UPDATE payment_inbox SET {} WHERE tenant_id = :tenant RETURNING 1"
    for who in (of_tenant(house.tenant_id), OPERATOR_READ):
        await ask.refused(who, blank.format("body = ''"), tenant=house.tenant_id)
    rewrite = blank.format("outcome = 'ignored', applied_at = NULL")
    assert "permission denied" in await ask.refused(OPERATOR, rewrite, tenant=house.tenant_id)
    assert await ask(OPERATOR, blank.format("body = ''"), tenant=house.tenant_id)


async def test_a_tenant_logs_what_it_does_in_its_own_chain_alone(ask: Ask, two: tuple[Any, Any]) -> None:
    house, other = two
    log = """
        INSERT INTO audit_event (tenant_id, position, at, actor, action, object, hash)
        VALUES (:tenant, 99, now(), 'me', 'key.set', 'key_x', sha256(''))
    """
    said = await ask.refused(of_tenant(house.tenant_id), log, tenant=other.tenant_id)
    assert "row-level security" in said
    move = "UPDATE audit_head SET position = 0 WHERE tenant_id = :tenant RETURNING tenant_id"
    assert await ask(of_tenant(house.tenant_id), move, tenant=other.tenant_id) == []


async def test_a_role_lasts_no_longer_than_its_transaction(database_url: str, house: Any) -> None:
    database = Database(database_url, pool_size=1)
    ask, who = Ask(database), "SELECT current_user, coalesce(current_setting('kvitto.tenant_id', true), '')"
    try:
        login = (await ask(OWNER, who))[0]
        assert list((await ask(of_tenant(house.tenant_id), who))[0]) == [access.TENANT_ROLE, house.tenant_id]
        assert await ask(OWNER, who) == [login]
        assert await ask(SETTLER, who) == [(access.SETTLER_ROLE, "")]
        with pytest.raises(exc.DBAPIError):
            await ask(of_tenant(house.tenant_id), "SELECT 1 FROM nowhere")
        assert await ask(OWNER, who) == [login]
    finally:
        await database.close()


@pytest.fixture
def bare_login(postgres_server: Any) -> Iterator[str]:
    """URL of a database of an operator's own, whose owner may not make roles."""
    name = f"kvitto_{secrets.token_hex(6)}"
    postgres_server.execute(
        f"CREATE ROLE {name} LOGIN PASSWORD 'secret'", f"CREATE DATABASE {name} OWNER {name}"
    )
    yield postgres_server.server.url("secret", name, name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)", f"DROP ROLE {name}")


@pytest.fixture
async def bare_ask(bare_login: str) -> AsyncIterator[Ask]:
    database = Database(bare_login, pool_size=1)
    yield Ask(database)
    await database.close()


async def test_who_may_not_make_roles_is_told_what_to_run(
    postgres_server: Any, bare_login: str, bare_ask: Ask
) -> None:
    with pytest.raises(RolesMissing) as missing:
        await asyncio.to_thread(upgrade, bare_login)
    postgres_server.execute(missing.value.sql)
    await asyncio.to_thread(upgrade, bare_login)

    tenants = "SELECT id FROM tenant"
    await bare_ask(OPERATOR, "INSERT INTO tenant VALUES ('ten_1', 'one', 'USD', now())")
    assert await bare_ask(OWNER, tenants) == [], "the owner passes by no accident"
    assert await bare_ask(OPERATOR_READ, tenants) == [("ten_1",)]
    assert await bare_ask(of_tenant("ten_1"), tenants) == [("ten_1",)]


async def test_the_embedded_account_acts_as_every_role_and_inherits_none(postgres_server: Any) -> None:
    url = postgres_server.server.url(postgres_server.passwords.role).replace("+asyncpg", "")
    connection = await asyncpg.connect(url)
    try:
        for role in access.ROLES:
            assert await connection.fetchval("SELECT pg_has_role($1, 'SET')", role)
            assert not await connection.fetchval("SELECT pg_has_role($1, 'USAGE')", role)
    finally:
        await connection.close()
