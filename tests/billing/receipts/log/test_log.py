"""The receipt log on real Postgres: what is sealed, what proves it, and who is told."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import combinations, pairwise
from typing import Any

import pytest
from sqlalchemy import text

from admin import clock
from billing.db.access import OPERATOR
from billing.errors import HeadMissing, ReceiptMissing, ReceiptPending
from billing.pricing.rating import rate
from billing.pricing.toml import shipped
from billing.receipts import merkle
from billing.receipts.document import ReceiptDocument
from billing.receipts.log.sequencer import Pace
from billing.receipts.log.service import PAGE, ReceiptLog, erase
from billing.receipts.service import Receipts
from billing.settlement.event import UsageEvent
from billing.settlement.quarantine import Quarantined
from billing.usage import TokenUsage
from engine.proof.attestation import prompt_nonce
from tests.attested import Signed, decode
from tests.billing.conftest import AT_ONCE, MODEL, NOON
from tests.billing.receipts.log.conftest import Sealing


async def read(sealing: Sealing, request_id: Any) -> ReceiptDocument:
    sealed, _ = await sealing.log.inclusion(request_id)
    return ReceiptDocument.read(sealed.receipt)


def nothing(event: UsageEvent, **fields: Any) -> UsageEvent:
    """The same request, of which nothing is billed."""
    usage = TokenUsage.none()
    charge = rate(shipped("demo"), MODEL, "USD", usage, NOON)
    return replace(event, status="failed", usage=usage, charge=charge, attempts=(), **fields)


async def test_a_receipt_says_what_was_billed_and_what_workers_attest(sealing: Sealing) -> None:
    event = sealing.house.event(1)
    await sealing.settlement.settle(event)
    await Receipts(sealing.house.database).keep([Signed(decode(event.request_id, 1, 0, 300))])
    await sealing.seal()
    receipt = await read(sealing, event.request_id)
    assert receipt == ReceiptDocument(
        request_id=event.request_id,
        tenant_id=event.tenant_id,
        key_id=event.key_id,
        model=MODEL,
        traffic_class="chat",
        status="completed",
        admitted_at=NOON,
        rated_at=NOON,
        usage=event.usage,
        reasoning_tokens=0,
        charge=event.charge.amount,
        currency="USD",
        price_row_id=event.charge.price_row_id,
        window=event.charge.window,
        tier="standard",
        attempts=event.attempts,
        grade="attested",
        finding=None,
        attestations=receipt.attestations,
    )
    kinds = [text.split('"kind":"')[1].split('"')[0] for text in receipt.attestations]
    assert kinds == ["kvitto.prefill-attestation.v2", "kvitto.decode-attestation.v1"]


async def test_each_settled_request_has_one_leaf_however_often_the_log_is_sealed(sealing: Sealing) -> None:
    other = await sealing.house.other_tenant()
    await sealing.settle(1, 2)
    first = await sealing.seal()
    assert await sealing.seal() is None, "nothing is new"
    await sealing.settle(1, 2, 3)
    await sealing.settle(4, 5, house=other)
    second = await sealing.seal()
    assert first is not None
    assert second is not None
    assert (first.head.size, second.head.size) == (2, 5)
    mine = [await sealing.check(sealing.house.request_id(n)) for n in (1, 2, 3)]
    theirs = [await sealing.check(other.request_id(n)) for n in (4, 5)]
    assert sorted(mine + theirs) == list(range(5))
    assert sorted(mine[:2]) == [0, 1]
    assert await sealing.log.check_integrity(sealing.signer.ring) == []


async def test_every_status_has_a_receipt_and_what_was_put_aside_has_none(sealing: Sealing) -> None:
    house = sealing.house
    await sealing.settlement.settle(nothing(house.event(1), attestations=()))
    await sealing.settlement.settle(nothing(house.event(2)))
    await sealing.settlement.settle(replace(house.event(3), status="aborted"))
    await sealing.settlement.quarantine(Quarantined(house.request_id(4), house.tenant_id, "impossible", None))
    await sealing.seal()
    receipts = [await read(sealing, house.request_id(n)) for n in (1, 2, 3)]
    assert [(r.status, r.grade, r.charge > 0, len(r.attestations)) for r in receipts] == [
        ("failed", "unattested", False, 0),
        ("failed", "unattested", False, 1),
        ("aborted", "gateway-counted", True, 1),
    ]
    with pytest.raises(ReceiptMissing):
        await sealing.log.inclusion(house.request_id(4))
    assert await sealing.log.check_integrity() == []


async def test_a_contradicted_receipt_is_sealed_with_its_finding(sealing: Sealing) -> None:
    await sealing.settle(1)
    contradicting = Signed(decode(sealing.house.request_id(1), 1, 0, 299))
    await Receipts(sealing.house.database).keep([contradicting])
    await sealing.seal()
    receipt = await read(sealing, sealing.house.request_id(1))
    assert receipt.grade is None
    assert "0 to 299 attested" in str(receipt.finding)


async def test_a_request_waits_until_what_is_attested_of_it_has_had_its_time(sealing: Sealing) -> None:
    usual = ReceiptLog(sealing.house.database, sealing.signer)
    await sealing.settle(1)
    assert await usual.seal(clock.now()) is None
    with pytest.raises(ReceiptPending):
        await usual.inclusion(sealing.house.request_id(1))
    with pytest.raises(ReceiptMissing):
        await usual.inclusion(sealing.house.request_id(2))
    other = await sealing.house.other_tenant()
    with pytest.raises(ReceiptMissing):
        await usual.inclusion(sealing.house.request_id(1), other.tenant_id)


async def test_the_log_waits_for_the_certificates_of_who_attests(sealing: Sealing) -> None:
    house, receipts = sealing.house, Receipts(sealing.house.database)
    patient = ReceiptLog(
        house.database, sealing.signer, replace(AT_ONCE, certificate_late=timedelta(hours=1))
    )
    await sealing.settlement.settle(nothing(house.event(1), attestations=()))
    await sealing.settle(2)
    await sealing.settlement.settle(nothing(house.event(3), attestations=()))
    sealed = await patient.seal(clock.now())
    assert sealed is not None
    assert sealed.head.size == 1, "what was recorded before is sealed, and nothing behind"
    assert await patient.seal(clock.now()) is None
    await receipts.keep([Signed(decode(house.request_id(2), 1, 0, 300))])
    sealed = await patient.seal(clock.now())
    assert sealed is not None
    assert sealed.head.size == 3
    assert await patient.certificates() == ["of test"]
    await sealing.settlement.settle(replace(house.event(4), attestations=(uncertified(house.event(4)),)))
    assert await patient.seal(clock.now()) is None
    assert await sealing.seal() is not None, "not for ever"
    assert await patient.check_integrity() == []


def uncertified(event: UsageEvent) -> Signed:
    return Signed(event.attestations[0].attestation, "another")


async def test_many_are_sealed_in_batches_and_each_head_goes_on_from_those_before(sealing: Sealing) -> None:
    small = ReceiptLog(sealing.house.database, sealing.signer, replace(AT_ONCE, batch=3))
    numbers = range(1, 12)
    await sealing.settle(*numbers)
    await small.seal(clock.now())
    heads = await small.heads()
    assert len(heads) >= 4
    assert [stored.head.size for stored in heads][-1] == len(numbers)
    assert all(b.head.size - a.head.size <= 3 and a.cut < b.cut for a, b in pairwise(heads))
    for first, second in combinations(heads, 2):
        path = await small.consistency(first.head.size, second.head.size)
        merkle.check_consistency(
            (first.head.size, first.head.root), (second.head.size, second.head.root), path
        )
    merkle.check_consistency(
        (0, merkle.EMPTY_ROOT), (11, heads[-1].head.root), await small.consistency(0, 11)
    )
    for number in numbers:
        index = await sealing.check(sealing.house.request_id(number))
        for stored in heads:
            if index < stored.head.size:
                assert await sealing.check(sealing.house.request_id(number), stored) == index
    assert [s.head.size for s in await small.heads(heads[1].head.size, 1)] == [heads[2].head.size]
    assert await small.check_integrity(sealing.signer.ring) == []


async def test_proofs_are_made_for_heads_alone(sealing: Sealing) -> None:
    await sealing.settle(1)
    await sealing.seal()
    await sealing.settle(2, 3)
    await sealing.seal()
    for first, second in ((1, 2), (2, 3), (3, 1), (0, 9), (-1, 3)):
        with pytest.raises(HeadMissing):
            await sealing.log.consistency(first, second)
    for size in (1, 2, -1, 10**30 % 2**63):
        with pytest.raises(HeadMissing):
            await sealing.log.inclusion(sealing.house.request_id(2), size=size)


async def test_a_tenants_receipts_are_read_page_by_page_with_their_paths(sealing: Sealing) -> None:
    other = await sealing.house.other_tenant()
    events = [one.event(n) for n in range(PAGE + 50) for one in (sealing.house, other)]
    await asyncio.gather(*(sealing.settlement.settle(event) for event in events))
    head = await sealing.seal()
    assert head is not None
    found = [sealed async for sealed in sealing.log.receipts(sealing.house.tenant_id)]
    assert len(found) == PAGE + 50
    for sealed in found:
        sealed.check(head.head)
        assert ReceiptDocument.read(sealed.receipt).tenant_id == sealing.house.tenant_id
    indexes = [sealed.leaf_index for sealed in found]
    assert indexes == sorted(indexes)
    ids = [ReceiptDocument.read(sealed.receipt).request_id for sealed in found]
    assert ids != sorted(ids), "shuffled: the order of leaves says nothing"
    some = [s async for s in sealing.log.receipts(sealing.house.tenant_id, indexes[5], indexes[9])]
    assert [s.leaf_index for s in some] == indexes[5:9]
    assert [s async for s in sealing.log.receipts(sealing.house.tenant_id, 5, 5)] == []
    assert [s async for s in sealing.log.receipts("ten_nobody")] == []
    first, _ = await sealing.log.inclusion(ids[0], sealing.house.tenant_id)
    assert first == found[0]
    with pytest.raises(ReceiptMissing):
        await sealing.log.inclusion(ids[0], other.tenant_id)


async def test_after_erasure_the_proofs_of_others_still_hold(sealing: Sealing) -> None:
    other = await sealing.house.other_tenant()
    await sealing.settle(1, 2, 3)
    await sealing.settle(4, house=other)
    head = await sealing.seal()
    async with sealing.house.database.transaction(OPERATOR) as connection:
        assert await erase(connection, sealing.house.tenant_id) == 3
    with pytest.raises(ReceiptMissing):
        await sealing.log.inclusion(sealing.house.request_id(1))
    assert [s async for s in sealing.log.receipts(sealing.house.tenant_id)] == []
    await sealing.check(other.request_id(4), head)
    assert await sealing.log.check_integrity(sealing.signer.ring) == []


async def test_a_nonce_is_told_to_the_key_that_asked_and_to_its_tenants_developers(sealing: Sealing) -> None:
    house, other = sealing.house, await sealing.house.other_tenant()
    await sealing.settle(1)
    request_id, log = house.request_id(1), sealing.log
    told = await log.prompt_nonce(request_id, house.tenant_id, house.key_id)
    assert told == await log.prompt_nonce(request_id, house.tenant_id)
    issued = await house.tenancy.create_key(house.tenant_id, "second", NOON)
    grant = await house.tenancy.find_key(house.tenancy.digest(issued.secret))
    assert grant is not None
    assert prompt_nonce(grant.nonce_secret, request_id) == told
    for tenant_id, key_id in (
        (house.tenant_id, issued.key.id),
        (other.tenant_id, house.key_id),
        (other.tenant_id, None),
    ):
        with pytest.raises(ReceiptMissing):
            await log.prompt_nonce(request_id, tenant_id, key_id)
    async with house.database.transaction(OPERATOR) as connection:
        erasing = text("UPDATE tenant SET nonce_secret = NULL WHERE id = :id")
        await connection.execute(erasing, {"id": house.tenant_id})
    with pytest.raises(ReceiptMissing):
        await log.prompt_nonce(request_id, house.tenant_id)
    erased = await house.tenancy.find_key(house.tenancy.digest(issued.secret))
    assert erased is not None
    assert len(erased.nonce_secret) == 32, "still nobody can guess a prompt"
    assert erased.nonce_secret != grant.nonce_secret


def test_the_usual_pace_is_behind_what_is_served() -> None:
    assert Pace().certificate_late > Pace().late > timedelta(minutes=10)
