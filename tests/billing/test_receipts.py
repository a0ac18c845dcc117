"""Attestations beside what was billed, on real Postgres: in any order, once; what contradicts is found."""

import asyncio
import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OWNER
from billing.receipts.memo import Memo
from billing.receipts.repository import insert_attestations
from billing.receipts.service import Receipts
from billing.settlement.batch import Settlement
from tests.attested import Signed, decode, prefill

PROMPT = {"prompt_tokens": 1200, "hit_tokens": 1024}


@pytest.fixture
def receipts(house: Any) -> Receipts:
    return Receipts(house.database)


async def test_lines_may_come_before_the_event_and_after_it(
    house: Any, receipts: Receipts, settlement: Settlement
):
    early, late = house.event(1), house.event(2)
    await receipts.keep([Signed(decode(early.request_id, 1, 0, 300))])
    await settlement.settle(early)
    await settlement.settle(late)
    await receipts.keep([Signed(decode(late.request_id, 1, 0, 300))])
    found = await receipts.of([early.request_id, late.request_id])
    assert [receipt.grade for receipt in found.values()] == ["attested", "attested"]


async def test_a_request_without_an_event_has_its_attestations_and_nothing_billed(
    house: Any, receipts: Receipts
):
    said = [prefill(house.request_id(1)), decode(house.request_id(1), 1, 0, 5)]
    await receipts.keep([Signed(one) for one in reversed(said)])
    (receipt,) = (await receipts.of([house.request_id(1)])).values()
    assert (receipt.usage, receipt.attempts, receipt.attestations) == (None, (), tuple(said))
    assert receipt.grade == "unattested"


async def test_of_one_call_and_kind_the_first_stays_however_often_it_comes(house: Any, receipts: Receipts):
    id_ = house.request_id(1)
    first, both_kinds = decode(id_, 0, 0, 5, stage="both"), prefill(id_, stage="both")
    await receipts.keep([Signed(first), Signed(both_kinds), Signed(decode(id_, 0, 0, 9, stage="both"))])
    await receipts.keep([Signed(decode(id_, 0, 0, 7, stage="both"))])
    (receipt,) = (await receipts.of([id_])).values()
    assert set(receipt.attestations) == {first, both_kinds}


async def test_two_that_keep_the_same_lines_at_once_wait_for_each_other_and_never_deadlock(
    house: Any, receipts: Receipts
):
    lines = [Signed(decode(house.request_id(1), attempt, 0, 1)) for attempt in range(3)]
    async with house.database.transaction(OWNER) as blocker:
        await insert_attestations(blocker, [(house.request_id(1), None, lines[1])])
        keeping = [asyncio.create_task(receipts.keep(order)) for order in (lines, lines[::-1])]
        async with asyncio.timeout(10):
            while await waiting_for_locks(house) < 2:
                await asyncio.sleep(0.01)
    await asyncio.gather(*keeping)
    (receipt,) = (await receipts.of([house.request_id(1)])).values()
    assert len(receipt.attestations) == 3


async def waiting_for_locks(house: Any) -> int:
    query = """SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()"""
    async with house.database.transaction(OWNER) as connection:
        return int((await connection.execute(text(query))).scalar_one())


async def test_keeping_lines_and_settling_their_requests_at_once_never_deadlocks(
    house: Any, receipts: Receipts, settlement: Settlement
):
    events = [house.event(n) for n in range(60)]
    lines = [one for event in events for one in event.attestations]
    await asyncio.gather(
        receipts.keep(lines[::-1]), *(settlement.settle(event) for event in events), receipts.keep(lines)
    )
    found = await receipts.of([event.request_id for event in events])
    assert {len(receipt.attestations) for receipt in found.values()} == {1}


async def test_what_cannot_be_kept_is_dropped_alone(house: Any, receipts: Receipts):
    good = house.request_id(1)
    await receipts.keep(
        [
            Signed(prefill("no request of ours")),
            Signed(prefill(house.request_id(2), attempt=2**31)),
            Signed(prefill(house.request_id(3), worker="nul \0")),
            Signed(prefill(good)),
        ]
    )
    found = await receipts.of([house.request_id(n) for n in (1, 2, 3)])
    assert [len(receipt.attestations) for receipt in found.values()] == [1, 0, 0]


async def test_a_line_is_its_tenants_when_its_memo_says_so(house: Any, receipts: Receipts):
    memo = Memo(house.tenant_id, house.key_id, "m", "chat", "row").to_text()
    await receipts.keep([Signed(prefill(house.request_id(n), memo=memo)) for n in (1,)])
    await receipts.keep([Signed(prefill(house.request_id(2), memo="garbage"))])
    async with house.database.transaction(OWNER) as connection:
        rows = await connection.execute(
            text("SELECT tenant_id FROM attestation WHERE request_id IN (:a, :b) ORDER BY request_id"),
            {"a": house.request_id(1), "b": house.request_id(2)},
        )
    assert rows.scalars().all() == [house.tenant_id, None]


