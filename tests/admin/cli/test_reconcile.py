"""`kvitto reconcile` on real books: silent when they agree, status 1 with each id when they do not."""

import asyncio
import json
from typing import Any

from sqlalchemy import text

from billing.db.access import OWNER
from billing.db.transaction import Database


def test_books_that_agree_then_differ(kvitto: Any, database_url: str) -> None:
    tenant = kvitto("tenant", "create", "acme", "--json").told
    kvitto("credit", "top-up", "acme", "5", "--reason", "paid")
    agreed = kvitto("reconcile", "--until", "now")
    assert (agreed.status, agreed.out) == (0, "All books agree.\n")
    assert "events = ledger …" in agreed.err
    assert json.loads(kvitto("reconcile", "--until", "now", "--since", "1d", "--json").out) == []

    asyncio.run(alter(database_url, tenant["id"]))
    differing = kvitto("reconcile", "--until", "now")
    assert differing.status == 1
    assert tenant["id"] in differing.out
    assert "Stripe = ledger" in differing.err
    found = kvitto("reconcile", "--until", "now", "--json")
    assert found.status == 1
    assert {(row["check"], row["object_id"]) for row in json.loads(found.out)} == {
        ("ledger = balances", tenant["id"])
    }


async def alter(database_url: str, tenant_id: str) -> None:
    database = Database(database_url)
    async with database.transaction(OWNER) as connection:
        statement = text("UPDATE balance SET granted = granted + 1 WHERE tenant_id = :tenant")
        await connection.execute(statement, {"tenant": tenant_id})
    await database.close()
