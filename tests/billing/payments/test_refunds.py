"""Refunds of ours: once in the ledger and once at Stripe, whatever fails between."""

from datetime import timedelta

import pytest

from billing.errors import AmountExceeds, MovementConflict, PaymentUnknown
from billing.ledger.credit import Correction
from tests.billing.conftest import NOON
from tests.billing.payments.conftest import Till
from tests.billing.payments.stripe_wire import FAULTS, Fault
from tests.billing.payments.telling import UNIT, asked, paid_in, refunds_agree, send


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_refund_is_made_once_here_and_once_at_stripe(till: Till, fault: Fault) -> None:
    payment_id = await paid_in(till)
    for _ in range(2):
        refunded = await till.payments.refund(asked(payment_id, "40"), till.at)
        assert refunded.amount == 40 * UNIT
    assert await till.cents() == 6_000
    till.fake.wire.faults[len(till.fake.wire.calls) + 1] = fault
    await send(till)
    await till.deliver_all()
    assert (await send(till, later=timedelta(hours=1))).outcome == "done"
    await till.deliver_all()
    await refunds_agree(till, payment_id, 4_000)
    refund = next(row for row in (await till.rows()).values() if row.kind == "refund")
    assert (refund.order_id, refund.legs) == (refunded.order_id, 1)


async def test_no_more_is_paid_back_than_remains_of_the_payment_or_of_the_credit(till: Till) -> None:
    payment_id = await paid_in(till)
    await paid_in(till, 500)
    await till.payments.refund(asked(payment_id, "30", "first"), till.at)
    with pytest.raises(AmountExceeds, match="rest of the payment, which is 70"):
        await till.payments.refund(asked(payment_id, "70.01", "second"), till.at)
    await send(till)
    with pytest.raises(AmountExceeds, match="which is 70"):
        await till.payments.refund(asked(payment_id, "71", "second"), till.at)
    with pytest.raises(MovementConflict):
        await till.payments.refund(asked(payment_id, "31", "first"), till.at)
    used = Correction(10 * UNIT, "house", "used", "test")
    await till.house.ledger.post(till.house.tenant_id, used, NOON)
    with pytest.raises(AmountExceeds, match="paid credit"):
        await till.payments.refund(asked(payment_id, None, "all"), till.at)
    for odd in ("pi_nobody", next(row.id for row in (await till.rows()).values() if row.kind == "refund")):
        with pytest.raises(PaymentUnknown):
            await till.payments.refund(asked(odd, "1"), till.at)


async def test_a_refund_that_stripe_refuses_is_undone_in_our_books(till: Till) -> None:
    payment_id = await paid_in(till)
    till.fake.make_refund(payment_intent=payment_id)  # by hand, and nobody has told us yet
    await till.payments.refund(asked(payment_id, None), till.at)
    refused = await send(till)
    assert refused.outcome == "failed"
    assert "charge_already_refunded" in (refused.reason or "")
    assert await till.cents() == 10_000
    await till.deliver_all()
    await refunds_agree(till, payment_id, 10_000)


async def test_an_order_of_another_amount_does_not_pass_a_refund_for_ours(till: Till) -> None:
    payment_id = await paid_in(till)
    refunded = await till.payments.refund(asked(payment_id, "10"), till.at)
    metadata = {"kvitto_order": refunded.order_id}
    till.fake.make_refund(payment_intent=payment_id, amount="2500", metadata=metadata)
    await till.deliver_all()
    await send(till)
    await till.deliver_all()
    await refunds_agree(till, payment_id, 3_500)
