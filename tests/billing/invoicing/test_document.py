"""A document says one thing in one way, and every byte of it is signed."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvoiceInvalid
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.party import Party
from billing.invoicing.terms import Fee, Terms
from billing.money import Femto
from engine.proof import signed
from engine.proof.ring import DeploymentRing
from engine.proof.signed import ProofInvalid
from tests.billing.invoicing.examples import Adjustment, Coupon, basis, document, row
from tests.billing.invoicing.test_derive import COUPONS, MONTHS, ROWS

KEY = Ed25519PrivateKey.generate()
RING = DeploymentRing.of(KEY.public_key())
TERMS = Terms(tax_rate="24", fees=(Fee("support", 700, "6"),), tax_note="none")


def small() -> InvoiceDocument:
    of = basis(
        row(1429),
        row(3, 10**12, section="late"),
        terms=TERMS,
        carried_in=Femto(5),
        coupons=(Coupon("C", cents=9),),
    )
    return document(of, seller=Party("Kvitto AB", "Gatan 1\n111 11 Stockholm", "SE", "SE556677889901"))


@given(ROWS, MONTHS, COUPONS.map(tuple), st.integers(0, 10**13 - 1))
def test_what_is_written_is_read_back_and_says_what_it_is_derived_from(
    rows: Any, segments: Any, coupons: Any, carried: int
) -> None:
    of = basis(*rows, segments=segments, coupons=coupons, carried_in=Femto(carried))
    written = document(of)
    read = InvoiceDocument.read(json.loads(signed.canonical(written.to_payload())))
    assert read == written
    assert read.basis == of


def test_a_byte_that_is_changed_anywhere_is_reported() -> None:
    text = signed.sign(KEY, small().to_payload())
    assert InvoiceDocument.verify(text, RING) == small()
    for place, letter in enumerate(text):
        changed = text[:place] + chr(ord(letter) ^ 1 << place % 7) + text[place + 1 :]
        with pytest.raises((ProofInvalid, InvoiceInvalid)):
            InvoiceDocument.verify(changed, RING)


def test_bits_of_base64_that_say_nothing_are_zero() -> None:
    text = signed.sign(KEY, small().to_payload())
    end = text.index('=="}')
    changed = text[: end - 1] + chr(ord(text[end - 1]) + 1) + text[end:]
    with pytest.raises(ProofInvalid):
        InvoiceDocument.verify(changed, RING)


def test_a_key_signs_no_document_from_before_its_time() -> None:
    following = Ed25519PrivateKey.generate()
    at = small().issued_at
    ring = RING.rotated(KEY, following.public_key(), int(at.timestamp()))
    late = signed.sign(KEY, small().to_payload())
    early = msgspec.structs.replace(small(), issued_at=at - timedelta(seconds=1))
    with pytest.raises(ProofInvalid):
        InvoiceDocument.verify(late, ring)
    with pytest.raises(ProofInvalid):
        InvoiceDocument.verify(signed.sign(following, early.to_payload()), ring)
    assert InvoiceDocument.verify(signed.sign(KEY, early.to_payload()), ring) == early
    assert InvoiceDocument.verify(signed.sign(following, small().to_payload()), ring) == small()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "kvitto.receipt.v1"),
        ("document", "receipt"),
        ("number", "../1"),
        ("since", "2026-11-01T00:00:00"),
        ("until", "2025-11-01T00:00:00Z"),
        ("total_cents", 1),
        ("due_cents", 1),
        ("carried_in_femto", "-1"),
        ("carried_in_femto", "05"),
        ("carried_in_femto", 5),
        ("credits", "ACME-1"),
        ("log", None),
        ("terms", []),
        ("issued_at", "2026-12-02T08:30:00.000000Z"),
        ("more", 1),
    ],
)
def test_what_is_no_document_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvoiceInvalid):
        InvoiceDocument.read({**small().to_payload(), field: value})


def test_a_statement_may_be_adjusted_below_its_usage_alone() -> None:
    of = basis(row(5), kind="statement", adjustments=(Adjustment("prepaid", str(-5 * 10**13)),))
    assert document(of).total_cents == 0


def test_a_buyer_is_committed_to_by_a_nonce_that_hides_it() -> None:
    buyer = Party("Acme AB", country="SE")
    assert buyer.commitment(bytes(32)) != buyer.commitment(bytes(31) + b"\x01")
    assert buyer.commitment(bytes(32)) != Party("Acme AB", country="FI").commitment(bytes(32))
