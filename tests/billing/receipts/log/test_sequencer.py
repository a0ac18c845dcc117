"""One sequence, whoever seals and whatever breaks: each request once, no gap, no head without its leaves."""

import asyncio
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import text

from admin import clock
from billing.db.access import OWNER, SETTLER
from billing.db.transaction import Database
from billing.errors import StoreUnavailable
from billing.receipts import merkle
from billing.receipts.head import TreeHead
from billing.receipts.log.service import ReceiptLog
from billing.settlement.repository import insert_events
from engine.proof.certificate import DeploymentKey
from engine.proof.ring import RingSigner
from tests.billing.conftest import AT_ONCE
from tests.billing.receipts.log.conftest import Sealing
from tests.billing.receipts.log.wire import Wire

QUESTIONS_MAX = 150


@pytest.mark.parametrize("where", ["asked", "told"])
async def test_wherever_the_connection_breaks_the_log_is_whole_and_goes_on(
    sealing: Sealing, postgres_server: Any, where: Literal["asked", "told"]
) -> None:
    """trust.md, fail the n-th statement: also where the commit happened and its answer was lost."""
    server, number = Path(postgres_server.server.sockets), 0
    with tempfile.TemporaryDirectory(prefix="kv-", dir="/tmp") as folder:
        address = await address_through(sealing, folder)
        for breaks_at in range(1, QUESTIONS_MAX):
            await sealing.settle(number, number + 1)
            number += 2
            wire = Wire(Path(folder), server, breaks_at, where)
            async with wire.laid():
                database = Database(address, pool_size=1)
                log = ReceiptLog(database, sealing.signer, replace(AT_ONCE, batch=1))
                try:
                    await log.seal(clock.now())
                except StoreUnavailable:
                    assert wire.broken
                await database.close()
            assert await sealing.log.check_integrity(sealing.signer.ring) == []
            await sealing.seal()
            if not wire.broken:
                break
        assert not wire.broken, "it was broken at every question of a whole sealing"
        assert breaks_at > 20
    newest = await sealing.log.newest()
    assert newest is not None
    assert newest.head.size == number
    indexes = [await sealing.check(sealing.house.request_id(n)) for n in range(number)]
    assert sorted(indexes) == list(range(number))


async def address_through(sealing: Sealing, folder: str) -> str:
    """The URL of the test's database, by way of a socket in another folder."""
    async with sealing.house.database.transaction(OWNER) as connection:
        name = (await connection.execute(text("SELECT current_database()"))).scalar_one()
    url = str(connection.engine.url.render_as_string(hide_password=False))
    assert name in url
    before, _, _ = url.partition("?")
    return f"{before}?host={folder}"


async def test_of_sequencers_at_once_each_batch_is_one_ones(sealing: Sealing, database_url: str) -> None:
    databases = [Database(database_url, pool_size=2) for _ in range(4)]
    logs = [ReceiptLog(each, sealing.signer, replace(AT_ONCE, batch=5)) for each in databases]
    for first in range(0, 60, 20):
        await asyncio.gather(
            sealing.settle(*range(first, first + 20)), *(log.seal(clock.now()) for log in logs)
        )
    await asyncio.gather(*(log.seal(clock.now()) for log in logs))
    indexes = [await sealing.check(sealing.house.request_id(n)) for n in range(60)]
    assert sorted(indexes) == list(range(60))
    assert await sealing.log.check_integrity(sealing.signer.ring) == []
    for each in databases:
        await each.close()


async def test_what_is_being_recorded_is_not_cut_off(sealing: Sealing) -> None:
    await sealing.settle(1)
    async with sealing.house.database.transaction(SETTLER) as slow:
        await insert_events(slow, [sealing.house.event(2)])
        await sealing.settle(3)
        head = await sealing.seal()
        assert head is not None
        assert head.head.size == 1, "nothing recorded since the open transaction began is sealed"
    await sealing.seal()
    assert sorted([await sealing.check(sealing.house.request_id(n)) for n in (1, 2, 3)]) == [0, 1, 2]
    assert await sealing.log.check_integrity() == []


async def test_events_of_one_instant_are_sealed_together_however_many_they_are(sealing: Sealing) -> None:
    async with sealing.house.database.transaction(SETTLER) as connection:
        await insert_events(connection, [sealing.house.event(n) for n in range(7)])
    small = ReceiptLog(sealing.house.database, sealing.signer, replace(AT_ONCE, batch=2))
    await small.seal(clock.now())
    assert [stored.head.size for stored in await small.heads()] == [7]


async def test_a_period_closes_at_a_head_also_where_nothing_was_ever_sealed(sealing: Sealing) -> None:
    empty = await sealing.log.close(clock.now())
    assert (empty.head.size, empty.head.root) == (0, merkle.EMPTY_ROOT)
    assert TreeHead.verify(empty.document, sealing.signer.ring) == empty.head
    assert await sealing.log.close(clock.now()) == empty
    await sealing.settle(1, 2)
    closed = await sealing.log.close(clock.now())
    assert closed.head.size == 2
    assert await sealing.log.close(clock.now() + timedelta(days=1)) == closed, "nothing is new"
    assert [stored.head.size for stored in await sealing.log.heads()] == [0, 2]
    assert await sealing.log.check_integrity(sealing.signer.ring) == []


async def test_heads_are_dated_in_their_order_and_by_a_key_that_was_in_use(sealing: Sealing) -> None:
    now, following = clock.now(), DeploymentKey.generate()
    await sealing.settle(1)
    await sealing.log.seal(now)
    await sealing.settle(2)
    await sealing.log.seal(now - timedelta(days=1))
    rotated_at_s = int(now.timestamp()) + 60
    ring = sealing.signer.ring.rotated(sealing.signer.private, following.public, rotated_at_s)
    rotated = ReceiptLog(sealing.house.database, RingSigner(ring, following.private), AT_ONCE)
    await sealing.settle(3)
    await rotated.seal(now)
    dated = [stored.head.at_s for stored in await rotated.heads()]
    assert dated == [int(now.timestamp())] * 2 + [rotated_at_s]
    assert await rotated.check_integrity(ring) == []
    late = ReceiptLog(sealing.house.database, sealing.signer, AT_ONCE)
    await sealing.settle(4)
    await late.seal(now)
    (fault,) = await rotated.check_integrity(ring)
    assert "the head of size 4 is not signed by the deployment" in fault, "a retired key signs no more"
