"""A period is closed once, by one document, from rollups and from events alike."""

import asyncio
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text

from billing.db.access import OWNER, SETTLER
from billing.errors import PeriodOpen, StoreRefused, UsageUnexplained
from billing.invoicing.covered.repository import MARGIN
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.terms import Discount, Fee
from billing.ledger.balance import BillingTerms
from billing.ledger.credit import Correction, Grant
from billing.money import FEMTO_PER_CENT, Femto
from billing.notify.service import Notices
from tests.billing.invoicing.conftest import (
    APRIL,
    FEBRUARY,
    JUNE,
    MARCH,
    MAY,
    MID_MARCH,
    NOW,
    SECOND,
    Firm,
    firm_of,
)

A_DAY = timedelta(days=1)


def usage_of(document: InvoiceDocument, section: str = "period") -> int:
    return sum(row.tokens for row in document.usage if row.section == section)


async def test_each_period_since_a_tenant_was_made_has_one_document(firm: Firm) -> None:
    await firm.used(100)
    closed = await firm.close(APRIL + MARGIN, rederive=True)
    assert [(each.since, each.until) for each in closed] == [(FEBRUARY, MARCH), (MARCH, APRIL)]
    assert [each.total_cents for each in closed] == [0, 100]
    with pytest.raises(PeriodOpen):
        await firm.close(APRIL + MARGIN)
    (april,) = await firm.close(MAY + A_DAY)
    assert april.document.log.previous.number == closed[1].number
    await firm.sound()


async def test_a_tenant_is_told_of_each_document_once(database: Any, firm: Firm) -> None:
    await firm.used(100)
    closed = await firm.close(APRIL + MARGIN)
    told = [one.notice for one in await Notices(database).notices(firm.tenant_id)]
    said = sorted((one.kind, one.facts["number"], one.facts["total_cents"]) for one in told)
    assert said == sorted(("invoice.finalised", each.number, each.total_cents) for each in closed)
    assert {bool(one.facts["due_cents"]) == (one.facts["due_at"] is not None) for one in told} == {True}


async def test_usage_already_invoiced_is_not_invoiced_again(firm: Firm) -> None:
    """polarsource/polar#6625"""
    await firm.used(100)
    await firm.used(7, APRIL + A_DAY)
    closed = await firm.close(rederive=True)
    assert [each.total_cents for each in closed] == [0, 100, 7, 0]


async def test_a_period_is_half_open(firm: Firm) -> None:
    await firm.used(1, MARCH - timedelta(microseconds=1))
    await firm.used(10, MARCH)
    await firm.used(100, APRIL - timedelta(microseconds=1))
    await firm.used(1000, APRIL)
    assert [each.total_cents for each in await firm.close(rederive=True)] == [1, 110, 1000, 0]


async def test_months_are_those_of_the_tenants_zone(database: Any, firm: Firm) -> None:
    tokyo = await firm_of(database, tz="Asia/Tokyo")
    march = FEBRUARY.replace(month=3, tzinfo=ZoneInfo("Asia/Tokyo"))
    await tokyo.used(1, march - SECOND)
    await tokyo.used(10, march)
    closed = await tokyo.close(rederive=True)
    assert [each.total_cents for each in closed][:2] == [1, 10]
    assert closed[1].document.zone == "Asia/Tokyo"


async def test_a_period_waits_for_what_may_still_be_recorded(firm: Firm) -> None:
    await firm.used(100)
    await firm.used(1, APRIL + timedelta(minutes=5))
    firm.log.cut = APRIL + timedelta(minutes=5)
    (february,) = await firm.invoicing.close(firm.tenant_id, NOW)
    assert february.until == MARCH
    with pytest.raises(PeriodOpen, match="not sealed yet"):
        await firm.invoicing.close(firm.tenant_id, NOW)
    with pytest.raises(PeriodOpen, match="requests of it may be running"):
        await firm.close(APRIL + MARGIN - SECOND)
    (march,) = await firm.close(APRIL + MARGIN)
    assert march.total_cents == 100


