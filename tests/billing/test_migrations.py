import asyncio
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from admin.stack.postgres import ROLE
from billing.db.bulk import Rows
from billing.db.migrate import configuration, upgrade
from billing.db.tables import metadata
from billing.db.transaction import Database
from billing.ledger import repository as ledger
from billing.receipts import repository as receipts
from billing.receipts.log import repository as log
from billing.reports.rollup import Rollups
from billing.settlement import repository as settlement

ROOT = Path(__file__).parents[2]
REVISIONS = list((ROOT / "migrations" / "versions").glob("[0-9]*.py"))
CATALOG = {
    "columns": """
        SELECT table_name, column_name, data_type, numeric_precision, numeric_scale, is_nullable,
            column_default
        FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND conparentid = 0
            AND conname NOT LIKE 'alembic_version%'""",
    "indexes": """
        SELECT indexname, indexdef FROM pg_indexes
        WHERE schemaname = 'public' AND tablename <> 'alembic_version'""",
}

TYPES = """
    SELECT typname, attname, format_type(atttypid, atttypmod)
    FROM pg_type JOIN pg_class ON pg_class.oid = typrelid JOIN pg_attribute ON attrelid = typrelid
    WHERE relkind = 'c' AND typnamespace = 'public'::regnamespace ORDER BY typname, attnum
"""
SEEING_ALL = "SET LOCAL ROLE kvitto_operator_read"
OLD_ROWS = (
    "INSERT INTO tenant VALUES ('t', 't', 'USD', now())",
    "INSERT INTO api_key VALUES ('k', 't', 'k', 'kv', sha256(''), now())",
    "INSERT INTO price_row VALUES ('r', 'm', 'USD', now(), 'admitted', 's', 1, 1, 1, NULL, now(), 'test')",
    """INSERT INTO usage_event VALUES (
        gen_random_uuid(), 't', 'k', 'm', 'completed', 'chat', now(), now(),
        0, 0, 0, 1, 1, 0, 2, 'USD', 'r', 's')
    """,
    """INSERT INTO attestation
        SELECT request_id, 0, 't', '{"payload": {"attempt": 3, "worker": "p1"}}' FROM usage_event""",
)


@pytest.fixture
def empty_databases(postgres_server: Any) -> Iterator[tuple[str, str]]:
    """URLs of two, for the account that migrates in production: row security holds it too."""
    names = [f"kvitto_{secrets.token_hex(6)}" for _ in range(2)]
    postgres_server.execute(*(f"CREATE DATABASE {name} OWNER {ROLE}" for name in names))
    yield postgres_server.owner_url(names[0]), postgres_server.owner_url(names[1])
    postgres_server.execute(*(f"DROP DATABASE {name} WITH (FORCE)" for name in names))


async def catalog(url: str, *, create: bool = False) -> dict[str, set[tuple[Any, ...]]]:
    """Columns, constraints and indexes of a database, after making the tables of the metadata if asked."""
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        if create:
            await connection.run_sync(metadata.create_all)
        found = {
            name: {tuple(row) for row in await connection.execute(text(sql))} for name, sql in CATALOG.items()
        }
    await engine.dispose()
    return found


async def test_migrations_from_empty_make_exactly_the_tables_and_step_down(empty_databases: tuple[str, str]):
    migrated, created = empty_databases
    await asyncio.to_thread(upgrade, migrated)
    have, want = await catalog(migrated), await catalog(created, create=True)
    assert want["constraints"]
    for kind in CATALOG:
        assert have[kind] == want[kind], f"migrations and tables.py differ in {kind}"
    await asyncio.to_thread(command.check, configuration(migrated))
    for _ in REVISIONS:
        await asyncio.to_thread(command.downgrade, configuration(migrated), "-1")
        await asyncio.to_thread(command.upgrade, configuration(migrated), "+1")
        await asyncio.to_thread(command.downgrade, configuration(migrated), "-1")
    assert not any((await catalog(migrated)).values())


