"""An audit chain whose facts were erased: nothing of them is left, and whatever else is altered is found."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.audit import repository
from billing.audit import service as audit
from billing.audit.event import ERASE, AuditEvent, Deed, chained
from billing.audit.service import Audit
from billing.db.access import OWNER
from tests.billing.conftest import NOON

CANARY = "Ada Lovelace"


async def erase(house: Any) -> None:
    async with house.database.transaction() as connection:
        await audit.erase(
            connection, Deed(house.tenant_id, "ann", ERASE, house.tenant_id, NOON, after={"users": 1})
        )


async def alter(house: Any, statement: str) -> None:
    async with house.database.transaction(OWNER) as connection:
        await connection.execute(text(statement.format(of=f"tenant_id = '{house.tenant_id}'")))


async def faults(house: Any) -> list[str]:
    return await Audit(house.database).verify(house.tenant_id)


async def written(house: Any) -> str:
    async with house.database.transaction(OWNER) as connection:
        rows = await connection.execute(
            text("SELECT row_to_json(e)::text FROM audit_event AS e WHERE tenant_id = :id"),
            {"id": house.tenant_id},
        )
        return "".join(rows.scalars())


@pytest.fixture
async def chain(house: Any) -> Any:
    """Six entries: the tenant and its key, two keys that are named, the erasure, and one after it."""
    for number in range(2):
        await house.tenancy.create_key(house.tenant_id, f"{CANARY} {number}", NOON)
    assert CANARY in await written(house)
    await erase(house)
    await house.tenancy.create_key(house.tenant_id, "later", NOON)
    return house


async def test_an_erased_chain_verifies_and_says_who_did_what_to_which(chain: Any) -> None:
    assert await faults(chain) == []
    assert CANARY not in await written(chain)
    events = await Audit(chain.database).events(chain.tenant_id)
    actions = ["tenant.create", "key.create", "key.create", "key.create", ERASE, "key.create"]
    assert [event.deed.action for event in events] == actions
    assert [event.deed.after is None for event in events] == [True, True, True, True, False, False]
    assert events[4].deed.after == {"users": 1, "first_format": 0}


async def test_heads_of_before_are_those_of_after(house: Any) -> None:
    await house.tenancy.create_key(house.tenant_id, CANARY, NOON)
    before = [event.hash for event in await Audit(house.database).events(house.tenant_id)]
    await erase(house)
    after = [event.hash for event in await Audit(house.database).events(house.tenant_id)]
    assert after[:-1] == before


async def test_erased_twice_it_still_verifies(chain: Any) -> None:
    await erase(chain)
    assert await faults(chain) == []


@pytest.mark.parametrize(
    ("tampering", "fault"),
    [
        ("UPDATE audit_event SET actor = 'somebody' WHERE {of} AND position = 3", "event 3 was altered"),
        ("UPDATE audit_event SET action = 'key.revoke' WHERE {of} AND position = 3", "event 3 was altered"),
        ("UPDATE audit_event SET object = 'key_x' WHERE {of} AND position = 1", "event 1 was altered"),
        ("UPDATE audit_event SET at = at + interval '1 second' WHERE {of} AND position = 2", "event 2"),
        ("UPDATE audit_event SET digest = sha256('') WHERE {of} AND position = 2", "event 2 was altered"),
        ("UPDATE audit_event SET digest = NULL WHERE {of} AND position = 2", "event 2 was altered"),
        ("UPDATE audit_event SET after = '{{}}' WHERE {of} AND position = 2", "event 2 was altered"),
        (
            "UPDATE audit_event SET after = '{{}}', salt = sha256('') WHERE {of} AND position = 2",
            "event 2 was altered",
        ),
        ("UPDATE audit_event SET after = '{{}}' WHERE {of} AND position = 6", "event 6 was altered"),
        (
            "UPDATE audit_event SET after = NULL, salt = NULL WHERE {of} AND position = 6",
            "event 6 was altered: its facts are gone",
        ),
        (
            "UPDATE audit_event SET after = NULL, salt = NULL WHERE {of} AND position = 5",
            "event 5 was altered: its facts are gone",
        ),
        ("UPDATE audit_event SET action = 'key.set' WHERE {of} AND position = 5", "event 5 was altered"),
        ("DELETE FROM audit_event WHERE {of} AND position = 2", "event 2 is missing"),
    ],
)
async def test_whatever_is_altered_beside_erased_facts_is_found(
    chain: Any, tampering: str, fault: str
) -> None:
    await alter(chain, tampering)
    (found,) = await faults(chain)
    assert fault in found


async def test_facts_that_nobody_erased_may_not_be_missing(house: Any) -> None:
    await house.tenancy.create_key(house.tenant_id, CANARY, NOON)
    await alter(house, "UPDATE audit_event SET after = NULL, salt = NULL WHERE {of} AND position = 2")
    (found,) = await faults(house)
    assert "event 2 was altered: its facts are gone" in found


async def of_first_format(house: Any, names: list[str]) -> None:
    """A chain as it was before facts had digests."""
    await alter(house, "DELETE FROM audit_event WHERE {of}")
    await alter(house, "DELETE FROM audit_head WHERE {of}")
    async with house.database.transaction() as connection:
        for name in names:
            deed = Deed(house.tenant_id, "ann", "key.create", "key_a", NOON, after={"name": name})
            position, previous = await repository.lock_head(connection, house.tenant_id)
            made = AuditEvent(position + 1, deed, chained(previous, position + 1, deed, None))
            await repository.insert_event(connection, made)


async def test_entries_of_the_first_format_verify_on_and_are_erased_too(house: Any) -> None:
    await of_first_format(house, [CANARY, "b"])
    await house.tenancy.create_key(house.tenant_id, CANARY, NOON)
    assert await faults(house) == []
    await erase(house)
    assert CANARY not in await written(house)
    assert await faults(house) == []
    await house.tenancy.create_key(house.tenant_id, "later", NOON + timedelta(days=1))
    assert await faults(house) == []
    await alter(house, "UPDATE audit_event SET actor = 'somebody' WHERE {of} AND position = 3")
    assert "event 3 was altered" in (await faults(house))[0]


async def test_an_entry_does_not_become_one_of_the_first_format(chain: Any) -> None:
    await alter(chain, "UPDATE audit_event SET digest = NULL, actor = 'somebody' WHERE {of} AND position = 4")
    assert "event 4 was altered" in (await faults(chain))[0]


async def test_an_altered_entry_of_the_first_format_is_found_while_it_has_its_facts(house: Any) -> None:
    await of_first_format(house, ["a", "b"])
    await alter(house, "UPDATE audit_event SET after = NULL WHERE {of} AND position = 1")
    assert "event 1 was altered" in (await faults(house))[0]