async def test_what_was_recorded_late_is_a_section_of_the_next_document_and_edits_none(firm: Firm) -> None:
    await firm.used(100)
    late = await firm.used(5, APRIL - SECOND)
    await firm.recorded(late, APRIL + A_DAY)
    closed = await firm.close(APRIL + MARGIN)
    assert closed[-1].total_cents == 100
    before = closed[-1].text
    await firm.used(30, APRIL + A_DAY)
    (april,) = await firm.close(MAY + A_DAY, rederive=True)
    assert (usage_of(april.document), usage_of(april.document, "late")) == (30, 5)
    assert [line.kind for line in april.document.lines] == ["usage", "late"]
    assert april.total_cents == 35
    assert (await firm.invoicing.invoice(closed[-1].number)).text == before
    await firm.sound()


async def test_a_backlog_is_closed_by_one_head_and_every_event_once(firm: Firm) -> None:
    for at in (MARCH - SECOND, MID_MARCH, APRIL, MAY - SECOND):
        await firm.used(1, at)
        await firm.recorded(await firm.used(1, at), NOW - A_DAY)
    closed = await firm.close(rederive=True)
    assert [each.total_cents for each in closed] == [2, 2, 4, 0]
    assert not any(row.section == "late" for each in closed for row in each.document.usage)


async def test_rollups_that_are_ahead_of_the_cut_are_taken_back_to_it(firm: Firm) -> None:
    await firm.used(100)
    for minutes in (16, 600):
        await firm.recorded(await firm.used(3, APRIL - SECOND), APRIL + timedelta(minutes=minutes))
    assert [each.total_cents for each in await firm.close(APRIL + timedelta(minutes=16), rederive=True)] == [
        0,
        100,
    ]
    assert [each.total_cents for each in await firm.close(rederive=True)] == [6, 0]


async def test_amounts_under_a_cent_wait_for_their_cent(firm: Firm) -> None:
    """doublewordai/control-layer#227"""
    for at in (MID_MARCH, APRIL, MAY):
        await firm.used(3_000_000, at, model="fine")
    closed = await firm.close(MAY + 40 * A_DAY, rederive=True)
    exact = 3 * 3_000_000 * 1_234_567
    assert sum(each.total_cents for each in closed) == exact // FEMTO_PER_CENT == 1
    assert closed[-1].document.carried_out == exact % FEMTO_PER_CENT
    carried = [each.document.carried_in for each in closed[1:]]
    assert carried == [each.document.carried_out for each in closed[:-1]]
    await firm.sound()


async def test_two_who_close_at_once_issue_one_document_and_leave_no_gap(firm: Firm) -> None:
    await firm.used(100)
    firm.log.cut = NOW
    both = await asyncio.gather(
        *(firm.invoicing.close(firm.tenant_id, NOW) for _ in range(3)), return_exceptions=True
    )
    issued = [each for one in both if isinstance(one, list) for each in one]
    assert all(isinstance(one, list | PeriodOpen) for one in both)
    assert sorted(each.until for each in issued) == [MARCH, APRIL, MAY, JUNE]
    assert len({each.number for each in issued}) == 4
    assert sorted(int(each.number.rpartition("-")[2]) for each in issued) == [1, 2, 3, 4]
    await firm.sound()


async def test_a_crash_before_the_end_leaves_nothing_and_its_number_is_given_again(firm: Firm) -> None:
    await firm.used(100)
    async with firm.database.transaction(OWNER) as connection:
        await connection.execute(
            text(
                "ALTER TABLE audit_event ADD CONSTRAINT ck_crash"
                " CHECK (action <> 'invoice.finalise') NOT VALID"
            )
        )
    with pytest.raises(StoreRefused):
        await firm.close()
    assert await firm.invoicing.invoices(firm.tenant_id) == []
    async with firm.database.transaction(OWNER) as connection:
        await connection.execute(text("ALTER TABLE audit_event DROP CONSTRAINT ck_crash"))
    closed = await firm.close()
    assert [int(each.number.rpartition("-")[2]) for each in closed] == [1, 2, 3, 4]


