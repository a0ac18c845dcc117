"""Settlement while Postgres breaks: each event is charged once, whatever its transactions came to."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OWNER
from billing.db.transaction import Database
from billing.errors import StoreUnavailable
from billing.settlement.batch import Settlement
from billing.settlement.posting import post
from billing.settlement.repository import insert_events
from tests.billing.conftest import CHARGE, TEN, assert_charged

LOCK = text("SELECT 1 FROM balance WHERE tenant_id = :tenant FOR UPDATE")


async def test_a_deadlock_costs_a_retry_and_no_increment(house: Any):
    """BerriAI/litellm#34887: 40P01 is retried; nothing of it is lost, and nothing counted twice."""
    other = await house.other_tenant()
    tenants = sorted((house, other), key=lambda one: str(one.tenant_id))
    for tenant in tenants:
        await tenant.topped_up("10")
    settlement = Settlement(house.database)
    await settlement.start()
    try:
        async with house.database.transaction(OWNER) as blocker:
            await blocker.execute(text("SET LOCAL deadlock_timeout = '1min'"))  # so that it is not the victim
            await blocker.execute(LOCK, {"tenant": tenants[1].tenant_id})
            settling = asyncio.gather(*(settlement.settle(one.event()) for one in tenants))
            await until_waiting(house.database)
            await blocker.execute(LOCK, {"tenant": tenants[0].tenant_id})
        balances = await settling
    finally:
        await settlement.close()
    assert await deadlocks(house.database) == 1
    assert [(one.balance, one.version) for one in balances] == [(TEN - CHARGE, 2)] * 2
    for tenant in tenants:
        await assert_charged(tenant, 1)


async def until_waiting(database: Database, transactions: int = 1) -> None:
    """Until so many transactions wait for a lock."""
    query = """SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()"""
    async with asyncio.timeout(10):
        while True:
            async with database.transaction(OWNER) as connection:
                if (await connection.execute(text(query))).scalar_one() >= transactions:
                    return


async def test_flushers_with_the_same_requests_in_other_orders_wait_and_never_deadlock(house: Any):
    events = [house.event(number) for number in range(3)]
    posting: list[asyncio.Task[Any]] = []

    async def block_and_fail() -> None:
        async with house.database.transaction(OWNER) as blocker:
            await insert_events(blocker, events[1:2])
            posting.extend(asyncio.create_task(post(house.database, o)) for o in (events, events[::-1]))
            await until_waiting(house.database, 2)
            raise KeyError

    with pytest.raises(KeyError):  # so that both find it free again
        await block_and_fail()
    await asyncio.gather(*posting)
    await assert_charged(house, 3, credit=0)


async def test_flushers_with_the_same_tenants_in_other_orders_wait_and_never_deadlock(house: Any):
    tenants = [house, await house.other_tenant(), await house.other_tenant()]
    tenants.sort(key=lambda one: str(one.tenant_id))
    for tenant in tenants:
        await tenant.topped_up("10")
    orders = [
        [tenant.event(number) for tenant in order] for number, order in enumerate((tenants, tenants[::-1]))
    ]
    async with house.database.transaction(OWNER) as blocker:
        await blocker.execute(LOCK, {"tenant": tenants[1].tenant_id})
        posting = [asyncio.create_task(post(house.database, events)) for events in orders]
        await until_waiting(house.database, 2)
    await asyncio.gather(*posting)
    for tenant in tenants:
        await assert_charged(tenant, 2)


async def deadlocks(database: Database) -> int:
    """Those that the server has broken in this database: a backend tells when it has nothing else to do."""
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    async with asyncio.timeout(10):
        while True:
            async with database.transaction(OWNER) as connection:
                if found := int((await connection.execute(text(query))).scalar_one()):
                    return found


async def test_what_a_serialization_failure_undid_is_settled_by_the_next_try(house: Any):
    """40001: the first two commits fail, as those of a stricter isolation level do."""
    await house.topped_up("10")
    async with house.database.transaction(OWNER) as connection:
        for statement in FAIL_TWICE:
            await connection.execute(text(statement))
    settlement = Settlement(house.database, retry_delays_ms=(1, 1))
    await settlement.start()
    try:
        await settlement.settle(house.event())
    finally:
        await settlement.close()
        async with house.database.transaction(OWNER) as connection:
            tries = (await connection.execute(text("SELECT nextval('tries')"))).scalar_one()
            for statement in FAIL_NO_MORE:
                await connection.execute(text(statement))
    assert tries == 4
    await assert_charged(house, 1)


