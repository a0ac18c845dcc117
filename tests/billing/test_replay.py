"""Recorded usage under another book: with the published one, what the ledger took to the last femto-unit."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from billing.money import Femto
from billing.pricing.book import Placement, PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.rating import rate, rating_instant
from billing.pricing.replay import Recorded, Replay
from billing.pricing.toml import read, shipped
from billing.pricing.writing import write
from billing.settlement.posting import post
from billing.usage import TokenUsage

MODEL = "smollm2-135m-instruct"
FIRST = datetime(2026, 11, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
MONTH = timedelta(days=30)


async def settle(house: Any, book: PriceBook, hours: int, tier: Any = "standard") -> None:
    """An event every so many hours of a month, each of its own size, rated by the tenant's book."""
    events = []
    for number, hour in enumerate(range(0, 30 * 24, hours)):
        event = house.event(number, at=FIRST + hour * HOUR, output=number)
        charge = rate(book.of(house.tenant_id), MODEL, "USD", event.usage, event.rated_at, tier)
        events.append(replace(event, charge=charge))
    await post(house.database, events)


async def ledger_total(house: Any, since: datetime, until: datetime) -> Femto:
    async with house.database.transaction() as connection:
        statement = text("""
            SELECT coalesce(sum(e.amount), 0)
            FROM ledger_entry e JOIN ledger_transaction t ON t.id = e.transaction_id
            WHERE e.account = 'revenue' AND t.tenant_id = :tenant AND t.at >= :since AND t.at < :until
        """)
        words = {"tenant": house.tenant_id, "since": since, "until": until}
        return Femto(int((await connection.execute(statement, words)).scalar_one()))


async def test_a_month_replayed_by_the_unchanged_book_is_the_ledgers_own_total(house: Any):
    """Two tenants, one with prices of its own from the middle of the month on, and requests of two tiers."""
    other = await house.other_tenant()
    begins = FIRST + 10 * 24 * HOUR
    tiered = replace(house.book.rows[0].standard, batch=Rates(2_000_000, 20_000_000, 30_000_000))
    own = replace(
        house.book.rows[0], tenant_id=other.tenant_id, effective_from=begins, standard=tiered, windows=()
    )
    await house.prices.publish(PriceBook((own,)), "ann", FIRST - HOUR)
    published = await house.prices.book()
    await settle(house, published, 5)
    await settle(other, published, 7)
    later = other.event(9_999, at=begins + HOUR / 2)
    batch = rate(published.of(other.tenant_id), MODEL, "USD", later.usage, later.rated_at, "batch")
    await post(house.database, [replace(later, charge=batch)])

    exported = read(write(published))
    totals = await house.prices.replay(exported, FIRST, FIRST + MONTH)
    for tenant in (house, other):
        total = totals[tenant.tenant_id, "USD"]
        assert total.posted == await ledger_total(tenant, FIRST, FIRST + MONTH) > 0
        assert (total.rated, total.difference, total.unpriced) == (total.posted, 0, 0)

    public = await house.prices.replay(house.book, FIRST, FIRST + MONTH)
    assert public[house.tenant_id, "USD"].difference == 0
    assert public[other.tenant_id, "USD"].difference != 0
    assert public[other.tenant_id, "USD"].unpriced == 1, "the public book has no batch tier"


async def test_an_interval_of_a_replay_holds_its_beginning_and_not_its_end(house: Any):
    """BerriAI/litellm#22176: a day alone, in the zone asked for."""
    await settle(house, house.book, 1)
    day = datetime.fromisoformat("2026-11-05T00:00+05:45")
    total = (await house.prices.replay(house.book, day, day + 24 * HOUR))[house.tenant_id, "USD"]
    assert total.requests == 24
    assert total.posted == await ledger_total(house, day, day + 24 * HOUR)
    halves = [await ledger_total(house, FIRST, day), await ledger_total(house, day, FIRST + MONTH)]
    assert sum(halves) == await ledger_total(house, FIRST, FIRST + MONTH)
    with pytest.raises(KeyError):
        (await house.prices.replay(house.book, FIRST - HOUR, FIRST))[house.tenant_id, "USD"]


async def test_other_rates_differ_by_exactly_what_they_cost_more(house: Any):
    await settle(house, house.book, 24)
    (row,) = shipped("demo").rows
    dearer = replace(row, standard=replace(row.standard, miss=row.standard.miss + 1), windows=())
    standard = replace(row, windows=())
    one, two = [
        (await house.prices.replay(PriceBook((each,)), FIRST, FIRST + MONTH))[house.tenant_id, "USD"]
        for each in (dearer, standard)
    ]
    assert one.rated - two.rated == one.requests * 176


@pytest.mark.parametrize(
    ("rule", "other_rule", "rated"),
    [("admitted", "completed", 30), ("completed", "admitted", 10), ("completed", "completed", 20)],
)
def test_another_rule_rates_at_another_instant(rule: Any, other_rule: Any, rated: int):
    """Admitted at one price, completed a second later at the next, and recorded at the one after it."""
    prices = [(FIRST - HOUR, 10), (FIRST + SECOND, 20), (FIRST + 2 * SECOND, 30)]
    book, other = (
        PriceBook(tuple(PriceRow("m", "USD", at, each, Rates(0, 0, output)) for at, output in prices))
        for each in (rule, other_rule)
    )
    at = rating_instant(book.row("m", "USD", FIRST), FIRST, FIRST + SECOND)
    usage = TokenUsage(0, 0, 0, 1, 1)
    posted = rate(book, "m", "USD", usage, at).amount
    replay = Replay(book, other)
    replay.add(Recorded("t", "m", "USD", "standard", FIRST, at, FIRST + 2 * SECOND, usage, posted))
    assert replay.totals["t", "USD"].rated == rated


RULES = st.sampled_from(["admitted", "completed"])
SECONDS = st.integers(0, 7200)


@given(RULES, RULES, SECONDS, SECONDS, st.integers(1, 100))
def test_the_instant_that_rates_is_found_again_and_changes_only_with_the_rule(
    rule: Any, later_rule: Any, changed_s: int, elapsed_s: int, output: int
):
    """The row in force at admission says which instant rates, of the published book and of any other."""
    first = PriceRow("m", "USD", FIRST - HOUR, rule, Rates(1, 2, 3))
    second = replace(
        first,
        effective_from=FIRST + timedelta(seconds=changed_s),
        instant=later_rule,
        standard=Rates(4, 5, 6),
    )
    own = replace(first, tenant_id="t", standard=Rates(7, 8, 9), effective_until=FIRST + 2 * HOUR)
    book = PriceBook(
        (first, second, replace(own, tenant_id=None, plan="p")), (Placement("t", FIRST + HOUR, "p"),)
    )
    completed = FIRST + timedelta(seconds=elapsed_s)
    seen, usage = book.of("t"), TokenUsage(0, 0, 0, 1, output)
    at = rating_instant(seen.row("m", "USD", FIRST), FIRST, completed)
    posted = rate(seen, "m", "USD", usage, at).amount
    recorded = Recorded(
        "t", "m", "USD", "standard", FIRST, at, completed + timedelta(seconds=1), usage, posted
    )
    same = Replay(book, PriceBook(book.rows, book.placements))
    same.add(recorded)
    assert same.totals["t", "USD"].rated == posted