async def test_a_document_is_signed_and_changed_by_nobody(firm: Firm) -> None:
    await firm.used(100)
    closed = (await firm.close())[1]
    assert InvoiceDocument.verify(closed.text, firm.signer.ring) == closed.document
    for statement in (
        "UPDATE invoice SET document = ''",
        "UPDATE invoice_line SET cents = 0",
        "DELETE FROM invoice",
    ):
        with pytest.raises(Exception, match="permission denied"):
            async with firm.database.transaction(SETTLER) as connection:
                await connection.execute(text(statement))


async def test_a_prepaid_tenant_gets_a_statement_of_nothing_due(database: Any, firm: Firm) -> None:
    prepaid = await firm_of(database, "prepaid")
    await prepaid.ledger.grant(prepaid.tenant_id, Grant(Femto(60 * FEMTO_PER_CENT), "granted", "w", "t"), NOW)
    await prepaid.agreed(tax_rate="24", fees=(Fee("support", 700),), commitment_cents=10**6)
    await prepaid.used(100)
    statement = (await prepaid.close(rederive=True))[1]
    assert (statement.kind, statement.state, statement.total_cents) == ("statement", "paid", 0)
    assert [line.cents for line in statement.document.lines] == [100, -100]
    assert statement.number.rpartition("-")[2] == "S2"
    balance = await prepaid.ledger.balance(prepaid.tenant_id)
    assert (balance.granted, balance.topped_up) == (0, -40 * FEMTO_PER_CENT), "as it was"


async def test_who_changes_how_it_pays_is_invoiced_for_what_credit_has_not_paid(
    database: Any, firm: Firm
) -> None:
    changing = await firm_of(database, "prepaid")
    await changing.ledger.grant(changing.tenant_id, Grant(Femto(10**18), "topped_up", "w", "t"), NOW)
    await changing.used(40)
    await changing.ledger.agree(changing.tenant_id, BillingTerms("postpaid", Femto(10**18)), NOW, actor="t")
    await changing.used(60)
    invoice = (await changing.close(rederive=True))[1]
    assert [(line.kind, line.cents) for line in invoice.document.lines] == [("usage", 100), ("prepaid", -40)]
    assert (invoice.total_cents, invoice.credits_applied_cents) == (60, 60)
    await changing.sound()


async def test_credit_is_applied_in_its_order_to_the_total_including_tax(firm: Firm) -> None:
    """getlago/lago-api#4642: 14.29 plus 24 % tax, paid from credits: 17.72 taken, total 0.00."""
    await firm.agreed(tax_rate="24")
    for kind, amount in (("granted", 1000), ("topped_up", 5000)):
        await firm.ledger.grant(firm.tenant_id, Grant(Femto(amount * FEMTO_PER_CENT), kind, "w", "t"), NOW)
    await firm.used(1429)
    invoice = (await firm.close())[1]
    assert (invoice.total_cents, invoice.credits_applied_cents, invoice.due_cents) == (1772, 1772, 0)
    assert (invoice.state, invoice.granted_cents) == ("paid", 1000)
    balance = await firm.ledger.balance(firm.tenant_id)
    assert (balance.granted, balance.topped_up) == (0, (5000 - 772) * FEMTO_PER_CENT)
    await firm.sound()


async def test_what_was_paid_on_account_counts_before_credit(firm: Firm) -> None:
    await firm.used(100)
    await firm.ledger.grant(firm.tenant_id, Grant(Femto(130 * FEMTO_PER_CENT), "topped_up", "w", "t"), NOW)
    assert (await firm.ledger.balance(firm.tenant_id)).receivable == 0, "paid before it is invoiced"
    await firm.used(50, APRIL)
    closed = await firm.close()
    assert [(each.total_cents, each.due_cents) for each in closed][1:3] == [(100, 0), (50, 20)]
    await firm.sound()