async def test_attestations_kept_by_position_are_named_by_their_call(empty_databases: tuple[str, str]):
    url, _ = empty_databases
    await asyncio.to_thread(command.upgrade, configuration(url), "0001")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        for statement in OLD_ROWS:
            await connection.exec_driver_sql(statement)
    await asyncio.to_thread(upgrade, url)
    async with engine.begin() as connection:
        await connection.execute(text(SEEING_ALL))
        rows = await connection.execute(text("SELECT attempt, kind, worker, tenant_id FROM attestation"))
        assert [tuple(row) for row in rows] == [(3, "prefill", "p1", "t")]
        events = await connection.execute(text("SELECT tenant_id, output FROM usage_event"))
        assert [tuple(row) for row in events] == [("t", 1)]
    await asyncio.to_thread(command.downgrade, configuration(url), "0001")
    async with engine.begin() as connection:
        rows = await connection.execute(text("SELECT position, tenant_id FROM attestation"))
        assert [tuple(row) for row in rows] == [(0, "t")]
    await engine.dispose()


async def test_attempts_go_with_their_event_to_its_month_and_back(empty_databases: tuple[str, str]):
    url, _ = empty_databases
    await asyncio.to_thread(command.upgrade, configuration(url), "0004")
    calls = [(0, "t", "prefill", "p1", 0, 1), (1, "t", "decode", "d1", 1, 1)]
    kept = text("SELECT attempt, tenant_id, stage, worker, output_from, output_to FROM usage_attempt")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        for statement in OLD_ROWS[:4]:
            await connection.exec_driver_sql(statement)
        for call in calls[::-1]:
            insert = f"INSERT INTO usage_attempt SELECT request_id, {str(call)[1:-1]} FROM usage_event"  # noqa: S608  literals of this test
            await connection.exec_driver_sql(insert)
    await asyncio.to_thread(upgrade, url)
    async with engine.begin() as connection:
        await connection.execute(text(SEEING_ALL))
        (attempts,) = (await connection.execute(text("SELECT attempts FROM usage_event"))).scalars()
        assert attempts == [[0, "prefill", "p1", 0, 1], [1, "decode", "d1", 1, 1]]
    await asyncio.to_thread(command.downgrade, configuration(url), "0004")
    async with engine.begin() as connection:
        assert sorted(map(tuple, await connection.execute(kept))) == calls
    await engine.dispose()


async def test_movements_of_old_get_the_words_that_are_true_of_them(empty_databases: tuple[str, str]):
    url, _ = empty_databases
    await asyncio.to_thread(command.upgrade, configuration(url), "0004")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        for statement in (
            OLD_ROWS[0],
            "INSERT INTO ledger_transaction VALUES (gen_random_uuid(), 't', 'expiry', now())",
            "INSERT INTO ledger_transaction VALUES (gen_random_uuid(), 't', 'credit', now(), 'ann', '')",
            "INSERT INTO ledger_transaction VALUES (gen_random_uuid(), 't', 'charge', now())",
        ):
            await connection.exec_driver_sql(statement)
    await asyncio.to_thread(upgrade, url)
    async with engine.begin() as connection:
        await connection.execute(text(SEEING_ALL))
        rows = await connection.execute(text("SELECT kind, actor, reason FROM ledger_transaction ORDER BY 1"))
        assert [tuple(row) for row in rows] == [
            ("charge", None, None),
            ("credit", "ann", "not recorded"),
            ("expiry", "system", "expired"),
        ]
    await engine.dispose()


async def test_keys_of_old_keep_their_secret_their_rights_and_get_a_project(empty_databases: tuple[str, str]):
    url, _ = empty_databases
    await asyncio.to_thread(command.upgrade, configuration(url), "0004")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        for statement in OLD_ROWS[:2]:
            await connection.exec_driver_sql(statement)
    await asyncio.to_thread(upgrade, url)
    async with engine.begin() as connection:
        await connection.execute(text(SEEING_ALL))
        moved = """
            SELECT p.name, k.scopes, k.traffic_classes, s.prefix, s.ends_at, s.digest = sha256('')
            FROM api_key k JOIN project p ON p.id = k.project_id JOIN key_secret s ON s.key_id = k.id"""
        rows = [tuple(row) for row in await connection.execute(text(moved))]
    both = ["agent", "chat"]
    assert rows == [("default", ["inference", "usage_read"], both, "kv", None, True)]
    await asyncio.to_thread(command.downgrade, configuration(url), "0004")
    async with engine.begin() as connection:
        kept = await connection.execute(text("SELECT prefix, digest = sha256('') FROM api_key"))
        assert [tuple(row) for row in kept] == [("kv", True)]
    await engine.dispose()


