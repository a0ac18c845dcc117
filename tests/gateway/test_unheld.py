"""Requests that workers attest, and that have neither event nor hold: Valkey was wiped, a gateway died."""

import pytest

from billing.money import Femto
from gateway.sweep import SweepReport
from tests.gateway.conftest import CREDIT, ROW, House
from tests.gateway.doubles import ScriptedJournals
from tests.gateway.sweeping import Orphan, funded, sweeper

RATES = ROW.standard
CHARGE = 4 * RATES.hit + 6 * RATES.miss + 5 * RATES.output


@pytest.fixture(autouse=True)
async def settled_before(house: House) -> None:
    """What tests before have left is no longer new."""
    await sweeper(house, late_s=0.0).sweep_once()


async def unheld(house: House) -> Orphan:
    """A request whose gateway died after a wipe had taken its hold."""
    orphan = await Orphan.of(house)
    await house.parts.valkey.call("FLUSHALL")
    return orphan


async def test_what_workers_attest_is_settled_although_a_wipe_took_the_hold_of_a_dead_gateway(
    house: House,
) -> None:
    orphan = await unheld(house)
    lines = [orphan.prefilled(), orphan.decoded(1, 0, 5)]
    late = sweeper(house, ScriptedJournals(lines), late_s=0.0)
    assert await late.sweep_once() == SweepReport(unheld=1)
    (row,) = await house.rows()
    assert (row.status, row.cache_hit, row.cache_miss, row.output) == ("completed", 4, 6, 5)
    assert await house.balance() == CREDIT - CHARGE
    assert (await house.held()).balance == CREDIT - CHARGE
    assert await sweeper(house, late_s=0.0).sweep_once() == SweepReport()


async def test_a_request_without_a_hold_is_left_to_its_gateway_as_long_as_it_may_be_served(
    house: House,
) -> None:
    orphan = await unheld(house)
    lines = [orphan.prefilled(), orphan.decoded(1, 0, 5)]
    assert await sweeper(house, ScriptedJournals(lines)).sweep_once() == SweepReport()
    assert await house.nothing_happened()


async def test_a_request_without_a_hold_waits_for_a_worker_that_cannot_be_asked(house: House) -> None:
    orphan = await unheld(house)
    journals = ScriptedJournals([orphan.prefilled(output_to=1)], unreachable=("decode-0",))
    patient = sweeper(house, journals, late_s=0.0)
    assert await patient.sweep_once() == SweepReport()
    journals.lines, journals.unreachable = [orphan.decoded(1, 1, 5)], ()
    assert await patient.sweep_once() == SweepReport(unheld=1)
    assert [row.output for row in await house.rows()] == [5]


async def test_a_late_line_of_a_request_that_was_voided_charges_nothing_ever(house: House) -> None:
    orphan = await Orphan.of(house)
    await sweeper(house, ScriptedJournals([orphan.prefilled()])).sweep_once()
    late = sweeper(house, ScriptedJournals([orphan.decoded(1, 0, 5)]), late_s=0.0)
    assert await late.sweep_once() == SweepReport()
    assert await house.nothing_happened()


async def test_a_hold_that_stands_is_judged_as_a_hold(house: House) -> None:
    hold = await (await funded(house, 30.0)).admit(house.tenant_id, Femto(5))
    orphan = Orphan(house, hold)
    lines = [orphan.prefilled(), orphan.decoded(1, 0, 5)]
    assert await sweeper(house, ScriptedJournals(lines), late_s=0.0).sweep_once() == SweepReport()
    assert (await house.held()).holds
    assert await house.rows() == []
    await house.admission.void(hold)
