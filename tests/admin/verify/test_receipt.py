"""One receipt: what passes every step, and the step that each fault is found by."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from admin.verify.receipt import (
    ATTESTATIONS,
    COVERAGE,
    FORM,
    INCLUSION,
    PRICE,
    REQUEST,
    USAGE,
    CheckedReceipt,
    check,
)
from admin.verify.trust import Pin, Trust, TrustText
from billing.money import Femto
from billing.receipts.bundle import CERTIFICATES, CONSISTENCY, HEADS, PLACEMENTS, PRICES, Contents
from billing.receipts.bundle_reader import Line
from billing.receipts.document import ReceiptDocument
from billing.receipts.head import TreeHead
from billing.receipts.sealed import SealedReceipt, leaf_of
from billing.usage import TokenUsage
from engine.proof import signed
from engine.proof.certificate import DeploymentKey, WorkerCertificate
from engine.proof.coverage import Attempt
from tests.bundles import LATER, PUBLIC, START, Deployment, Request, Served, contents_of, key_of, served_by

HOUSE = Deployment()
SERVED = served_by(HOUSE, 10)
CONTENTS = contents_of(HOUSE, SERVED)


def text_of(contents: Contents) -> TrustText:
    texts = {
        CERTIFICATES: contents.certificates,
        HEADS: contents.heads,
        PRICES: contents.prices,
        PLACEMENTS: contents.placements,
    }
    lines = {
        name: tuple(Line(name, number, text.encode()) for number, text in enumerate(each, 1))
        for name, each in texts.items()
    }
    proofs = (
        Line(CONSISTENCY, number, each.to_line()) for number, each in enumerate(contents.consistency, 1)
    )
    return TrustText(contents.keys, {**lines, CONSISTENCY: tuple(proofs)}, Pin())


TRUST = Trust.of(text_of(CONTENTS))


def sealed_alone(raw: bytes, trust: Trust = TRUST) -> CheckedReceipt:
    """A receipt that was really sealed as these bytes: the only leaf of its log."""
    nonce = bytes(32)
    head = TreeHead(1, leaf_of(nonce, raw), 2**31)
    alone = replace(trust, heads={1: head})
    alone.attestations = trust.attestations
    return check(SealedReceipt(0, nonce, 1, (), raw), alone)


def resealed(**changes: Any) -> CheckedReceipt:
    return sealed_alone(replace(SERVED[0].receipt, **changes).to_bytes())


def test_receipts_of_every_kind_pass_every_step() -> None:
    assert TRUST.findings == []
    checked = [check(sealed, TRUST) for sealed in CONTENTS.receipts]
    assert [each.faults for each in checked] == [{}] * len(SERVED)
    rows = {each.charge.price_row_id for each in checked if each.charge}
    windows = {each.charge.window for each in checked if each.charge}
    assert (len(rows), windows) == (3, {"peak", "night", "standard"})
    assert {each.document.grade for each in checked if each.document} == {
        "attested",
        "gateway-counted",
        "unattested",
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b'"tier"', b'"tier" '),
        lambda raw: raw.replace(b'"tenant"', b'"tenant":"x","tenant"'),
        lambda raw: json.dumps(json.loads(raw), separators=(",", ":"), sort_keys=False)[::-1].encode(),
        lambda raw: raw.replace(b'"key_a"', b'"\\u006bey_a"'),
        lambda raw: raw.replace(b'"output":20', b'"output":20.0'),
    ],
)
def test_what_is_not_canonical_is_no_receipt(spoil: Callable[[bytes], bytes]) -> None:
    raw = SERVED[0].receipt.to_bytes()
    assert sealed_alone(raw).ok
    assert spoil(raw) != raw
    assert list(sealed_alone(spoil(raw)).faults) == [FORM]


def test_a_receipt_is_in_the_log_at_its_place_by_a_head_that_is_known() -> None:
    first, second, *_ = CONTENTS.receipts
    wrong = [
        replace(first, leaf_index=second.leaf_index),
        replace(first, leaf_nonce=second.leaf_nonce),
        replace(first, path=second.path),
        replace(first, path=first.path[:-1]),
        replace(first, tree_size=first.tree_size + 1),
        replace(first, receipt=second.receipt),
    ]
    for sealed in wrong:
        assert list(check(sealed, TRUST).faults) == [INCLUSION]


def test_a_head_is_not_older_than_what_is_in_it() -> None:
    head = next(iter(TRUST.heads.values()))
    last = list(CONTENTS.receipts)[-1]
    old = replace(TRUST, heads={last.tree_size: replace(TRUST.heads[last.tree_size], at_s=head.at_s - 10**7)})
    old.attestations = TRUST.attestations
    assert list(check(last, old).faults) == [INCLUSION]


def certified(deployment: Deployment, **changes: Any) -> Trust:
    """Trust in which the worker w0 is certified otherwise."""
    contents = contents_of(deployment, SERVED)
    fields = {
        "key": deployment.old,
        "worker": "w0",
        "of": key_of("house/w0"),
        "at_s": 1_790_000_000,
        **changes,
    }
    text = WorkerCertificate.issue(
        DeploymentKey(fields["key"]), fields["worker"], fields["of"].public_key(), fields["at_s"]
    )
    return Trust.of(text_of(replace(contents, certificates=[text, *list(contents.certificates)[1:]])))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"of": key_of("stranger")}, [ATTESTATIONS]),
        ({"worker": "w9"}, [ATTESTATIONS]),
        ({"at_s": int(START.timestamp()) + 3_600}, [ATTESTATIONS]),
        ({"key": key_of("stranger")}, [ATTESTATIONS]),
        ({"key": HOUSE.new}, [ATTESTATIONS]),  # which was not in use then
    ],
)
def test_attestations_are_of_workers_that_the_deployment_had_certified(
    changes: Any, found: list[str]
) -> None:
    trust = certified(HOUSE, **changes)
    raw = SERVED[0].receipt.to_bytes()
    faults = sealed_alone(raw, trust).faults
    assert [step for step in faults if step in {ATTESTATIONS, INCLUSION}] == found
    if changes.get("of") is not None:
        assert faults[ATTESTATIONS].startswith("no certificate for key ed25519_")


def attested_otherwise(changes: dict[str, Any], which: int = 0) -> CheckedReceipt:
    """What w0 attests of the first request, signed with another payload."""
    said = list(SERVED[0].receipt.attestations)
    payload = {**json.loads(said[which])["payload"], **changes}
    said[which] = signed.sign(HOUSE.workers["w0"], payload)
    return resealed(attestations=tuple(said))


def memo(**changes: str) -> str:
    known = json.loads(json.loads(SERVED[0].receipt.attestations[0])["payload"]["memo"])
    return json.dumps(known | changes)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, []),
        ({"request_id": str(SERVED[1].receipt.request_id)}, [REQUEST]),
        ({"memo": ""}, [REQUEST]),
        ({"memo": memo(tenant="ten_b")}, [REQUEST]),
        ({"memo": memo(key="key_b")}, [REQUEST]),
        ({"memo": memo(model="n")}, [REQUEST]),
        ({"memo": memo(**{"class": "agent"})}, [REQUEST]),
        ({"memo": memo(price_row=LATER.id)}, [REQUEST]),
        ({"memo": memo(tier="flex")}, [REQUEST]),
        ({"hit_tokens": 128, "hit_store_tokens": 128}, [COVERAGE, USAGE]),
        ({"owed_tokens": 64}, [COVERAGE, USAGE]),
        ({"prompt_tokens": 201}, [COVERAGE, USAGE]),
        ({"worker": "p1"}, [ATTESTATIONS, COVERAGE]),
        ({"attempt": 1}, [COVERAGE]),
        ({"kind": "else"}, [ATTESTATIONS, COVERAGE]),
    ],
)
def test_attestations_are_of_this_request_and_say_what_is_billed(changes: Any, steps: list[str]) -> None:
    assert list(attested_otherwise(changes).faults) == steps


def test_a_forged_attestation_is_found_and_so_is_one_twice() -> None:
    one, two = SERVED[0].receipt.attestations
    forged = signed.sign(key_of("stranger"), json.loads(one)["payload"])
    renamed = json.dumps({**json.loads(forged), "key_id": json.loads(one)["key_id"]})
    for text in (forged, renamed):
        assert ATTESTATIONS in resealed(attestations=(text, two)).faults
    assert list(resealed(attestations=(one, one, two)).faults) == [REQUEST]
    assert list(resealed(attestations=(one,)).faults) == [COVERAGE]


def test_fewer_tokens_attested_than_billed_are_found() -> None:
    assert list(attested_otherwise({"output_to": 19}, 1).faults) == [COVERAGE]
    receipt = SERVED[0].receipt
    usage = replace(receipt.usage, output=21)
    assert set(resealed(usage=usage).faults) == {USAGE, PRICE}
    assert COVERAGE in resealed(attempts=(Attempt(0, "both", "w0", 0, 21),)).faults
    assert USAGE in resealed(attempts=()).faults
    assert USAGE in resealed(status="failed").faults


def test_a_receipt_that_says_itself_that_it_is_contradicted_is_a_finding() -> None:
    checked = attested_otherwise({"hit_tokens": 128, "hit_store_tokens": 128})
    assert checked.document is not None
    finding = checked.faults[COVERAGE].partition("what is attested says ")[2]
    said = replace(checked.document, grade=None, finding=finding)
    assert sealed_alone(said.to_bytes()).faults[COVERAGE].startswith("it contradicts itself")


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"charge": Femto(SERVED[0].receipt.charge + 1)}, [PRICE]),
        ({"charge": Femto(SERVED[0].receipt.charge - 1)}, [PRICE]),
        ({"price_row_id": LATER.id}, [PRICE]),
        ({"window": "night"}, [PRICE]),
        ({"currency": "EUR"}, [REQUEST, PRICE]),
        ({"tier": "flex"}, [REQUEST, PRICE]),
        ({"tier": "batch"}, [REQUEST, PRICE]),
        ({"tenant_id": "ten_b"}, [REQUEST]),
        ({"model": "n"}, [REQUEST, PRICE]),
        ({"rated_at": SERVED[0].receipt.admitted_at - timedelta(seconds=1)}, [PRICE]),
        ({"admitted_at": SERVED[0].receipt.admitted_at + timedelta(seconds=1)}, [REQUEST]),
        ({"usage": TokenUsage(65, 0, 0, 135, 20)}, [COVERAGE, USAGE, PRICE]),
    ],
)
def test_a_receipt_is_rated_by_the_price_book_and_names_what_rated_it(changes: Any, steps: list[str]) -> None:
    assert list(resealed(**changes).faults) == steps


def test_a_row_that_is_gone_or_changed_is_found() -> None:
    raw = SERVED[0].receipt.to_bytes()
    gone = Trust.of(text_of(replace(CONTENTS, prices=list(CONTENTS.prices)[1:])))
    assert "no price for m in USD" in sealed_alone(raw, gone).faults[PRICE]
    dearer = replace(PUBLIC, standard=replace(PUBLIC.standard, miss=PUBLIC.standard.miss + 1))
    changed = replace(TRUST, rows={**TRUST.rows, dearer.id: dearer}, _books={})
    changed.attestations = TRUST.attestations
    assert list(sealed_alone(raw, changed).faults) == [PRICE]


def test_a_request_that_was_rated_at_admission_has_no_later_instant() -> None:
    at = LATER.effective_from + timedelta(hours=1)
    served: Served = HOUSE.serve(Request(77, at=at))
    assert sealed_alone(served.receipt.to_bytes()).ok
    late = replace(served.receipt, rated_at=at + timedelta(seconds=1))
    assert list(sealed_alone(late.to_bytes()).faults) == [PRICE]


def test_an_id_that_is_no_request_id_is_found() -> None:
    receipt: ReceiptDocument = SERVED[0].receipt
    other = replace(receipt, request_id=type(receipt.request_id)(bytes=sha256(b"x").digest()[:16], version=4))
    assert REQUEST in sealed_alone(other.to_bytes()).faults