async def test_rollups_of_old_are_built_anew_by_tier(empty_databases: tuple[str, str]):
    url, _ = empty_databases
    await asyncio.to_thread(command.upgrade, configuration(url), "0001")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        for statement in OLD_ROWS[:4]:
            await connection.exec_driver_sql(statement)
    rollup = """
        INSERT INTO usage_rollup
        VALUES ('t', now(), 'k', 'm', 'chat', 'r', 's', 'USD', 9, 0, 0, 0, 9, 9, 0, 9)
    """
    read = text("SELECT tier, requests, charge FROM usage_rollup")
    await asyncio.to_thread(command.upgrade, configuration(url), "0056")
    async with engine.begin() as connection:
        await connection.exec_driver_sql("SET LOCAL ROLE kvitto_settler")
        await connection.exec_driver_sql(rollup)
        await connection.exec_driver_sql("UPDATE rollup_watermark SET recorded_before = now()")
    await asyncio.to_thread(upgrade, url)
    database = Database(url)
    await Rollups(database, lag=timedelta(0)).build()
    await database.close()
    async with engine.begin() as connection:
        await connection.execute(text(SEEING_ALL))
        assert [tuple(row) for row in await connection.execute(read)] == [("standard", 1, 2)]
    await asyncio.to_thread(command.downgrade, configuration(url), "0056")
    async with engine.begin() as connection:
        await connection.execute(text(SEEING_ALL))
        assert (await connection.execute(text("SELECT * FROM usage_rollup"))).all() == []
    await engine.dispose()


async def test_two_upgrades_at_once_wait_for_each_other(empty_databases: tuple[str, str]):
    script = "import sys; from billing.db.migrate import upgrade; upgrade(sys.argv[1])"
    command_line = sys.executable, "-c", script, empty_databases[0]
    both = [await asyncio.create_subprocess_exec(*command_line, cwd=ROOT) for _ in range(2)]
    assert [await process.wait() for process in both] == [0, 0]
    assert (await catalog(empty_databases[0]))["columns"]


def test_each_table_but_the_public_ones_has_its_tenant():
    without = {
        table.name
        for table in metadata.tables.values()
        if "tenant_id" not in table.c and table.name != "tenant"
    }
    of_prices = {"price_plan", "price_tier", "price_window"}
    of_the_log = {"worker_certificate", "tree_node", "tree_head", "log_state"}
    assert without == {"model_alias", "rollup_watermark", "promise_watermark", *of_prices, *of_the_log}


def test_money_has_no_fraction_and_constraints_have_names():
    for table in metadata.tables.values():
        for column in table.c:
            if "NUMERIC" in str(column.type).upper():
                assert str(column.type) == "NUMERIC(38, 0)"
        assert all(constraint.name for constraint in table.constraints)


async def test_rows_travel_in_types_with_just_the_columns_that_statements_send(
    empty_databases: tuple[str, str],
):
    url, _ = empty_databases
    await asyncio.to_thread(upgrade, url)
    engine = create_async_engine(url)
    sent = {
        rows.type_name: [(name, kind.compile(engine.dialect).lower()) for name, kind in rows.sent.items()]
        for repository in (ledger, log, receipts, settlement)
        for rows in vars(repository).values()
        if isinstance(rows, Rows)
    }
    made = defaultdict(list)
    async with engine.begin() as connection:
        for type_name, *of_column in await connection.execute(text(TYPES)):
            made[type_name].append(tuple(of_column))
    await engine.dispose()
    assert made == sent