FAIL_TWICE = (
    "CREATE SEQUENCE tries",  # counts on when its transaction is undone
    """CREATE FUNCTION fail_twice() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        IF nextval('tries') < 3 THEN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END IF; RETURN NULL;
    END $$""",
    """CREATE CONSTRAINT TRIGGER fail_twice AFTER INSERT ON ledger_transaction
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_twice()""",
)
FAIL_NO_MORE = (
    "DROP TRIGGER fail_twice ON ledger_transaction",
    "DROP FUNCTION fail_twice",
    "DROP SEQUENCE tries",
)


async def test_a_request_whose_settlement_failed_is_settled_when_it_is_asked_again(house: Any):
    """openmeterio/openmeter#5118: its id was taken in the transaction that failed, and is free again."""
    await house.topped_up("10")
    async with house.database.transaction(OWNER) as connection:
        for statement in FAIL_TWICE:
            await connection.execute(text(statement))
    settlement = Settlement(house.database, retry_delays_ms=())
    await settlement.start()
    try:
        with pytest.raises(StoreUnavailable):
            await settlement.settle(house.event())
        assert await settlement.settled([house.request_id(0)]) == set()
    finally:
        async with house.database.transaction(OWNER) as connection:
            for statement in FAIL_NO_MORE:
                await connection.execute(text(statement))
    await settlement.settle(house.event())
    await settlement.close()
    await assert_charged(house, 1)


async def test_a_pool_without_a_free_connection_is_waited_for_and_told_as_unavailable(
    database_url: str, house: Any
):
    """BerriAI/litellm#34479: who cannot get a connection learns that, and may ask again."""
    await house.topped_up("10")
    narrow = Database(database_url, pool_size=1, pool_timeout_s=0)
    settlement = Settlement(narrow, retry_delays_ms=())
    await settlement.start()
    async with narrow.transaction() as connection:
        await connection.execute(text("SELECT 1"))
        with pytest.raises(StoreUnavailable):
            await settlement.settle(house.event())
    await settlement.settle(house.event())
    await settlement.close()
    await narrow.close()
    await assert_charged(house, 1)


async def test_a_connection_lost_in_mid_transaction_costs_a_retry_and_not_a_second_charge(
    house: Any, settlement: Settlement
):
    await house.topped_up("10")
    async with house.database.transaction(OWNER) as blocker:
        await blocker.execute(
            text("SELECT 1 FROM balance WHERE tenant_id = :tenant FOR UPDATE"), {"tenant": house.tenant_id}
        )
        settling = asyncio.create_task(settlement.settle(house.event()))
        assert await kill_who_waits(house.database)
    assert (await settling).balance == TEN - CHARGE
    await assert_charged(house, 1)


async def kill_who_waits(database: Database) -> bool:
    """Kill the backend that waits for a lock as soon as there is one."""
    query = text("""
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database() AND pid <> pg_backend_pid()
    """)
    async with asyncio.timeout(10):
        while True:
            async with database.transaction(OWNER) as connection:
                if (await connection.execute(query)).first() is not None:
                    return True


async def test_a_restarted_server_costs_nobody_anything(house: Any, settlement: Settlement):
    await house.topped_up("10")
    await settlement.settle(house.event(0))
    async with house.database.transaction(OWNER) as connection:
        await connection.execute(
            text("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()""")
        )
    await settlement.settle(house.event(1))
    await assert_charged(house, 2)


async def test_what_arrives_while_one_transaction_is_on_its_way_shares_the_next(house: Any):
    await house.topped_up("10")
    settlement = Settlement(house.database, batch_max=3)
    await settlement.start()
    async with house.database.transaction(OWNER) as blocker:
        await blocker.execute(LOCK, {"tenant": house.tenant_id})
        settling = [asyncio.create_task(settlement.settle(house.event(0)))]
        await until_waiting(house.database)
        for number in (1, 2):
            settling.append(asyncio.create_task(settlement.settle(house.event(number))))
            await until_waiting(house.database)
    versions = [(await balance).version for balance in settling]
    await settlement.close()
    assert versions == [2, 3, 3]


async def test_as_many_as_fill_a_transaction_do_not_wait_for_another(house: Any):
    await house.topped_up("10")
    settlement = Settlement(house.database, batch_max=2)
    await settlement.start()
    async with house.database.transaction(OWNER) as blocker:
        await blocker.execute(LOCK, {"tenant": house.tenant_id})
        settling = [asyncio.create_task(settlement.settle(house.event(0)))]
        await until_waiting(house.database)
        settling += [asyncio.create_task(settlement.settle(house.event(number))) for number in (1, 2)]
        await until_waiting(house.database, 2)
    await asyncio.gather(*settling)
    await settlement.close()
    await assert_charged(house, 3)
