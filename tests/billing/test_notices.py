"""What tenants are told: once an occasion, with what it is about or not at all, to each endpoint."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OPERATOR, OWNER, SETTLER, Access, of_tenant
from billing.db.pages import Page
from billing.errors import StoreRefused
from billing.notify.notice import Notice
from billing.notify.service import Notices, emit
from tests.billing.conftest import NOON


def notice(house: Any, **changed: Any) -> Notice:
    return replace(Notice(house.tenant_id, "balance.low", NOON, {"balance": "0.5"}), **changed)


async def tell(house: Any, told: Notice, who: Access = SETTLER) -> str | None:
    async with house.database.transaction(who) as connection:
        return await emit(connection, told)


async def told(house: Any) -> list[Notice]:
    return [kept.notice for kept in await Notices(house.database).notices(house.tenant_id)]


async def endpoint(house: Any, name: str, kinds: str = "NULL", enabled: bool = True) -> None:
    statement = (
        f"INSERT INTO webhook_endpoint VALUES ('{name}', '{house.tenant_id}', 'https://example.com', "  # noqa: S608  literals of this test
        f"{kinds}, {enabled}, NULL, NULL, now())"
    )
    async with house.database.transaction(OPERATOR) as connection:
        await connection.execute(text(statement))


async def wanted_by(house: Any) -> set[str]:
    async with house.database.transaction(OWNER) as connection:
        rows = await connection.execute(
            text("SELECT endpoint_id FROM webhook_delivery WHERE tenant_id = :id"), {"id": house.tenant_id}
        )
        return set(rows.scalars())


@pytest.mark.parametrize("who", ["settler", "operator", "tenant"])
async def test_a_notice_is_kept_with_its_facts_whoever_tells_it(house: Any, who: str) -> None:
    as_who = {"settler": SETTLER, "operator": OPERATOR, "tenant": of_tenant(house.tenant_id)}[who]
    given = notice(house, facts={"balance": "0.5", "keys": ["a"], "n": 2, "hard": True, "was": None})
    assert await tell(house, given, as_who)
    assert await told(house) == [given]


async def test_an_occasion_is_told_once_whoever_tells_it_at_once(house: Any) -> None:
    given = notice(house, dedupe="balance.low/1")
    ids = await asyncio.gather(*(tell(house, given) for _ in range(8)))
    assert len([one for one in ids if one is not None]) == 1
    assert await tell(house, replace(given, facts={"balance": "0.4"})) is None
    assert await told(house) == [given]


async def test_without_an_occasion_each_notice_counts_and_pages_go_on_where_they_ended(house: Any) -> None:
    ids = [await tell(house, notice(house)) for _ in range(3)]
    assert await Notices(house.database).notices(house.tenant_id, Page(None, 2))
    page = await Notices(house.database).notices(house.tenant_id, Page(min(map(str, ids)), 5))
    assert [kept.id for kept in page] == sorted(map(str, ids))[1:]


async def test_one_tenants_occasion_is_not_anothers(house: Any) -> None:
    other = await house.other_tenant()
    for one in (house, other):
        assert await tell(one, notice(one, dedupe="balance.low/1"))
    assert len(await told(other)) == 1


async def test_what_is_not_committed_is_not_told(house: Any) -> None:
    await endpoint(house, "whk_a")

    async def change() -> None:
        async with house.database.transaction(SETTLER) as connection:
            await emit(connection, notice(house, dedupe="x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await change()
    assert await told(house) == []
    assert await wanted_by(house) == set()
    assert await tell(house, notice(house, dedupe="x"))


async def test_each_enabled_endpoint_that_wants_the_kind_gets_a_delivery(house: Any) -> None:
    other = await house.other_tenant()
    for one, of in ((house, ""), (other, "_other")):
        await endpoint(one, f"whk_all{of}_{one.tenant_id}")
    await endpoint(house, f"whk_low_{house.tenant_id}", "'{balance.low,key.expiring}'")
    await endpoint(house, f"whk_key_{house.tenant_id}", "'{key.expiring}'")
    await endpoint(house, f"whk_off_{house.tenant_id}", enabled=False)
    await tell(house, notice(house))
    assert await wanted_by(house) == {f"whk_all_{house.tenant_id}", f"whk_low_{house.tenant_id}"}
    assert await wanted_by(other) == set()


async def test_a_notice_of_nobody_and_a_float_are_refused(house: Any) -> None:
    with pytest.raises(StoreRefused):
        await tell(house, notice(house, tenant_id="ten_nobody"))
    with pytest.raises(AssertionError, match="not exact"):
        await tell(house, notice(house, facts={"by": [{"percent": 0.8}]}))
    assert await told(house) == []


async def test_a_body_says_what_standard_webhooks_asks_and_is_the_same_bytes_again(house: Any) -> None:
    await tell(house, notice(house, facts={"z": "1", "a": "2"}))
    (kept,) = await Notices(house.database).notices(house.tenant_id)
    (again,) = await Notices(house.database).notices(house.tenant_id)
    assert kept.body == again.body
    assert json.loads(kept.body) == {
        "id": kept.id,
        "type": "balance.low",
        "timestamp": "2026-11-02T12:00:00Z",
        "tenant_id": house.tenant_id,
        "data": {"a": "2", "z": "1"},
    }
