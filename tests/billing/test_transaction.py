import asyncio

import pytest
from sqlalchemy import exc, text

from billing.db.access import OWNER
from billing.db.transaction import Database
from billing.errors import StoreRefused, StoreUnavailable


@pytest.mark.parametrize("address", ["?host=/nowhere", "?host=127.0.0.1&port=1"])
async def test_a_server_that_is_not_there_is_unavailable(address: str):
    nowhere = Database(f"postgresql+asyncpg://kvitto:x@/kvitto{address}")
    with pytest.raises(StoreUnavailable):
        async with nowhere.transaction():
            pass
    await nowhere.close()


async def test_a_database_or_password_that_is_wrong_is_a_fault_of_ours(database_url: str):
    wrong = Database(database_url.replace("/kvitto_", "/no_kvitto_"))
    with pytest.raises(Exception, match="does not exist"):
        async with wrong.transaction():
            pass
    await wrong.close()


async def test_a_pool_without_a_free_connection_is_unavailable(database_url: str):
    narrow = Database(database_url, pool_size=1, pool_timeout_s=0)
    async with narrow.transaction() as connection:
        await connection.execute(text("SELECT 1"))
        with pytest.raises(StoreUnavailable):
            async with narrow.transaction():
                pass
    await narrow.close()


@pytest.mark.parametrize("sqlstate", ["40P01", "40001", "57014", "57P01", "53300", "55P03"])
async def test_what_may_succeed_again_is_unavailable(database: Database, sqlstate: str):
    with pytest.raises(StoreUnavailable):
        async with database.transaction() as connection:
            await connection.execute(
                text(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{sqlstate}'; END $$")
            )


async def test_two_transactions_in_each_others_way_are_parted(database: Database):
    both_hold = asyncio.Barrier(2)

    async def take(first: int, second: int) -> None:
        async with database.transaction() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": first})
            await both_hold.wait()
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": second})

    answers = await asyncio.gather(take(1, 2), take(2, 1), return_exceptions=True)
    assert [type(answer) for answer in answers if answer is not None] == [StoreUnavailable]


async def test_a_broken_constraint_is_refused_by_its_name_and_nothing_stays(database: Database):
    insert = text("INSERT INTO tenant VALUES (:id, 'twice', 'USD', now())")

    async def insert_both() -> None:
        async with database.transaction() as connection:
            await connection.execute(insert, {"id": "ten_1"})
            await connection.execute(insert, {"id": "ten_2"})

    with pytest.raises(StoreRefused) as refused:
        await insert_both()
    assert refused.value.constraint == "uq_tenant_name"
    async with database.transaction() as connection:
        assert not (await connection.execute(text("SELECT 1 FROM tenant WHERE name = 'twice'"))).all()


async def test_bad_sql_is_not_dressed_up(database: Database):
    with pytest.raises(exc.DBAPIError):
        async with database.transaction() as connection:
            await connection.execute(text("SELECT nothing FROM nowhere"))


async def test_an_exception_of_the_block_undoes_it(database: Database):
    async def insert_and_fail() -> None:
        async with database.transaction() as connection:
            await connection.execute(text("INSERT INTO tenant VALUES ('ten_3', 'undone', 'USD', now())"))
            raise KeyError

    with pytest.raises(KeyError):
        await insert_and_fail()
    async with database.transaction() as connection:
        assert not (await connection.execute(text("SELECT 1 FROM tenant WHERE name = 'undone'"))).all()


async def test_a_connection_that_the_server_closed_is_made_anew(database_url: str):
    ours, theirs = Database(database_url, pool_size=1), Database(database_url, pool_size=1)
    async with ours.transaction(OWNER) as connection:
        backend = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
    async with theirs.transaction(OWNER) as connection:
        await connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": backend})
    async with ours.transaction(OWNER) as connection:
        assert (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one() != backend
    await ours.close()
    await theirs.close()


async def test_who_is_cancelled_in_the_middle_leaves_nothing_and_no_open_transaction(database_url: str):
    narrow = Database(database_url, pool_size=1)
    inserted = asyncio.Event()

    async def insert_and_linger() -> None:
        async with narrow.transaction() as connection:
            await connection.execute(text("INSERT INTO tenant VALUES ('ten_4', 'cut short', 'USD', now())"))
            inserted.set()
            await connection.execute(text("SELECT pg_sleep(20)"))

    lingering = asyncio.create_task(insert_and_linger())
    await inserted.wait()
    lingering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lingering
    async with narrow.transaction() as connection:
        assert not (await connection.execute(text("SELECT 1 FROM tenant WHERE name = 'cut short'"))).all()
    await narrow.close()


async def test_a_block_that_goes_on_after_a_failed_statement_does_not_pass_for_committed(database: Database):
    async def fail_and_go_on() -> None:
        async with database.transaction() as connection:
            with pytest.raises(exc.DBAPIError):
                await connection.execute(text("SELECT nothing FROM nowhere"))

    with pytest.raises(AssertionError):
        await fail_and_go_on()
