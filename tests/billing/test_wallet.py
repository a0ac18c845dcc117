from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import AmountExceeds, AmountInvalid
from billing.ledger.balance import PREPAID, BillingTerms
from billing.ledger.credit import Correction, Grant, Refund, WriteOff
from billing.ledger.entries import TENANTS_ACCOUNTS, Account, Transaction
from billing.ledger.wallet import Wallet
from billing.money import Femto
from billing.request_id import mint

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def empty() -> Wallet:
    return Wallet("ten_1", Femto(0), Femto(0), 1, [])


def credit(wallet: Wallet, amount: int, kind: Any = "granted", ends: int | None = None, day: int = 0) -> Any:
    expires_at = None if ends is None else START + ends * DAY
    lot_id = mint(START + day * DAY, len(wallet.changed).to_bytes(10, "big"))
    wallet.credit(lot_id, Grant(Femto(amount), kind, "why", "who", expires_at), START + day * DAY)
    return lot_id


def test_granted_credit_is_used_first_and_the_sooner_expiring_of_it_before():
    wallet = empty()
    paid = credit(wallet, 100, "topped_up")
    forever = credit(wallet, 100)
    later = credit(wallet, 100, ends=9)
    sooner = credit(wallet, 100, ends=3)
    entries = wallet.charge(Femto(350))
    assert [(entry.lot_id, entry.amount) for entry in entries] == [
        (sooner, -100),
        (later, -100),
        (forever, -100),
        (paid, -50),
        (None, 350),
    ]
    assert (wallet.granted, wallet.topped_up) == (0, 50)


def test_what_no_credit_covers_becomes_debt():
    wallet = empty()
    credit(wallet, 100)
    wallet.charge(Femto(130))
    assert (wallet.granted, wallet.topped_up, wallet.balance.balance) == (0, -30, -30)


def test_credit_pays_debt_first():
    wallet = empty()
    wallet.charge(Femto(30))
    credit(wallet, 100)
    assert (wallet.granted, wallet.topped_up) == (70, 0)
    credit(wallet, 5, "topped_up")
    assert (wallet.granted, wallet.topped_up) == (70, 5)


def test_credit_that_only_pays_debt_leaves_an_empty_lot():
    wallet = empty()
    wallet.charge(Femto(30))
    lot = credit(wallet, 10)
    assert wallet.changed[lot].remaining == 0
    assert (wallet.granted, wallet.topped_up, wallet.lots) == (0, -20, [])


def test_only_what_remains_of_ended_credit_is_taken_back():
    wallet = empty()
    credit(wallet, 100, ends=3)
    credit(wallet, 100, ends=4)
    wallet.charge(Femto(40))
    entries = wallet.expire(START + 3 * DAY)
    assert {entry.account: entry.amount for entry in entries} == {Account.GRANTED: -60, Account.PROMOTION: 60}
    assert wallet.granted == 100


def test_a_charge_of_nothing_has_no_entries():
    assert empty().charge(Femto(0)) == ()


@pytest.mark.parametrize("amount", [0, -1])
def test_only_a_positive_amount_can_be_granted(amount: int):
    with pytest.raises(AmountInvalid):
        Grant(Femto(amount), "granted", "why", "who")


def test_a_transaction_whose_entries_do_not_sum_to_zero_cannot_be_made():
    wallet = empty()
    (debt, revenue) = wallet.charge(Femto(7))
    with pytest.raises(AssertionError):
        Transaction(mint(START, bytes(10)), "ten_1", "charge", START, (revenue,))
    Transaction(mint(START, bytes(10)), "ten_1", "charge", START, (debt, revenue))


AMOUNT = st.integers(1, 10**30)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("credit"),
            AMOUNT,
            st.sampled_from(["granted", "topped_up"]),
            st.none() | st.integers(0, 20),
        ),
        st.tuples(st.sampled_from(["charge", "refund", "write_off", "give_back", "draw_more"]), AMOUNT),
        st.tuples(st.just("expire"), st.integers(0, 20)),
    ),
    max_size=20,
)


MOVES: dict[str, Any] = {
    "refund": lambda amount: Refund(amount, "why", "who"),
    "write_off": lambda amount: WriteOff(amount, "why", "who"),
    "give_back": lambda amount: Correction(amount, "tenant", "why", "who"),
    "draw_more": lambda amount: Correction(amount, "house", "why", "who"),
}


@given(st.sampled_from([PREPAID, BillingTerms("postpaid", Femto(5))]), STEPS)
def test_whatever_happens_entries_sum_to_zero_and_balances_are_their_sums(
    terms: BillingTerms, steps: list[tuple[Any, ...]]
):
    wallet, entries = replace(empty(), terms=terms), []
    for number, (step, *rest) in enumerate(steps):
        lot_id = mint(START, number.to_bytes(10, "big"))
        if step == "charge":
            added = wallet.charge(Femto(rest[0]))
        elif step == "expire":
            added = wallet.expire(START + rest[0] * DAY)
        elif step == "credit":
            amount, kind, ends = rest
            grant = Grant(Femto(amount), kind, "why", "who", None if ends is None else START + ends * DAY)
            added = wallet.move(lot_id, grant, START)
            assert sum(e.amount for e in added if e.account in TENANTS_ACCOUNTS) == amount
        else:
            before = replace(wallet, lots=[replace(lot) for lot in wallet.lots], changed=dict(wallet.changed))
            try:
                added = wallet.move(lot_id, MOVES[step](Femto(rest[0])), START)
            except AmountExceeds:
                assert wallet == before
                continue
        assert sum(entry.amount for entry in added) == 0
        entries += added
    for account, kept in (
        (Account.GRANTED, wallet.granted),
        (Account.TOPPED_UP, wallet.topped_up),
        (Account.RECEIVABLE, wallet.receivable),
    ):
        assert kept == sum(e.amount for e in entries if e.account is account)
    for lot in wallet.changed.values():
        assert lot.remaining == sum(e.amount for e in entries if e.lot_id == lot.id)
    owed = max(0, -wallet.topped_up) - wallet.receivable
    assert wallet.balance.balance == (
        wallet.granted + wallet.topped_up if terms == PREPAID else terms.credit_limit - owed
    )