async def test_the_certificate_of_each_key_is_kept_with_the_first_line_it_signed(
    house: Any, receipts: Receipts
):
    keys = [f"{house.tenant_id}-{n}" for n in range(2)]
    lines = [Signed(decode(house.request_id(n), 0, 0, 1, worker=f"d{n % 2}"), keys[n % 2]) for n in range(5)]
    await receipts.keep(lines)
    await receipts.keep([replace(lines[0], attestation=decode(house.request_id(9), 0, 0, 1, worker="d9"))])
    async with house.database.transaction(OWNER) as connection:
        kept = await connection.execute(
            text("SELECT key_id, worker, document FROM worker_certificate WHERE key_id = ANY(:ids)"),
            {"ids": keys},
        )
    assert sorted(map(tuple, kept)) == [(key, f"d{n}", f"of {key}") for n, key in enumerate(keys)]


@pytest.mark.parametrize(
    ("said", "finding"),
    [
        (lambda id_: decode(id_, 1, 0, 299), "0 to 299 attested"),
        (lambda id_: decode(id_, 1, 1, 300), "1 to 300 attested"),
        (lambda id_: decode(id_, 1, 0, 300, worker="d2"), "was of d1, not d2"),
        (lambda id_: prefill(id_, **{**PROMPT, "computed": False}), "fewer tokens attested"),
        (lambda id_: prefill(id_, **{**PROMPT, "hit_tokens": 960}), "cache_hit=960"),
        (lambda id_: prefill(id_, **{**PROMPT, "owed_tokens": 64}), "cache_owed=64"),
    ],
    ids=["fewer tokens", "another range", "another worker", "no prompt", "fewer hits", "owed tokens"],
)
async def test_what_contradicts_is_a_finding_and_no_exception(
    house: Any, receipts: Receipts, settlement: Settlement, said: Any, finding: str
):
    event = replace(house.event(), attestations=())
    await settlement.settle(event)
    await receipts.keep([Signed(said(event.request_id))])
    (receipt,) = (await receipts.of([event.request_id])).values()
    assert receipt.grade is None
    assert finding in str(receipt.finding)


async def test_a_prefill_alone_leaves_the_output_to_the_gateways_count(
    house: Any, receipts: Receipts, settlement: Settlement
):
    await settlement.settle(house.event())
    (receipt,) = (await receipts.of([house.request_id(0)])).values()
    assert receipt.grade == "gateway-counted"


async def test_receipts_are_found_by_the_instant_of_their_admission(
    house: Any, receipts: Receipts, settlement: Settlement
):
    await settlement.settle(house.event(7))
    at, millisecond = house.event().admitted_at, timedelta(milliseconds=1)

    async def found(since: Any, until: Any) -> bool:
        return house.request_id(7) in {r.request_id for r in await receipts.admitted_between(since, until)}

    assert await found(at, at + millisecond)
    assert not await found(at - millisecond, at)
    assert not await found(at + millisecond, at + 2 * millisecond)


async def test_of_nine_requests_of_the_engine_and_eight_events_the_missing_one_is_named(
    house: Any, receipts: Receipts, settlement: Settlement
):
    """BerriAI/litellm#13280."""
    served = [house.event(number) for number in range(9)]
    missing = served.pop(4)
    await receipts.keep([*missing.attestations, Signed(decode(missing.request_id, 1, 0, 300))])
    at, millisecond = missing.admitted_at, timedelta(milliseconds=1)

    async def named() -> Any:
        found = await receipts.unbilled_between(at, at + millisecond)
        return [(one.request_id, one.workers, one.usage) for one in found if one.request_id in ids]

    ids = {missing.request_id, *(event.request_id for event in served)}
    await asyncio.gather(*(settlement.settle(event) for event in served))
    assert await named() == [(missing.request_id, ("d1", "p1"), None)]
    await settlement.settle(missing)
    assert await named() == []


@dataclass(frozen=True)
class OldVersion:
    """A document of a kind that is not read any more."""

    attestation: Any

    @property
    def document(self) -> str:
        return json.dumps({"key_id": "old", "payload": {"kind": "kvitto.prefill-attestation.v1"}})

    @property
    def certificate(self) -> str:
        return "of old"


async def test_a_document_of_an_older_kind_is_kept_and_not_graded(house: Any, receipts: Receipts):
    await receipts.keep([OldVersion(prefill(house.request_id(1)))])
    (receipt,) = (await receipts.of([house.request_id(1)])).values()
    assert receipt.attestations == ()


@pytest.mark.parametrize(
    "text_", ["", "null", "[]", '"memo"', "{}", '{"tenant": "t"}', "[" * 100_000, "\0", "{", "NaN"]
)
def test_a_memo_that_is_none_is_no_memo(text_: str):
    assert Memo.read(text_) is None


def test_a_memo_is_read_strictly():
    memo = Memo("ten_a", "key_a", 'm"\\', "chat", "m/USD/2025")
    assert Memo.read(memo.to_text()) == memo
    assert "tier" not in memo.to_text(), "gateways that know no tiers read it, too"
    batch = replace(memo, tier="batch")
    assert Memo.read(batch.to_text()) == batch
    keyed = replace(memo, answers=("00ff", "ab"))
    assert Memo.read(keyed.to_text()) == keyed
    written = json.loads(memo.to_text())
    for answers in (["00ff"], ["00ff", "a"], ["00ff", 7], ["00ff", "zz"], "00ff", ["00ff", "ab", "cd"]):
        assert Memo.read(json.dumps({**written, "answers": answers})) is None
    assert Memo.read(json.dumps({**written, "tier": "priority"})) is None
    assert Memo.read(json.dumps({**written, "extra": "x"})) is None
    assert Memo.read(json.dumps({**written, "tenant": 1})) is None
