"""Events by month: each lies where its id says, none is refused, months are made while settlement goes on."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from billing.db.access import OWNER, SETTLER
from billing.db.partitions import DEFAULT, Made, Month, Partitions
from billing.request_id import RANDOM_BYTES, mint
from billing.settlement.event import UsageEvent
from billing.settlement.posting import post
from billing.settlement.repository import insert_events

# No other test has events of these years.
JANUARY = datetime(2031, 1, 1, tzinfo=UTC)
INSTANTS = st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  Hypothesis takes naive bounds


@given(INSTANTS, st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES))
def test_an_id_lies_between_the_bounds_of_its_month(at: datetime, random: bytes) -> None:
    request_id, month = mint(at, random), Month.of(at)
    assert month.first_id <= request_id < month.next.first_id
    assert Month.of_id(request_id) == month
    assert Month.of_id(mint(at - timedelta(days=40), random)) < month < Month.of_id(month.next.first_id)


def admitted(house: Any, at: datetime) -> UsageEvent:
    """A settled request whose id says so."""
    random = bytes.fromhex(house.tenant_id[4:24])
    return replace(house.event(at=at), request_id=mint(at, random), attestations=())


async def lies_in(house: Any, event: UsageEvent) -> str:
    where = text("SELECT tableoid::regclass::text FROM usage_event WHERE request_id = :id")
    async with house.database.transaction(OWNER) as connection:
        return str((await connection.execute(where, {"id": event.request_id})).scalar_one())


@pytest.mark.parametrize("last_instant", [timedelta(0), -timedelta(milliseconds=1)])
async def test_an_event_lies_in_the_month_of_its_admission(house: Any, last_instant: timedelta) -> None:
    await Partitions(house.database).make_ahead(JANUARY)
    event = admitted(house, JANUARY + timedelta(days=31) + last_instant)
    await post(house.database, [event])
    expected = Month(2031, 1 if last_instant else 2)
    assert await lies_in(house, event) == expected.table


async def test_an_event_that_came_before_its_month_was_made_is_kept_and_moved(house: Any) -> None:
    late = JANUARY.replace(year=2032)
    event = admitted(house, late)
    await post(house.database, [event])
    assert await lies_in(house, event) == DEFAULT
    faults = await house.ledger.check_integrity()

    made = await Partitions(house.database).make_ahead(late + timedelta(days=75))
    assert made.months[0] == Month(2032, 3)
    assert Month(2032, 1) in made.months
    assert await lies_in(house, event) == Month(2032, 1).table
    assert await post(house.database, [event]) != {}, "settled before: found where it is now"
    assert await house.ledger.check_integrity() == faults == []


async def test_what_lies_beyond_all_months_is_counted(house: Any) -> None:
    partitions = Partitions(house.database)
    before = await partitions.make_ahead(JANUARY.replace(year=2034))
    await post(house.database, [admitted(house, JANUARY.replace(year=2039))])
    assert await partitions.make_ahead(JANUARY.replace(year=2034)) == Made((), before.strays + 1)


async def test_two_makers_at_once_make_each_month_once(house: Any) -> None:
    partitions, at = Partitions(house.database), JANUARY.replace(year=2035)
    both = await asyncio.gather(partitions.make_ahead(at), partitions.make_ahead(at))
    months = [month for made in both for month in made.months if month.year == 2035]
    assert sorted(months) == [Month(2035, number) for number in (1, 2, 3, 4)]


async def test_months_are_made_while_a_settlement_is_open(house: Any) -> None:
    at = JANUARY.replace(year=2036)
    async with house.database.transaction(SETTLER) as connection:
        await insert_events(connection, [admitted(house, datetime(2031, 1, 2, tzinfo=UTC))])
        async with asyncio.timeout(4):
            made = await Partitions(house.database).make_ahead(at)
    assert Month(2036, 1) in made.months
