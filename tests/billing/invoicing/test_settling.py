"""Documents are paid, credited, void and given up; the ledger follows to the cent."""

from typing import Any

import pytest

from billing.audit.service import Audit
from billing.db.access import SETTLER
from billing.errors import InvoiceConflict, InvoiceMissing, ReasonMissing, TenantMissing
from billing.invoicing.agreements.given_coupon import GivenCoupon
from billing.invoicing.invoice import Invoice, Payment
from billing.invoicing.settling import Deliberate
from billing.invoicing.terms import Coupon, Fee
from billing.invoicing.top_ups import PaidIn, tax_cents, top_up_document
from billing.ledger.credit import Grant
from billing.money import FEMTO_PER_CENT, Femto
from tests.billing.invoicing.conftest import FEBRUARY, NOW, Firm, firm_of

CENT = FEMTO_PER_CENT


async def invoiced(firm: Firm, tokens: int = 1000, **terms: Any) -> Invoice:
    """An invoice of so many cents of usage, 24 % tax, and a fee of 5.00 at 6 %."""
    await firm.agreed(**{"tax_rate": "24", "fees": (Fee("support", 500, "6"),), **terms})
    await firm.used(tokens)
    february, march, *_ = await firm.close()
    await firm.settling.void(february.number, firm.why("before it began"))
    return march


def paying(invoice: Invoice, cents: int, reference: str = "transfer-1") -> Payment:
    return Payment(invoice.number, cents, "transfer", reference, NOW, "test")


async def now(firm: Firm, invoice: Invoice) -> Invoice:
    return await firm.invoicing.invoice(invoice.number)


async def test_an_invoice_is_paid_in_parts_and_one_reference_pays_once(firm: Firm) -> None:
    invoice = await invoiced(firm)
    assert invoice.due_cents == 1000 + 500 + 240 + 30
    owed = (await firm.ledger.balance(firm.tenant_id)).receivable
    assert await firm.settling.pay(paying(invoice, 1000)) is not None
    assert await firm.settling.pay(paying(invoice, 1000)) is None, "told twice"
    assert ((await now(firm, invoice)).state, (await now(firm, invoice)).open_cents) == ("finalised", 770)
    with pytest.raises(InvoiceConflict, match="another amount"):
        await firm.settling.pay(paying(invoice, 999))
    with pytest.raises(InvoiceConflict, match="770 cents are open"):
        await firm.settling.pay(paying(invoice, 771, "transfer-2"))
    await firm.settling.pay(paying(invoice, 770, "transfer-2"))
    assert ((await now(firm, invoice)).state, (await now(firm, invoice)).open_cents) == ("paid", 0)
    assert [each.cents for each in await firm.settling.payments(invoice.number)] == [1000, 770]
    assert (await firm.ledger.balance(firm.tenant_id)).receivable == owed + 1770 * CENT
    await firm.sound()


async def test_an_invoice_that_is_not_there_is_not_paid(firm: Firm) -> None:
    with pytest.raises(InvoiceMissing):
        await firm.settling.pay(Payment("NONE-1", 1, "transfer", "r", NOW, "test"))


async def test_what_is_open_after_its_day_is_overdue(firm: Firm) -> None:
    invoice = await invoiced(firm, payment_days=10)
    assert invoice.due_at is not None
    assert invoice.number not in {each.number for each in await firm.invoicing.overdue(invoice.due_at)}
    later = invoice.due_at.replace(year=2026)
    assert invoice.number in {each.number for each in await firm.invoicing.overdue(later)}
    await firm.settling.pay(paying(invoice, invoice.due_cents))
    assert invoice.number not in {each.number for each in await firm.invoicing.overdue(later)}


async def test_a_void_invoice_was_given_back_in_full_by_a_credit_note(firm: Firm) -> None:
    await firm.ledger.grant(firm.tenant_id, Grant(Femto(400 * CENT), "granted", "w", "t"), NOW)
    await firm.ledger.grant(firm.tenant_id, Grant(Femto(300 * CENT), "topped_up", "w", "t"), NOW)
    await firm.agreed(tax_rate="24")
    await firm.used(1000)
    invoice = (await firm.close())[1]
    assert (invoice.credits_applied_cents, invoice.due_cents) == (700, 540)
    note, _ = await firm.settling.void(invoice.number, firm.why("wrong tenant"))
    assert (note.kind, note.total_cents, note.credits) == ("credit_note", 1240, invoice.number)
    assert note.document.reason == "wrong tenant"
    assert note.number.rpartition("-")[2] == "C1"
    after = await now(firm, invoice)
    assert (after.state, after.open_cents, after.text) == ("void", 0, invoice.text)
    balance = await firm.ledger.balance(firm.tenant_id)
    assert (balance.granted, balance.topped_up, balance.receivable) == (400 * CENT, 300 * CENT, 0)
    await firm.sound()
    for again in (firm.settling.void(invoice.number, firm.why()), firm.settling.pay(paying(invoice, 1))):
        with pytest.raises(InvoiceConflict):
            await again


