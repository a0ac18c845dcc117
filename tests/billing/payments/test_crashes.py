"""A process that dies at any statement of a top-up or a refund: the next one finishes it."""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import event

from billing.db.access import SETTLER
from billing.db.transaction import Database
from billing.errors import StoreUnavailable
from billing.payments.outbox import Outbox
from tests.billing.payments.conftest import Till, known
from tests.billing.payments.telling import ask, asked, credited_once, paid_in, refunds_agree


class FailingDatabase(Database):
    """Fails at the n-th step: a statement, a commit that does not arrive, the answer of one that did."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.steps_left = 10**9
        event.listen(self._engine.sync_engine, "before_cursor_execute", lambda *_: self.step())

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise ConnectionResetError("planted")

    def transaction(self, access: Any = SETTLER) -> Any:
        @asynccontextmanager
        async def failing() -> Any:
            try:
                async with super(FailingDatabase, self).transaction(access) as connection:
                    yield connection
                    self.step()
                self.step()
            except ConnectionResetError as error:
                raise StoreUnavailable(str(error)) from error

        return failing()


async def through_crashes(
    till: Till, database_url: str, work: Callable[[Till, Outbox], Awaitable[None]]
) -> int:
    """Do it for each tenant anew, failing at step 1, 2, 3 … until no step is left; how many there were."""
    failing = FailingDatabase(database_url)
    try:
        for step in range(1, 200):
            one = await known(await till.house.other_tenant(), till.fake, till.stripe)
            one.fake.give_card(one.customer_id)
            failing.steps_left = step
            with suppress(StoreUnavailable):
                await work(one, Outbox(failing, till.stripe))
            crashed = failing.steps_left <= 0
            failing.steps_left = 10**9
            till.fake.at += timedelta(hours=2)
            await work(one, one.outbox)
            if not crashed:
                return step - 1
    finally:
        await failing.close()
    raise AssertionError("it does not end")


async def test_a_top_up_outlives_a_crash_at_any_of_its_statements(till: Till, database_url: str) -> None:
    async def work(one: Till, outbox: Outbox) -> None:
        if one.outbox is not outbox:
            await ask(one)
        for order in await one.payments.orders(one.house.tenant_id):
            await outbox.send(order.id, one.at)
        if one.outbox is outbox:
            await credited_once(one)
            for event in one.fake.events[-4:]:
                await one.deliver(event)
            await credited_once(one)

    assert await through_crashes(till, database_url, work) > 20


async def test_a_refund_outlives_a_crash_at_any_of_its_statements(till: Till, database_url: str) -> None:
    async def work(one: Till, outbox: Outbox) -> None:
        if one.outbox is not outbox:
            payment_id = await paid_in(one)
            await one.payments.refund(asked(payment_id, "40"), one.at)
        for order in await one.payments.orders(one.house.tenant_id):
            await outbox.send(order.id, one.at)
        if one.outbox is outbox:
            (row,) = [row for row in (await one.rows()).values() if row.kind == "payment"]
            await refunds_agree(one, row.id, 4_000)

    assert await through_crashes(till, database_url, work) > 15
