"""Holds that a dead process left: each is dropped once, with its charge if it had or has one."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from billing.money import Femto
from gateway.admission.admit import LOST_HOLDS, Admission
from gateway.sweep import SweepReport
from tests.attested import Signed
from tests.gateway.conftest import CREDIT, ROW, House, until
from tests.gateway.doubles import ScriptedJournals
from tests.gateway.sweeping import Orphan, funded, said, sweeper

RATES = ROW.standard
CHARGE = 4 * RATES.hit + 6 * RATES.miss + 5 * RATES.output


async def test_a_lost_hold_without_an_event_is_voided_and_leaves_a_trace(house: House) -> None:
    orphan = await Orphan.of(house)
    assert await sweeper(house).sweep_once() == SweepReport(voided=1)
    assert await house.nothing_happened()
    assert await orphan.recorded_as_lost()
    assert await sweeper(house).sweep_once() == SweepReport()


async def test_a_hold_whose_request_was_settled_is_released_with_the_present_balance(house: House) -> None:
    async with house.chat() as answer:
        settled = UUID(answer.headers["x-request-id"])
    await house.settled()
    admission = await funded(house, 0.0)
    await replay(house, admission, settled)
    await admission.forget(house.tenant_id)
    assert await sweeper(house).sweep_once() == SweepReport(released=1)
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


async def test_a_hold_that_is_renewed_is_left_alone_whatever_is_attested(house: House) -> None:
    admission = await funded(house, 30.0)
    hold = await admission.admit(house.tenant_id, Femto(5))
    orphan = Orphan(house, hold)
    journals = ScriptedJournals([orphan.prefilled(), orphan.decoded(1, 0, 5)])
    assert await sweeper(house, journals).sweep_once() == SweepReport()
    assert (await house.held()).held == 5
    assert await house.rows() == []
    await admission.void(hold)


async def test_a_gateway_that_comes_back_while_journals_are_drained_keeps_its_hold(house: House) -> None:
    orphan = await Orphan.of(house)
    renewing = Admission(house.parts.valkey, lease_s=30.0)
    lines = [orphan.prefilled(), orphan.decoded(1, 0, 5)]
    journals = ScriptedJournals(
        lines, before=lambda: renewing.renew(house.tenant_id, [orphan.hold.request_id])
    )
    assert await sweeper(house, journals).sweep_once() == SweepReport()
    assert (await house.held()).holds
    await renewing.void(orphan.hold)


async def test_gateways_get_to_renew_first_when_valkey_was_away_for_longer_than_a_lease(house: House) -> None:
    orphan = await Orphan.of(house)
    patient = sweeper(house, ScriptedJournals([orphan.prefilled(), orphan.decoded(1, 0, 5)]), grace_s=0.02)
    assert await patient.sweep_once() == SweepReport()
    assert (await house.held()).holds
    renewing = Admission(house.parts.valkey, lease_s=0.0)
    await renewing.renew(house.tenant_id, [orphan.hold.request_id])

    async def swept() -> bool:
        return await patient.sweep_once() == SweepReport(settled=1)

    await until(swept)
    await assert_charged(house)


async def test_a_hold_that_expires_while_journals_are_drained_waits_for_the_next_drain(house: House) -> None:
    orphan: list[Orphan] = []

    async def expire() -> None:
        if not orphan:
            orphan.append(await Orphan.of(house))

    await funded(house, 0.0)
    await house.parts.valkey.call("SADD", "kv:held", house.tenant_id)
    journals = ScriptedJournals(before=expire)
    assert await sweeper(house, journals).sweep_once() == SweepReport()
    journals.lines += [orphan[0].prefilled(), orphan[0].decoded(1, 0, 5)]
    assert await sweeper(house, journals).sweep_once() == SweepReport(settled=1)


async def test_sweepers_at_once_count_each_hold_once(house: House) -> None:
    for _ in range(5):
        await Orphan.of(house, 5)
    reports = await asyncio.gather(*(sweeper(house).sweep_once() for _ in range(3)))
    assert sum(report.voided for report in reports) == 5
    assert (await house.held()).held == 0


async def assert_charged(house: House, requests: int = 1, charge: int = CHARGE) -> None:
    """One event a request, nothing held, books and projection agreeing to the femto-unit."""
    rows = await house.rows()
    assert [row.charge for row in rows] == [charge] * requests
    held = await house.held()
    assert (held.holds, held.held) == ({}, 0)
    assert held.balance == await house.balance() == CREDIT - requests * charge
    assert await house.parts.ledger.check_integrity() == []
    assert await house.admission.check_integrity(house.tenant_id) == []


async def test_what_a_killed_gateway_left_is_settled_from_what_workers_attest(house: House) -> None:
    orphan = await Orphan.of(house)
    journals = ScriptedJournals([orphan.prefilled(), orphan.decoded(1, 0, 5)])
    assert await sweeper(house, journals).sweep_once() == SweepReport(settled=1)
    (row,) = await house.rows()
    assert (row.status, row.cache_hit, row.cache_miss, row.output) == ("completed", 4, 6, 5)
    assert (row.key_id, row.price_row_id) == (house.key_id, ROW.id)
    await assert_charged(house)
    receipt = await orphan.receipt()
    assert (receipt.grade, receipt.finding) == ("attested", None)
    assert not await orphan.recorded_as_lost()
    assert await sweeper(house, journals).sweep_once() == SweepReport()


async def test_a_gateway_killed_during_decode_is_billed_what_the_worker_made_until_it_noticed(
    house: House,
) -> None:
    orphan = await Orphan.of(house)
    journals = ScriptedJournals([orphan.prefilled(), orphan.decoded(1, 0, 5, ended="abort")])
    await sweeper(house, journals).sweep_once()
    assert [row.status for row in await house.rows()] == ["aborted"]
    await assert_charged(house)


@pytest.mark.parametrize("computed", [True, False])
async def test_a_gateway_killed_after_or_in_prefill_is_not_billed(house: House, computed: bool) -> None:
    orphan = await Orphan.of(house)
    journals = ScriptedJournals([orphan.prefilled(computed=computed)])
    assert await sweeper(house, journals).sweep_once() == SweepReport(voided=1)
    assert await house.nothing_happened()
    assert await orphan.recorded_as_lost()
    assert (await orphan.receipt()).attestations == said(orphan.prefilled(computed=computed))


async def test_a_first_token_of_prefill_is_billed_without_a_decode(house: House) -> None:
    orphan = await Orphan.of(house)
    journals = ScriptedJournals([orphan.prefilled(output_to=1)])
    assert await sweeper(house, journals).sweep_once() == SweepReport(settled=1)
    (row,) = await house.rows()
    assert (row.status, row.output) == ("aborted", 1)


async def test_an_output_that_ended_in_an_error_is_recorded_and_costs_nothing(house: House) -> None:
    orphan = await Orphan.of(house)
    journals = ScriptedJournals([orphan.prefilled(), orphan.decoded(1, 0, 5, ended="error")])
    assert await sweeper(house, journals).sweep_once() == SweepReport(settled=1)
    assert [row.status for row in await house.rows()] == ["failed"]
    await assert_charged(house, charge=0)


async def test_lines_that_are_drained_twice_are_kept_and_charged_once(house: House) -> None:
    orphan = await Orphan.of(house)
    lines = [orphan.prefilled(), orphan.decoded(1, 0, 5)]
    for _ in range(2):
        await sweeper(house, ScriptedJournals([*lines, *lines])).sweep_once()
    await assert_charged(house)
    assert (await orphan.receipt()).attestations == said(*lines)


async def test_while_a_worker_cannot_be_asked_a_hold_waits_and_a_late_line_settles_it(house: House) -> None:
    orphan = await Orphan.of(house)
    journals = ScriptedJournals([orphan.prefilled()], unreachable=("decode-0",))
    for _ in range(2):
        assert await sweeper(house, journals).sweep_once() == SweepReport(left=1)
    assert (await house.held()).holds
    journals.lines, journals.unreachable = [orphan.decoded(1, 0, 5)], ()
    assert await sweeper(house, journals).sweep_once() == SweepReport(settled=1)
    await assert_charged(house)


async def test_a_settled_request_is_released_although_a_worker_cannot_be_asked(house: House) -> None:
    async with house.chat() as answer:
        settled = UUID(answer.headers["x-request-id"])
    await house.settled()
    await replay(house, await funded(house, 0.0), settled)
    journals = ScriptedJournals(unreachable=("decode-0",))
    assert await sweeper(house, journals).sweep_once() == SweepReport(released=1)


@pytest.mark.parametrize("attested", [True, False])
async def test_after_a_while_nobody_waits_any_more_for_a_worker_that_is_gone(
    house: House, attested: bool
) -> None:
    orphan = await Orphan.of(house)
    lines = [orphan.prefilled(), orphan.decoded(1, 0, 5)] if attested else [orphan.prefilled()]
    journals = ScriptedJournals(lines, unreachable=("gone",))
    report = await sweeper(house, journals, lost_after_s=0.0).sweep_once()
    assert report == (SweepReport(settled=1) if attested else SweepReport(voided=1))
    await assert_charged(house, int(attested))


async def test_a_line_that_comes_after_its_request_was_voided_charges_nothing(house: House) -> None:
    orphan = await Orphan.of(house)
    await sweeper(house, ScriptedJournals([orphan.prefilled()])).sweep_once()
    late = ScriptedJournals([orphan.decoded(1, 0, 5)])
    assert await sweeper(house, late).sweep_once() == SweepReport()
    assert await house.nothing_happened()
    assert len((await orphan.receipt()).attestations) == 2


async def test_nobody_is_charged_by_a_memo_of_somebody_else_or_of_nobody(house: House) -> None:
    other = await house.parts.tenancy.create_tenant("another", at=ROW.effective_from)
    key = (await house.parts.tenancy.create_key(other.id, "theirs", ROW.effective_from)).key
    lines: list[Signed] = []
    for memo in ("", "garbage", '{"tenant": "ten"}', "[" * 5_000, "\0"):
        orphan = await Orphan.of(house)
        lines += [orphan.prefilled(memo=memo), orphan.decoded(1, 0, 5, memo=memo)]
    for fields in (
        {"tenant_id": other.id},
        {"tenant_id": other.id, "key_id": key.id},
        {"tenant_id": "ten_of_nobody"},
        {"key_id": "key_of_nobody"},
        {"model": "a model without a price"},
        {"model": "nul \0"},
    ):
        lines += (await Orphan.of(house)).with_memo(**fields)
    two_minds = await Orphan.of(house)
    lines += [two_minds.prefilled(), two_minds.with_memo(traffic_class="agent")[1]]
    assert await sweeper(house, ScriptedJournals(lines)).sweep_once() == SweepReport(voided=12)
    assert await house.nothing_happened()
    assert (await house.parts.ledger.balance(other.id)).total == 0


async def test_more_tokens_than_the_books_can_hold_stop_no_sweep(house: House) -> None:
    mad, sane = await Orphan.of(house), await Orphan.of(house)
    lines = [mad.prefilled(), mad.decoded(1, 0, 2**40), sane.prefilled(), sane.decoded(1, 0, 5)]
    assert await sweeper(house, ScriptedJournals(lines)).sweep_once() == SweepReport(voided=1, settled=1)
    await assert_charged(house)


async def test_a_memo_of_a_price_that_is_not_in_the_books_is_rated_by_the_books(house: House) -> None:
    orphan = await Orphan.of(house)
    journals = ScriptedJournals(orphan.with_memo(price_row_id="unpublished"))
    assert await sweeper(house, journals).sweep_once() == SweepReport(settled=1)
    assert [row.price_row_id for row in await house.rows()] == [ROW.id]
    await assert_charged(house)


async def test_sweepers_at_once_charge_each_lost_request_once(house: House) -> None:
    orphans = [await Orphan.of(house) for _ in range(20)]
    lines = [line for one in orphans for line in (one.prefilled(), one.decoded(1, 0, 5))]
    reports = await asyncio.gather(
        *(sweeper(house, ScriptedJournals(list(lines))).sweep_once() for _ in range(3))
    )
    assert sum(report.settled for report in reports) == 20
    assert sum(report.voided for report in reports) == 0
    await assert_charged(house, 20)


def keyed(orphan: Orphan, key: bytes) -> list[Signed]:
    return orphan.with_memo(answers=(key.hex(), b"body".hex()))


async def test_of_lost_requests_under_one_idempotency_key_one_is_charged(house: House) -> None:
    """A wipe takes the claim on the key: its retry is served as if it were the first."""
    key = house.tenant_id.encode()
    lines = [line for _ in range(3) for line in keyed(await Orphan.of(house), key)]
    assert await sweeper(house, ScriptedJournals(lines)).sweep_once() == SweepReport(settled=3)
    assert sorted(row.charge for row in await house.rows()) == [0, 0, CHARGE]
    assert [row.status for row in await house.rows() if not row.charge] == ["failed"] * 2
    assert await house.balance() == CREDIT - CHARGE
    assert await house.parts.ledger.check_integrity() == []


async def test_a_lost_request_that_is_charged_has_answered_its_key_though_the_answer_is_lost(
    house: House,
) -> None:
    orphan, key = await Orphan.of(house), house.tenant_id.encode()
    await sweeper(house, ScriptedJournals(keyed(orphan, key))).sweep_once()
    record = await house.parts.settlement.answered(house.tenant_id, key, orphan.hold.admitted_at)
    assert record is not None
    assert (record.request_id, record.status) == (orphan.hold.request_id, "lost")
    assert record.body_digest == b"body"


async def test_a_lost_request_that_failed_leaves_its_key_to_the_next(house: House) -> None:
    orphan, key = await Orphan.of(house), house.tenant_id.encode()
    memo = replace(orphan.memo, answers=(key.hex(), b"body".hex())).to_text()
    lines = [orphan.prefilled(memo=memo), orphan.decoded(1, 0, 5, memo=memo, ended="error")]
    await sweeper(house, ScriptedJournals(lines)).sweep_once()
    assert [row.charge for row in await house.rows()] == [0]
    assert await house.parts.settlement.answered(house.tenant_id, key, orphan.hold.admitted_at) is None