async def test_what_was_paid_becomes_credit_again_and_only_the_open_part_is_taken_off(firm: Firm) -> None:
    invoice = await invoiced(firm)
    await firm.settling.pay(paying(invoice, 1700))
    with pytest.raises(InvoiceConflict):
        await firm.settling.void(invoice.number, firm.why())
    note, _ = await firm.settling.credit(invoice.number, {0: 100}, firm.why("slow answers"))
    assert (note.total_cents, [tax.tax_cents for tax in note.document.tax]) == (124, [24])
    after = await now(firm, invoice)
    assert (after.state, after.credited_cents, after.open_cents) == ("paid", 70, 0)
    assert (await firm.ledger.balance(firm.tenant_id)).topped_up == 54 * CENT
    await firm.sound()
    rest, _ = await firm.settling.credit(invoice.number, None, firm.why())
    assert rest.total_cents == 1770 - 124
    assert (await now(firm, invoice)).state == "paid", "it was"
    assert (await firm.ledger.balance(firm.tenant_id)).topped_up == 1700 * CENT
    await firm.sound()
    with pytest.raises(InvoiceConflict, match="nothing to credit"):
        await firm.settling.credit(invoice.number, None, firm.why())


async def test_an_invoice_that_is_given_up_is_bad_debt_and_no_longer_open(firm: Firm) -> None:
    invoice = await invoiced(firm)
    owed = (await firm.ledger.balance(firm.tenant_id)).receivable
    await firm.settling.give_up(invoice.number, firm.why("insolvent"))
    assert ((await now(firm, invoice)).state, (await now(firm, invoice)).open_cents) == ("uncollectible", 0)
    assert (await firm.ledger.balance(firm.tenant_id)).receivable == owed + 1770 * CENT
    assert await firm.ledger.check_integrity() == []
    for again in (
        firm.settling.give_up(invoice.number, firm.why()),
        firm.settling.credit(invoice.number, None, firm.why()),
        firm.settling.pay(paying(invoice, 1)),
    ):
        with pytest.raises(InvoiceConflict):
            await again


async def test_statements_and_credit_notes_are_not_credited(database: Any, firm: Firm) -> None:
    prepaid = await firm_of(database, "prepaid")
    await prepaid.used(5)
    statement = (await prepaid.close())[1]
    note, _ = await firm.settling.void((await invoiced(firm)).number, firm.why())
    for number in (statement.number, note.number):
        with pytest.raises(InvoiceConflict, match="is not credited"):
            await firm.settling.credit(number, None, firm.why())


async def test_whoever_does_something_says_why_and_it_is_in_the_audit_log(firm: Firm) -> None:
    with pytest.raises(ReasonMissing):
        Deliberate(" ", "test", NOW)
    invoice = await invoiced(firm)
    await firm.settling.pay(paying(invoice, 1))
    await firm.settling.credit(invoice.number, {0: 1}, firm.why())
    await firm.settling.give_up(invoice.number, firm.why())
    audit = Audit(firm.database)
    actions = [event.deed.action for event in await audit.events(firm.tenant_id)]
    assert actions[-3:] == ["invoice.pay", "invoice.credit", "invoice.uncollectible"]
    assert await audit.verify(firm.tenant_id) == []


async def test_a_coupon_is_used_in_so_many_periods_and_comes_back_from_a_void_one(firm: Firm) -> None:
    given = GivenCoupon(Coupon("ONCE", cents=300), 1, FEBRUARY.date(), FEBRUARY)
    await firm.agreements.give_coupon(firm.tenant_id, given, actor="test")
    await firm.used(1000)
    await firm.used(1000, NOW.replace(month=4))
    closed = await firm.close()
    assert [each.total_cents for each in closed] == [0, 700, 1000, 0]
    await firm.settling.void(closed[1].number, firm.why())
    assert [each.used for each in await firm.agreements.coupons(firm.tenant_id)] == [0]


async def test_a_top_up_has_one_document_with_its_tax(database: Any, firm: Firm) -> None:
    prepaid = await firm_of(database, "prepaid")
    await prepaid.agreed(tax_rate="24")
    paid = PaidIn(prepaid.tenant_id, 10_000, "pi_1", NOW, "stripe")
    for _ in range(2):
        async with database.transaction(SETTLER) as connection:
            assert await tax_cents(connection, prepaid.tenant_id, 10_000, NOW) == 2_400
            document = await top_up_document(connection, prepaid.signer, paid)
    assert (document.kind, document.total_cents, document.due_cents) == ("top_up", 12_400, 0)
    assert document.state == "paid"
    assert document.number.rpartition("-")[2] == "T1"
    assert len(await prepaid.invoicing.invoices(prepaid.tenant_id)) == 1
    other = PaidIn(prepaid.tenant_id, 9_999, "pi_1", NOW, "stripe")
    with pytest.raises(InvoiceConflict):
        async with database.transaction(SETTLER) as connection:
            await top_up_document(connection, prepaid.signer, other)
    note, _ = await prepaid.settling.credit(document.number, {0: 5_000}, prepaid.why("refunded"))
    assert note.total_cents == 6_200
    assert await prepaid.ledger.check_integrity() == []
    with pytest.raises(TenantMissing):
        async with database.transaction(SETTLER) as connection:
            await tax_cents(connection, "ten_nobody", 1, NOW)
