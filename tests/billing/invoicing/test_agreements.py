"""Terms are dated, appended, and never of a day that was invoiced; profiles can be erased."""

from datetime import date
from typing import Any

import pytest

from billing.audit.event import HOUSE
from billing.db.access import OPERATOR
from billing.errors import InvoiceConflict, TenantMissing, TermsInvalid
from billing.invoicing.agreements.given_coupon import GivenCoupon
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.party import Party
from billing.invoicing.terms import Coupon, Discount, Fee, Terms
from tests.billing.invoicing.conftest import FEBRUARY, NOW, Firm, firm_of

BUYER = Party("Acme AB", "Gatan 1\n111 11 Stockholm", "SE", "SE556677889901", "pay@acme.example")


async def test_of_one_day_the_last_word_holds_and_the_first_is_kept(firm: Firm) -> None:
    await firm.agreed(tax_rate="24")
    await firm.agreed(tax_rate="25")
    assert [one.terms.tax_rate for one in await firm.agreements.terms(firm.tenant_id)] == ["24", "25"]
    await firm.used(100)
    assert (await firm.close())[1].total_cents == 125


async def test_terms_that_change_within_a_period_are_prorated(firm: Firm) -> None:
    await firm.agreed(fees=(Fee("support", 3100),))
    await firm.agreed(date(2025, 3, 11), fees=(Fee("support", 6200),))
    closed = await firm.close()
    assert [line.cents for line in closed[1].document.lines] == [1000, 4200]
    assert [line.cents for line in closed[2].document.lines] == [6200]


async def test_a_day_that_was_invoiced_has_its_terms(firm: Firm) -> None:
    await firm.close()
    with pytest.raises(InvoiceConflict, match="invoiced already"):
        await firm.agreed(date(2025, 5, 31))
    await firm.agreed(date(2025, 6, 1))


async def test_a_series_is_one_tenants_for_good(database: Any, firm: Firm) -> None:
    series = firm.tenant_id[-8:].upper()
    await firm.agreed(series=series)
    await firm.agreed(series="X" + series)
    other = await firm_of(database)
    for taken in (series, "X" + series, firm.tenant_id[4:16].upper()):
        with pytest.raises(InvoiceConflict, match="another tenant"):
            await other.agreed(series=taken)
    assert (await firm.close())[0].number == f"X{series}-1"


@pytest.mark.parametrize(
    "terms",
    [
        {"tax_rate": "24%"},
        {"series": "a-b"},
        {"discounts": (Discount(5, "1"), Discount(5, "2"))},
        {"discounts": (Discount(0, "101"),)},
        {"fees": (Fee("a", 1), Fee("a", 2))},
        {"fees": (Fee("a", 1, "x"),)},
    ],
)
async def test_terms_that_mean_nothing_are_refused(firm: Firm, terms: Any) -> None:
    with pytest.raises(TermsInvalid):
        await firm.agreed(**terms)


@pytest.mark.parametrize(
    "written",
    [{"tax_rate": 24}, {"fees": [{"name": "a", "cents": -1}]}, {"more": 1}, [], {"payment_days": -1}],
)
def test_terms_of_another_form_are_refused(written: Any) -> None:
    with pytest.raises(TermsInvalid):
        Terms.read(written)


async def test_nobody_who_is_not_there_is_agreed_with(firm: Firm) -> None:
    with pytest.raises(TenantMissing):
        await firm.agreements.agree("ten_nobody", date(2025, 2, 1), Terms(), NOW, actor="test")
    with pytest.raises(TenantMissing):
        await firm.agreements.name("ten_nobody", BUYER, NOW, actor="test")
    given = GivenCoupon(Coupon("C", cents=1), None, FEBRUARY.date(), NOW)
    with pytest.raises(TenantMissing):
        await firm.agreements.give_coupon("ten_nobody", given, actor="test")


async def test_a_coupon_has_one_code_and_can_be_taken_back(firm: Firm) -> None:
    given = GivenCoupon(Coupon("C", percent="50"), None, FEBRUARY.date(), NOW)
    await firm.agreements.give_coupon(firm.tenant_id, given, actor="test")
    with pytest.raises(InvoiceConflict):
        await firm.agreements.give_coupon(firm.tenant_id, given, actor="test")
    await firm.agreements.end_coupon(firm.tenant_id, "C", FEBRUARY, actor="test")
    with pytest.raises(InvoiceConflict):
        await firm.agreements.end_coupon(firm.tenant_id, "C", NOW, actor="test")
    await firm.used(100)
    assert (await firm.close())[1].total_cents == 100, "it had ended"
    for off in ({}, {"cents": 1, "percent": "1"}, {"percent": "0"}):
        with pytest.raises(TermsInvalid):
            await firm.agreements.give_coupon(
                firm.tenant_id, GivenCoupon(Coupon("D", **off), None, FEBRUARY.date(), NOW), actor="test"
            )


async def test_a_document_names_the_seller_and_commits_to_a_buyer_who_can_be_erased(firm: Firm) -> None:
    seller = Party("Kvitto AB", country="SE")
    await firm.agreements.name(HOUSE, seller, NOW, actor="test")
    await firm.agreements.name(firm.tenant_id, BUYER, NOW, actor="test")
    invoice = (await firm.close())[0]
    assert invoice.document.seller == seller
    assert invoice.buyer == BUYER
    assert invoice.buyer_nonce is not None
    assert invoice.document.buyer == BUYER.commitment(invoice.buyer_nonce)
    assert "Acme" not in invoice.text
    async with firm.database.transaction(OPERATOR) as connection:
        await firm.agreements.erase(connection, firm.tenant_id)
    erased = await firm.invoicing.invoice(invoice.number)
    assert (erased.buyer, erased.buyer_nonce, erased.text) == (None, None, invoice.text)
    assert await firm.agreements.profile(firm.tenant_id) is None
    assert InvoiceDocument.verify(erased.text, firm.signer.ring) == invoice.document
