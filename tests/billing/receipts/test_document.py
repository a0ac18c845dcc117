"""The sealed receipt: its bytes, its line in a file, its leaf, and the heads that name the log."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

import pytest

from billing.errors import ProofBroken, ReceiptInvalid
from billing.money import Femto
from billing.receipts.document import ReceiptDocument
from billing.receipts.head import TreeHead
from billing.receipts.sealed import SealedReceipt
from billing.usage import TokenUsage
from engine.proof import signed
from engine.proof.certificate import DeploymentKey
from engine.proof.coverage import Attempt
from engine.proof.ring import DeploymentRing
from engine.proof.signed import PayloadInvalid, SignatureInvalid

WORKER = DeploymentKey.generate().private
AT = datetime(2026, 12, 1, 9, 0, 0, 123000, UTC)
RECEIPT = ReceiptDocument(
    request_id=UUID("019ad000-0000-7000-8000-000000000001"),
    tenant_id="tnt_a",
    key_id="key_a",
    model="m",
    traffic_class="chat",
    status="completed",
    admitted_at=AT,
    rated_at=AT,
    usage=TokenUsage(cache_hit=64, cache_owed=0, cache_write=0, cache_miss=10, output=3),
    reasoning_tokens=1,
    charge=Femto(10**17 + 1),
    currency="EUR",
    price_row_id="m/EUR/2026-01-01T00:00:00Z",
    window="standard",
    tier="standard",
    attempts=(Attempt(0, "both", "w0", 0, 3),),
    grade="attested",
    finding=None,
    attestations=(signed.sign(WORKER, {"kind": "x", "å": [1, 2]}),),
)
NO_TOKENS = {"cache_hit": 0, "cache_owed": 0, "cache_write": 0, "cache_miss": 0, "output": 0, "reasoning": 0}


def test_a_receipt_is_read_back_and_is_canonical_json() -> None:
    raw = RECEIPT.to_bytes()
    assert ReceiptDocument.read(raw) == RECEIPT
    assert signed.canonical(json.loads(raw)) == raw


def test_an_attestation_in_a_receipt_still_carries_its_signature() -> None:
    (document,) = ReceiptDocument.read(RECEIPT.to_bytes()).attestations
    ring = {signed.key_id_of(WORKER.public_key()): WORKER.public_key()}
    assert signed.verify(document, ring)["å"] == [1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"charge_femto": "-1"},
        {"charge_femto": "1.5"},
        {"charge_femto": 5},
        {"kind": "kvitto.receipt.v2"},
        {"more": 1},
        {"grade": None},
        {"finding": "said twice"},
        {"status": "lost"},
        {"rated_at": "2026-12-01T09:00:00"},
        {"usage": {**NO_TOKENS, "cache_hit": 1}},
        {"usage": {**NO_TOKENS, "cache_miss": 1, "output": 1, "reasoning": 2}},
        {"attempts": [{"attempt": 0, "stage": "both", "worker": "w", "from": 3, "to": 1}]},
    ],
)
def test_what_is_no_receipt_is_refused(change: dict[str, object]) -> None:
    written = {**json.loads(RECEIPT.to_bytes()), **change}
    with pytest.raises(ReceiptInvalid):
        ReceiptDocument.read(json.dumps(written).encode())


def test_a_line_keeps_the_bytes_that_were_sealed_and_its_leaf_is_salted() -> None:
    sealed = SealedReceipt(0, bytes(32), 1, (), RECEIPT.to_bytes())
    read = SealedReceipt.read(sealed.to_line())
    assert read == sealed
    assert b"\n" not in sealed.to_line()
    inner = sha256(bytes(32) + RECEIPT.to_bytes()).digest()
    assert read.leaf == sha256(b"\x00" + inner).digest()
    read.check(TreeHead(1, read.leaf, 0))
    with pytest.raises(ProofBroken):
        replace(read, leaf_nonce=b"\x01" * 32).check(TreeHead(1, read.leaf, 0))
    with pytest.raises(ProofBroken):
        read.check(TreeHead(2, read.leaf, 0))
    for line in (b"", b"{}", sealed.to_line().replace(b'"00', b'"0', 1), sealed.to_line()[:-2]):
        with pytest.raises(ReceiptInvalid):
            SealedReceipt.read(line)


def test_a_head_is_the_deployments_with_the_key_it_had_then() -> None:
    old, new = DeploymentKey.generate(), DeploymentKey.generate()
    ring = DeploymentRing.of(old.public).rotated(old.private, new.public, 100)
    head = TreeHead(7, sha256(b"").digest(), 99)
    assert TreeHead.verify(head.sign(old.private), ring) == head
    for text in (head.sign(new.private), replace(head, at_s=100).sign(old.private)):
        with pytest.raises(SignatureInvalid):
            TreeHead.verify(text, ring)
    for payload in ({"kind": "kvitto.tree-head.v1", "size": 1, "root": "00", "at_s": 1}, {"kind": "x"}):
        with pytest.raises(PayloadInvalid):
            TreeHead.verify(signed.sign(old.private, payload), ring)
