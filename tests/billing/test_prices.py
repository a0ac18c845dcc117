import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.errors import PlanConflict, PlanMissing, PriceConflict, PriceInvalid, TenantMissing
from billing.money import rate_of
from billing.pricing.book import Placement, PriceBook
from billing.pricing.publication import LEAD, REQUEST_MAX, UNSEEN, Change, compare
from billing.pricing.rates import Rates
from billing.pricing.toml import shipped

AT = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("name", ["demo", "deepseek"])
async def test_a_published_book_is_read_back_as_it_was_and_again_adds_nothing(house: Any, name: str):
    book = shipped(name)
    await house.prices.publish(book, "ann", AT)
    assert await house.prices.publish(book, "ann", AT) == 0
    published = await house.prices.book()
    assert set(book.rows) <= set(published.rows)


async def test_two_who_publish_the_same_book_at_once_add_it_once(house: Any):
    row = replace(shipped("demo").rows[0], model="raced")
    added = await asyncio.gather(*(house.prices.publish(PriceBook((row,)), "ann", AT) for _ in range(4)))
    assert sorted(added) == [0, 0, 0, 1]


async def test_a_published_row_never_changes(house: Any):
    row = house.book.rows[0]
    dearer = replace(row, standard=replace(row.standard, output=row.standard.output + 1))
    with pytest.raises(PriceConflict):
        await house.prices.publish(PriceBook((dearer,)), "ann", AT)
    unwindowed = replace(row, windows=())
    with pytest.raises(PriceConflict):
        await house.prices.publish(PriceBook((unwindowed,)), "ann", AT)


async def test_a_new_price_takes_effect_only_after_every_gateway_has_seen_it(house: Any):
    row = replace(house.book.rows[0], model="timed")
    await house.prices.publish(PriceBook((row,)), "ann", AT)
    soon = replace(row, effective_from=AT + LEAD - timedelta(seconds=1))
    with pytest.raises(PriceConflict):
        await house.prices.publish(PriceBook((soon,)), "ann", AT)
    assert await house.prices.publish(PriceBook((replace(row, effective_from=AT + LEAD),)), "ann", AT) == 1


@pytest.mark.parametrize(
    ("rules", "waits"),
    [
        (("completed",), True),
        (("admitted",), False),
        (("completed", "admitted"), True),  # it has ended 5 minutes ago: its requests may run
        (("admitted", "completed"), True),
    ],
    ids=["on completion", "on admission", "on completion until lately", "on completion of late"],
)
async def test_a_price_waits_for_requests_that_are_rated_when_they_complete(
    house: Any, rules: tuple[Any, ...], waits: bool
):
    row = replace(house.book.rows[0], model=f"ends-{'-'.join(rules)}")
    begin = (row.effective_from, AT - timedelta(minutes=5))
    rows = [replace(row, instant=rule, effective_from=at) for rule, at in zip(rules, begin, strict=False)]
    await house.prices.publish(PriceBook(tuple(rows)), "ann", AT - timedelta(days=1))
    first = AT + LEAD + (REQUEST_MAX if waits else timedelta(0))
    with pytest.raises(PriceConflict, match="610 s" if waits else UNSEEN):
        await house.prices.publish(PriceBook((replace(row, effective_from=first - SECOND),)), "ann", AT)
    assert await house.prices.publish(PriceBook((replace(row, effective_from=first),)), "ann", AT) == 1


async def test_a_price_does_not_wait_for_one_that_has_ended_longer_ago_than_requests_run(house: Any):
    row = replace(house.book.rows[0], model="ended", instant="completed")
    after = replace(row, instant="admitted", effective_from=AT - REQUEST_MAX)
    await house.prices.publish(PriceBook((row, after)), "ann", AT - timedelta(days=1))
    assert await house.prices.publish(PriceBook((replace(after, effective_from=AT + LEAD),)), "ann", AT) == 1


async def test_a_book_with_one_bad_row_is_not_published_at_all(house: Any):
    row = house.book.rows[0]
    fresh = replace(row, model="half")
    changed = replace(row, instant="completed")
    with pytest.raises(PriceConflict):
        await house.prices.publish(PriceBook((fresh, changed)), "ann", AT)
    assert "half" not in {row.model for row in (await house.prices.book()).rows}


async def test_a_row_that_contradicts_itself_is_not_published_however_it_was_made(house: Any):
    row = house.book.rows[0]
    backwards = replace(row, model="backwards", standard=replace(row.standard, hit=row.standard.miss + 1))
    with pytest.raises(PriceInvalid):
        await house.prices.publish(PriceBook((backwards,)), "ann", AT)


async def placed(house: Any, plan: str | None, at: datetime) -> None:
    await house.prices.place(Placement(house.tenant_id, at, plan), "ann", AT)


