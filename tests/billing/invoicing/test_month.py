"""The month that an invoice is for: prices change, requests fail, promises break, and it adds up."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from admin.verify.bundle import check_bundle
from admin.verify.invoice import Invoices
from admin.verify.trust import Pin
from billing.db.transaction import Database
from billing.invoicing.customer_bundle import CustomerBundles
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.invoice import Invoice
from billing.invoicing.service import Invoicing
from billing.invoicing.settling import Deliberate, Settling
from billing.ledger.service import Ledger
from billing.money import FEMTO_PER_CENT
from billing.pricing.document import row_sha256
from billing.receipts.log.service import ReceiptLog
from engine.proof.ring import RingSigner
from tests.billing.conftest import AT_ONCE
from tests.billing.invoicing.month import APRIL_OVER, MARCH_OVER, Member, Month, Recorded, charged
from tests.conftest import run_apart


@dataclass(frozen=True)
class Closed:
    month: Month
    traffic: list[Recorded]
    invoices: dict[str, list[Invoice]]
    signer: RingSigner
    bundles: Path

    def of(self, name: Any) -> tuple[Member, list[Recorded], list[Invoice]]:
        member = self.month.members[name]
        own = [one for one in self.traffic if one.member is member]
        return member, own, self.invoices[name]


@pytest.fixture(scope="module")
def closed(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Closed:
    """Each tenant's periods until April, the first ones by a head that did not have the late request."""
    found: Closed = run_apart(close_all(database_url, tmp_path_factory.mktemp("bundles")))
    return found


async def close_all(database_url: str, folder: Path) -> Closed:
    database = Database(database_url)
    month = await Month.furnish(database)
    *traffic, late = month.traffic(120)
    signer = RingSigner(month.ring, month.deployment.private)
    log = ReceiptLog(database, signer, AT_ONCE)
    invoicing = Invoicing(database, row_sha256, log, signer, lag=timedelta(0))
    invoices: dict[str, list[Invoice]] = {}
    await month.settle(traffic)
    for at in (MARCH_OVER, APRIL_OVER):
        for name, member in month.members.items():
            issued = await invoicing.close(member.tenant_id, at, rederive=True)
            invoices.setdefault(name, []).extend(issued)
        if at == MARCH_OVER:
            await month.settle_late(late)
    for name, member in month.members.items():
        await CustomerBundles(database, log, signer).write(
            member.tenant_id, folder / f"{name}.zip", APRIL_OVER
        )
    await database.close()
    return Closed(month, [*traffic, late], invoices, signer, folder)


def rated_in(own: list[Recorded], period: Any) -> list[Recorded]:
    return [one for one in own if period.since <= one.event.rated_at < period.until]


async def test_a_month_is_invoiced_to_the_femto_unit(closed: Closed, database: Database) -> None:
    for name in ("north", "east", "west"):
        member, own, (february, march, april) = closed.of(name)
        assert march.document.period == member.march
        exact, carried = charged(own), 0
        for invoice in (february, march, april):
            document = InvoiceDocument.verify(invoice.text, closed.signer.ring)
            assert document.carried_in == carried
            prepaid = sum(each.amount for each in document.adjustments)
            cents = sum(line.cents for line in document.lines if line.kind in {"usage", "late", "prepaid"})
            used = sum(row.amount for row in document.usage)
            assert used + prepaid + carried == cents * FEMTO_PER_CENT + document.carried_out
            carried, exact = document.carried_out, exact - used
        assert exact == 0, "all of it, once"
    assert await Ledger(database).check_integrity() == []


def test_march_has_both_schemes_and_both_sides_of_the_change(closed: Closed) -> None:
    _, _, (_, march, _) = closed.of("north")
    rated = {(row.price_row, row.window) for row in march.document.usage}
    assert {window for row, window in rated if row.startswith("deepseek-chat")} == {"standard", "offpeak"}
    assert {row for row, _ in rated if row.startswith("deepseek-v4-pro")} == {
        "deepseek-v4-pro/USD/2025-01-01T00:00:00Z",
        "deepseek-v4-pro/USD/2025-03-16T16:00:00Z",
        "deepseek-v4-pro/USD/2025-03-22T16:00:00Z",
    }
    assert {"peak", "offpeak"} <= {window for row, window in rated if "2025-03-22" in row}


def test_what_was_recorded_late_is_aprils_and_what_it_broke_is_said(closed: Closed) -> None:
    _, own, (_, march, april) = closed.of("north")
    late = own[-1].event
    assert {row.section for row in march.document.usage} == {"period"}
    late_rows = [row for row in april.document.usage if row.section == "late"]
    assert sum(row.amount for row in late_rows) == late.charge.amount
    owed = sum(one.event.usage.cache_owed for one in rated_in(own[:-1], closed.month.members["north"].march))
    assert march.document.cache.owed_tokens == owed > 0
    cache = march.document.cache
    assert int(cache.broken_promises_femto) > 0
    assert int(cache.uncached_femto) == int(cache.charged_femto) + int(cache.saved_femto)


def test_north_owes_usage_fees_and_tax_less_discount_coupon_and_credit(closed: Closed) -> None:
    _, _, (_, march, april) = closed.of("north")
    kinds = [line.kind for line in march.document.lines if line.kind != "usage"]
    assert kinds == ["discount", "fee", "fee", "coupon", "coupon"]
    assert [line.text for line in march.document.lines if line.kind == "fee"] == [
        "support (10 of 31 days)",
        "support (21 of 31 days)",
    ]
    assert [tax.rate for tax in march.document.tax] == ["6", "24"]
    assert march.number == "NORTH-2"
    assert march.due_cents == march.total_cents - march.credits_applied_cents
    assert "coupon" not in {line.kind for line in april.document.lines}, "once"
    assert march.buyer is not None


def test_east_pays_its_commitment_and_west_has_a_statement(closed: Closed) -> None:
    _, _, (february, march, _) = closed.of("east")
    assert sum(line.cents for line in march.document.lines) == 100_000
    assert sum(line.cents for line in february.document.lines) == 100_000, "agreed for all of it"
    _, own, (_, statement, _) = closed.of("west")
    assert (statement.kind, statement.total_cents) == ("statement", 0)
    assert sum(row.amount for row in statement.document.usage) == charged(
        rated_in(own, closed.month.members["west"].march)
    )


async def test_a_credit_note_gives_back_a_line_and_its_tax(closed: Closed, database: Database) -> None:
    _, _, (_, march, _) = closed.of("north")
    position = max(range(len(march.document.lines)), key=lambda place: march.document.lines[place].cents)
    settling = Settling(database, closed.signer)
    note, _ = await settling.credit(march.number, {position: 100}, Deliberate("slow", "test", APRIL_OVER))
    assert note.number == "NORTH-C1"
    assert note.total_cents in {106, 124}
    document = InvoiceDocument.verify(note.text, closed.signer.ring)
    assert document.credits == march.number
    assert await Ledger(database).check_integrity() == []


@pytest.mark.parametrize("name", ["north", "east", "west"])
def test_each_customer_verifies_its_month_offline_from_its_bundle(closed: Closed, name: str) -> None:
    _, own, invoices = closed.of(name)
    report = check_bundle(closed.bundles / f"{name}.zip", Pin(), jobs=1, invoices=Invoices())
    assert list(report.findings) == []
    assert (report.receipts, report.verified) == (len(own), len(own))
    assert len(report.invoices) == len(invoices) == 3
    assert report.femto == {"USD": charged(own)}