async def test_corrections_are_taken_off_before_tax_and_added_where_they_favour_the_house(firm: Firm) -> None:
    await firm.agreed(tax_rate="25")
    await firm.used(100)
    for cents, favours in ((30, "tenant"), (10, "house")):
        correction = Correction(Femto(cents * FEMTO_PER_CENT), favours, "wrong", "t")
        await firm.ledger.post(firm.tenant_id, correction, NOW)
    closed = await firm.close()
    assert [line.cents for line in closed[0].document.lines] == [], "nothing to take it off"
    assert [line.cents for line in closed[1].document.lines] == [100, -20]
    assert closed[1].total_cents == 80 + 20
    await firm.sound()


async def test_fees_discounts_and_tax_have_their_accounts(firm: Firm) -> None:
    await firm.agreed(tax_rate="24", fees=(Fee("support", 700, "6"),), discounts=(Discount(50, "10"),))
    await firm.used(100)
    invoice = (await firm.close())[1]
    assert invoice.total_cents == 100 - 5 + 700 + 23 + 42
    async with firm.database.transaction(OWNER) as connection:
        found = await connection.execute(
            text(
                "SELECT account, amount FROM ledger_entry JOIN invoice USING (transaction_id)"
                " WHERE number = :n"
            ),
            {"n": invoice.number},
        )
        entries = {row.account: row.amount // FEMTO_PER_CENT for row in found}
    assert entries == {"fees": 700, "discounts": -5, "tax_payable": 65, "receivable": -760}
    await firm.sound()


async def test_a_price_row_that_rates_otherwise_than_was_settled_is_named(firm: Firm) -> None:
    event = await firm.used(100)
    await firm.spoil(event)
    with pytest.raises(UsageUnexplained, match="m/USD/2025-01-01T00:00:00Z"):
        await firm.close()


async def test_rollups_that_differ_from_the_events_are_found_by_deriving_again(firm: Firm) -> None:
    await firm.used(100)
    await firm.close(APRIL + MARGIN)
    await firm.used(7, APRIL)
    firm.log.cut = NOW
    await firm.invoicing.preview(firm.tenant_id)
    sealed = await firm.invoicing._seal(NOW)
    async with firm.database.transaction(OWNER) as connection:
        await connection.execute(
            text(
                "UPDATE usage_rollup SET cache_miss = 8, charge = charge / 7 * 8"
                " WHERE slot = :at AND tenant_id = :t"
            ),
            {"at": APRIL, "t": firm.tenant_id},
        )
    with pytest.raises(UsageUnexplained, match="rollups and events differ: period m"):
        await firm.invoicing._close_next(firm.tenant_id, sealed, NOW, "t", rederive=True)


async def test_a_preview_is_of_the_running_period_and_issues_nothing(firm: Firm) -> None:
    await firm.used(100)
    await firm.close(APRIL + MARGIN)
    await firm.used(30, APRIL + A_DAY)
    firm.log.cut = NOW
    await firm.invoicing._seal(NOW)
    preview = await firm.invoicing.preview(firm.tenant_id)
    assert (preview.number, preview.since, preview.total_cents) == ("DRAFT", APRIL, 30)
    assert len(await firm.invoicing.invoices(firm.tenant_id)) == 2


async def test_all_tenants_are_closed_and_one_that_cannot_be_holds_up_no_other(
    database: Any, firm: Firm
) -> None:
    other = await firm_of(database)
    await other.used(5)
    event = await firm.used(100)
    await firm.spoil(event)
    firm.log.cut = NOW
    issued, failed = await firm.invoicing.close_due(NOW)
    assert {each.total_cents for each in issued if each.tenant_id == other.tenant_id} == {0, 5}
    assert isinstance(failed[firm.tenant_id], UsageUnexplained)
