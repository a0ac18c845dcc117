import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.errors import PriceConflict, PriceInvalid
from billing.pricing.book import PriceBook
from billing.pricing.service import LEAD
from billing.pricing.toml import shipped

AT = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)


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
