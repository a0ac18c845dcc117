"""Holds that a dead process left: each is dropped once, with its charge if it had one."""

import asyncio
from uuid import UUID

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from gateway.admission.admit import LOST_HOLDS, Admission
from gateway.sweep import Sweeper, SweepReport
from tests.gateway.conftest import CREDIT, House


def sweeper(house: House) -> Sweeper:
    return Sweeper(house.parts.valkey, house.parts.settlement, house.parts.ledger)


async def funded(house: House, lease_s: float) -> Admission:
    admission = Admission(house.parts.valkey, lease_s=lease_s)
    balance = await house.parts.ledger.balance(house.tenant_id)
    await admission.project(BalanceVersion(house.tenant_id, balance.total, balance.version))
    return admission


async def test_a_lost_hold_without_an_event_is_voided_and_leaves_a_trace(house: House) -> None:
    lost = await (await funded(house, 0.0)).admit(house.tenant_id, Femto(5))
    assert await sweeper(house).sweep_once() == SweepReport(released=0, voided=1)
    assert await house.nothing_happened()
    ((_, fields),) = await house.parts.valkey.call("XRANGE", LOST_HOLDS, "-", "+")
    assert str(lost.request_id) in str(fields)
    assert await sweeper(house).sweep_once() == SweepReport(0, 0)


async def test_a_hold_whose_request_was_settled_is_released_with_the_present_balance(house: House) -> None:
    async with house.chat() as answer:
        settled = UUID(answer.headers["x-request-id"])
    await house.settled()
    admission = await funded(house, 0.0)
    await replay(house, admission, settled)
    await admission.forget(house.tenant_id)
    assert await sweeper(house).sweep_once() == SweepReport(released=1, voided=0)
    held = await house.held()
    assert (held.held, held.balance) == (0, await house.balance())
    assert await house.parts.valkey.call("XLEN", LOST_HOLDS) == 0
    assert len(await house.rows()) == 1
    assert await house.balance() < CREDIT


async def replay(house: House, admission: Admission, request_id: UUID) -> None:
    """Bring Valkey to where it was had the process died between the commit and the release."""
    hold = await admission.admit(house.tenant_id, Femto(7))
    tag = "kv:{" + house.tenant_id + "}"
    for words in (
        ("HDEL", f"{tag}:holds", str(hold.request_id)),
        ("HSET", f"{tag}:holds", str(request_id), "0:7"),
        ("ZREM", f"{tag}:leases", str(hold.request_id)),
        ("ZADD", f"{tag}:leases", 1, str(request_id)),
    ):
        await house.parts.valkey.call(*words)


async def test_a_hold_that_is_renewed_is_left_alone(house: House) -> None:
    admission = await funded(house, 30.0)
    hold = await admission.admit(house.tenant_id, Femto(5))
    assert await sweeper(house).sweep_once() == SweepReport(0, 0)
    assert (await house.held()).held == 5
    await admission.void(hold)


async def test_sweepers_at_once_count_each_hold_once(house: House) -> None:
    admission = await funded(house, 0.0)
    for _ in range(5):
        await admission.admit(house.tenant_id, Femto(5))
    reports = await asyncio.gather(*(sweeper(house).sweep_once() for _ in range(3)))
    assert sum(report.voided for report in reports) == 5
    assert (await house.held()).held == 0