async def test_prices_of_a_plan_and_of_a_tenant_are_read_back_with_their_tiers(house: Any):
    await house.prices.create_plan("gold", "ann", AT)
    public = house.book.rows[0]
    tiered = replace(public.standard, write=7, batch=Rates(1, 2, 3, write=4))
    night = replace(public.windows[0], rates=replace(tiered, flex=None, batch=Rates(0, 1, 2, write=3)))
    later = replace(public, model="tiered", standard=tiered, windows=(night,), effective_from=AT)
    ends = AT + timedelta(days=1)
    plan, own = replace(later, plan="gold"), replace(later, tenant_id=house.tenant_id, effective_until=ends)
    rows = (later, plan, own)
    assert await house.prices.publish(PriceBook(rows), "ann", AT) == 3
    await placed(house, "gold", AT + LEAD)
    await placed(house, None, AT + 2 * LEAD)
    book = await house.prices.book()
    assert set(rows) <= set(book.rows)
    seen = book.of(house.tenant_id)
    assert seen.row("tiered", "USD", AT + LEAD) == own
    assert seen.row("tiered", "USD", ends) == book.row("tiered", "USD", AT) == later
    assert {each.plan for each in book.placements if each.tenant_id == house.tenant_id} == {"gold", None}
    assert await house.prices.plans() == ["gold"]


async def test_a_tenant_is_on_its_plan_from_the_instant_on(house: Any):
    await house.prices.create_plan("iron", "ann", AT)
    public = replace(house.book.rows[0], model="ironed", effective_from=AT)
    plan = replace(public, plan="iron", standard=replace(public.standard, output=1))
    await house.prices.publish(PriceBook((public, plan)), "ann", AT)
    await placed(house, "iron", AT + LEAD)
    seen = (await house.prices.book()).of(house.tenant_id)
    assert seen.row("ironed", "USD", AT + LEAD - timedelta(microseconds=1)) == public
    assert seen.row("ironed", "USD", AT + LEAD) == plan


async def test_what_names_nobody_or_begins_unseen_is_refused(house: Any):
    row = replace(house.book.rows[0], model="refused", effective_from=AT)
    own = replace(row, tenant_id=house.tenant_id)
    nobody, euros = replace(row, tenant_id="ten_nobody"), replace(own, currency="EUR")
    for wrong in (nobody, euros):
        with pytest.raises(PriceInvalid, match="no tenant of this id is billed in"):
            await house.prices.publish(PriceBook((row, wrong)), "ann", AT)
    with pytest.raises(PlanMissing):
        await house.prices.publish(PriceBook((row, replace(row, plan="tin"))), "ann", AT)
    until = replace(own, effective_until=AT + timedelta(days=1))
    with pytest.raises(PriceConflict, match="a gap"):
        await house.prices.publish(PriceBook((until,)), "ann", AT)
    assert "refused" not in {row.model for row in (await house.prices.book()).rows}
    await house.prices.publish(PriceBook((row,)), "ann", AT)
    with pytest.raises(PriceConflict, match="before every gateway has seen it"):
        await house.prices.publish(PriceBook((own,)), "ann", AT)
    with pytest.raises(PlanMissing):
        await placed(house, "tin", AT + LEAD)
    with pytest.raises(PlanConflict):
        await placed(house, None, AT + LEAD - timedelta(microseconds=1))
    await placed(house, None, AT + LEAD)
    with pytest.raises(PlanConflict):
        await placed(house, None, AT + LEAD)
    with pytest.raises(TenantMissing):
        await house.prices.place(Placement("ten_nobody", AT + LEAD, None), "ann", AT)
    await house.prices.create_plan("zinc", "ann", AT)
    for name in ("zinc", "Zinc", ""):
        with pytest.raises(PlanConflict):
            await house.prices.create_plan(name, "ann", AT)


async def test_a_plan_waits_for_requests_that_are_rated_when_they_complete(house: Any):
    await house.prices.create_plan("slow", "ann", AT)
    row = replace(house.book.rows[0], model="planned", instant="completed")
    await house.prices.publish(PriceBook((row, replace(row, plan="slow"))), "ann", AT)
    with pytest.raises(PlanConflict, match="610 s"):
        await placed(house, "slow", AT + LEAD + REQUEST_MAX - SECOND)
    await placed(house, "slow", AT + LEAD + REQUEST_MAX)
    with pytest.raises(PlanConflict, match="610 s"):
        await placed(house, None, AT + LEAD)


async def test_a_comparison_says_what_a_book_would_change_and_what_would_be_refused(house: Any):
    public = replace(house.book.rows[0], model="compared", effective_from=AT - timedelta(days=9))
    await house.prices.publish(PriceBook((public,)), "ann", AT)
    dearer = replace(public, standard=replace(public.standard, output=rate_of("0.3")))
    later = replace(dearer, effective_from=AT + timedelta(days=1), windows=())
    late = replace(dearer, effective_from=AT)
    published = await house.prices.book()
    told = compare(PriceBook((public, later, late)), published, AT)
    assert [each.state for each in told] == ["same", "new", "refused"]
    assert [each.reason for each in told] == [None, None, UNSEEN]
    assert told[1].changes == (
        Change("offpeak: hours", "16:30-00:30 UTC", None),
        Change("offpeak: hit", "0.007", None),
        Change("offpeak: miss", "0.07", None),
        Change("offpeak: output", "0.14", None),
    )
    assert told[2].changes == (Change("standard: output", "0.28", "0.3"),)
    (changed,) = compare(PriceBook((dearer,)), published, AT)
    assert (changed.state, changed.changes) == ("refused", (Change("standard: output", "0.28", "0.3"),))
