"""What the gateway knows without asking: never longer than its bound, and not at all once it is told."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from billing.errors import PriceMissing, StoreUnavailable
from billing.pricing.book import PriceBook
from billing.tenancy import keys
from billing.tenancy.api_key import KeyGrant
from gateway.refusal import KeyRefused
from gateway.snapshot import KeySnapshot, PriceSnapshot, announce_change
from gateway.valkey import Valkey
from tests.gateway.conftest import EPOCH, ROW, House, until
from tests.gateway.doubles import MODEL, Play

SECRET = keys.secret_of(b"s" * 32)
GRANT = KeyGrant("key_a", "ten_a", "USD", None, "test")


class CountingTenancy:
    """Answers for one key as `Tenancy` does, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.grant: KeyGrant | None = GRANT
        self.away = False

    async def was_asked(self) -> bool:
        return self.asked > 0

    def digest(self, secret: str) -> bytes:
        return keys.digest(secret, b"pepper")

    async def find_key(self, digest: bytes) -> KeyGrant | None:
        self.asked += 1
        await asyncio.sleep(0.02)  # as long as a query takes
        if self.away:
            raise StoreUnavailable("away")
        return self.grant if digest == self.digest(SECRET) else None


@pytest.fixture
async def tenancy() -> CountingTenancy:
    return CountingTenancy()


@pytest.fixture
async def snapshot(tenancy: CountingTenancy, valkey: Valkey) -> AsyncIterator[KeySnapshot]:
    made = KeySnapshot(tenancy, valkey, age_max_s=60.0, keys_max=2)  # type: ignore[arg-type]  # a double
    made.start()
    yield made
    await made.close()


async def test_a_key_is_asked_for_once_however_many_requests_come_at_once(
    snapshot: KeySnapshot, tenancy: CountingTenancy
) -> None:
    grants = await asyncio.gather(*(snapshot.grant(SECRET) for _ in range(20)))
    assert set(grants) == {GRANT}
    assert tenancy.asked == 1


async def test_a_grant_older_than_the_bound_is_asked_for_again(
    tenancy: CountingTenancy, valkey: Valkey
) -> None:
    forgetful = KeySnapshot(tenancy, valkey, age_max_s=0.0, keys_max=2)  # type: ignore[arg-type]  # a double
    await forgetful.grant(SECRET)
    await forgetful.grant(SECRET)
    assert tenancy.asked == 2


async def test_a_revocation_that_is_announced_takes_effect_at_once(
    snapshot: KeySnapshot, tenancy: CountingTenancy, valkey: Valkey
) -> None:
    """gpustack/gpustack#6173: everywhere; the bound of 2 s is for those that miss the announcement."""

    async def subscribed() -> bool:
        (_, listeners) = await valkey.call("PUBSUB", "NUMSUB", "kv:changed")
        return int(listeners) > 0

    await until(subscribed)
    await snapshot.grant(SECRET)
    tenancy.grant = KeyGrant("key_a", "ten_a", "USD", EPOCH, "test")
    await announce_change(valkey, "key_a")

    async def refused() -> bool:
        try:
            await snapshot.grant(SECRET)
        except KeyRefused:
            return True
        return False

    await until(refused)


async def test_an_answer_that_was_under_way_during_a_revocation_is_not_kept(
    snapshot: KeySnapshot, tenancy: CountingTenancy
) -> None:
    asking = asyncio.create_task(snapshot.grant(SECRET))
    await until(tenancy.was_asked)
    snapshot.forget("key_a")
    await asking
    await snapshot.grant(SECRET)
    assert tenancy.asked == 2


async def test_a_mistyped_key_never_reaches_the_database(
    snapshot: KeySnapshot, tenancy: CountingTenancy
) -> None:
    for mistyped in ("", f"{SECRET}0", SECRET[:-1], "kv_live_"):
        with pytest.raises(KeyRefused):
            await snapshot.grant(mistyped)
    assert tenancy.asked == 0


async def test_an_outage_is_neither_an_unknown_key_nor_remembered(
    snapshot: KeySnapshot, tenancy: CountingTenancy
) -> None:
    tenancy.away = True
    with pytest.raises(StoreUnavailable):
        await snapshot.grant(SECRET)
    tenancy.away = False
    assert await snapshot.grant(SECRET) == GRANT


async def test_no_more_keys_are_kept_than_allowed(snapshot: KeySnapshot, tenancy: CountingTenancy) -> None:
    await snapshot.grant(SECRET)
    for byte in (b"x", b"y"):
        with pytest.raises(KeyRefused):
            await snapshot.grant(keys.secret_of(byte * 32))
    await snapshot.grant(SECRET)
    assert tenancy.asked == 4


class Books:
    """Answers as `Prices` does."""

    def __init__(self) -> None:
        self.published = PriceBook(())
        self.away = False

    async def book(self) -> PriceBook:
        if self.away:
            raise StoreUnavailable("away")
        return self.published


async def test_a_price_published_a_moment_ago_is_found_and_kept_through_an_outage() -> None:
    books = Books()
    prices = PriceSnapshot(books, refresh_interval_s=60.0)  # type: ignore[arg-type]  # a double
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(PriceMissing):
        await prices.covering("ten_a", MODEL, "USD", now)
    books.published = PriceBook((ROW,))
    await prices.covering("ten_a", MODEL, "USD", now)
    books.away = True
    assert (await prices.covering("ten_a", MODEL, "USD", now)).rows == (ROW,)


async def test_no_log_line_and_no_answer_repeats_a_key_or_a_prompt(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    canary = "canary-prompt"
    house.engine.play = Play(prefill=RuntimeError("the engine broke"))
    async with house.chat(messages=[{"role": "user", "content": canary}]) as answer:
        assert answer.status == 500
        text = await answer.text()
    assert "the engine broke" in caplog.text
    assert canary not in caplog.text + text
    assert house.key not in caplog.text + text
