"""The verdict can fail: in books where all is well, each fault that is planted is found, by its name."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.receipts.receipt import Receipt
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt
from tests.attested import decode, prefill
from tests.chaos.client import Question, Seen
from tests.scenarios import verdict
from tests.scenarios.books import Books, Row
from tests.scenarios.client import Errand

AT = datetime(2026, 12, 1, tzinfo=UTC)
MODEL = "m"
ROW = PriceRow(MODEL, "USD", AT, "admitted", Rates(hit=1, miss=10, output=100))
WHOLE, BROKEN, DEAD = (str(UUID(int=number)) for number in (1, 2, 3))


def receipt(request_id: str, billed: int, attested: int) -> Receipt:
    """A prompt of 10 tokens, 4 of them hits, and so many tokens of output."""
    said = (
        prefill(request_id, hit_tokens=4, stage="both", worker="w"),
        decode(request_id, 0, 0, attested, stage="both", worker="w"),
    )
    usage = TokenUsage(4, 0, 0, 6, billed)
    return Receipt.of(UUID(request_id), usage, (Attempt(0, "both", "w", 0, billed),), said)


def row(request_id: str, status: str, output: int, client: int) -> dict[str, Any]:
    charge = (4 * 1 + 6 * 10 + output * 100) / Decimal(10**15)
    counts = {"cache_hit": 4, "cache_owed": 0, "cache_write": 0, "cache_miss": 6, "output": output}
    names = {"tenant": "t", "key": f"client {client}", "model": MODEL, "currency": "USD"}
    rated = {"rated_at": AT.isoformat(), "charge": str(charge)}
    return {"request_id": request_id, "status": status, **names, **counts, **rated}


def charges(rows: Iterable[Row]) -> dict[str, Decimal]:
    return {each["request_id"]: Decimal(each["charge"]) for each in rows}


def errand(client: int, key: str | None, **seen: Any) -> Errand:
    question = Question(client, "t", "secret", "Hi", max_tokens=5, streamed=True, leave_s=None)
    return Errand(client, question, key, [Seen(question, status=200, **seen)])


def world() -> tuple[list[Errand], Books]:
    """One answer that was seen to its end, one that broke off under an idempotency key; all is well."""
    told = {"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6, "completion_tokens": 5}
    errands = [
        errand(1, None, request_id=WHOLE, ending="complete", text="a b c d e", finish="length", usage=told),
        errand(2, "key", request_id=BROKEN, ending="error", pieces=2, error="RemoteProtocolError: gone"),
    ]
    rows = [row(WHOLE, "completed", 5, 1), row(BROKEN, "aborted", 3, 2)]
    return errands, Books(
        rows=rows,
        receipts={WHOLE: receipt(WHOLE, 5, 5), BROKEN: receipt(BROKEN, 3, 4)},
        sealed=charges(rows),
        log=[],
        unsettled=[replace(receipt(DEAD, 0, 0), attestations=(prefill(DEAD, computed=False),))],
        quarantined=[],
        spent={"t": sum((Decimal(each["charge"]) for each in rows), Decimal(0))},
        price=PriceBook((ROW,)),
        holds={"t": 0},
        faults=[],
        tokens=lambda text: len(text.split()),
    )


def test_nothing_is_found_where_all_is_well() -> None:
    assert verdict.findings(*world()) == []


def found(errands: list[Errand], books: Books) -> set[str]:
    return {finding.partition(":")[0] for finding in verdict.findings(errands, books)}


def with_rows(books: Books, *rows: Row) -> Books:
    """Other events, of which the ledger and the log say the same."""
    spent = sum((Decimal(each["charge"]) for each in rows), Decimal(0))
    return replace(books, rows=rows, spent={"t": spent}, sealed=charges(rows))


def test_two_events_of_a_request_are_found() -> None:
    errands, books = world()
    assert verdict.ONE_EVENT in found(errands, with_rows(books, *books.rows, books.rows[0]))


def test_an_answer_without_an_event_is_found() -> None:
    errands, books = world()
    assert found(errands, with_rows(books, books.rows[1])) == {verdict.ONE_EVENT}


def test_attested_output_without_an_event_is_found() -> None:
    errands, books = world()
    assert found(errands, replace(books, unsettled=[receipt(DEAD, 0, 1)])) == {verdict.ONE_EVENT}


def test_two_requests_of_one_id_are_found_but_not_an_answer_that_is_given_again() -> None:
    errands, books = world()
    again = replace(errands[0], seen=[*errands[0].seen, replace(errands[0].seen[0], replayed=True)])
    assert found([again, errands[1]], books) == set()
    again.seen[1].replayed = False
    assert found([again, errands[1]], books) == {verdict.ONE_EVENT}


def test_a_ledger_that_says_another_sum_is_found() -> None:
    errands, books = world()
    spent = {"t": books.spent["t"] + Decimal(1) / 10**15}
    assert found(errands, replace(books, spent=spent)) == {verdict.SUMS}


def test_what_is_not_sealed_or_for_another_charge_is_found_and_what_the_logs_audit_finds() -> None:
    errands, books = world()
    unsealed = {WHOLE: books.sealed[WHOLE]}
    other = {**books.sealed, BROKEN: Decimal(1)}
    for changed in ({"sealed": unsealed}, {"sealed": other}, {"log": ["leaf 2 is missing"]}):
        assert found(errands, replace(books, **changed)) == {verdict.SEALED}


def test_receipts_of_another_sum_are_found_though_the_buckets_sum_to_the_same() -> None:
    errands, books = world()
    prompt = prefill(WHOLE, hit_tokens=5, stage="both", worker="w")
    other = replace(books.receipts[WHOLE], attestations=(prompt, books.receipts[WHOLE].attestations[1]))
    assert verdict.SUMS in found(errands, replace(books, receipts={**books.receipts, WHOLE: other}))


@pytest.mark.parametrize(
    "changed",
    [
        {"usage": {"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6, "completion_tokens": 4}},
        {"usage": {"prompt_cache_hit_tokens": 3, "prompt_cache_miss_tokens": 7, "completion_tokens": 5}},
        {"text": "a b c d e f"},
        {"text": "a b c d"},
        {"finish": "stop"},
    ],
)
def test_an_end_that_shows_other_tokens_than_are_billed_is_found(changed: dict[str, Any]) -> None:
    errands, books = world()
    errands[0].seen[0] = replace(errands[0].seen[0], **changed)
    assert found(errands, books) == {verdict.SEEN_TO_THE_END}


def test_an_end_that_is_billed_as_an_abort_is_found() -> None:
    errands, books = world()
    rows = [{**books.rows[0], "status": "aborted"}, books.rows[1]]
    assert found(errands, replace(books, rows=rows)) == {verdict.SEEN_TO_THE_END}


def test_an_answer_that_was_cut_before_its_length_is_found() -> None:
    errands, books = world()
    errands[0].question = replace(errands[0].question, max_tokens=6)
    assert found(errands, books) == {verdict.SEEN_TO_THE_END}


def test_more_tokens_with_a_client_than_are_billed_are_found() -> None:
    errands, books = world()
    errands[1].seen[0].pieces = 4
    assert found(errands, books) == {verdict.SEEN_IN_PART}
    errands[1].seen[0].pieces = 3
    assert found(errands, books) == set()


def test_a_request_that_its_retry_made_cost_nothing_is_no_finding() -> None:
    errands, books = world()
    nothing = dict.fromkeys(verdict.BUCKETS, 0)
    disowned = {**books.rows[1], **nothing, "status": "failed", "charge": "0"}
    empty = Receipt.of(UUID(BROKEN), TokenUsage.none(), (), books.receipts[BROKEN].attestations)
    books = replace(with_rows(books, books.rows[0], disowned), receipts={**books.receipts, BROKEN: empty})
    assert found(errands, books) == set()
    errands[1].key = None
    assert found(errands, books) == {verdict.SEEN_IN_PART}


def test_more_billed_than_attested_is_found() -> None:
    errands, books = world()
    broken = replace(books, receipts={**books.receipts, BROKEN: receipt(BROKEN, 3, 2)})
    assert found(errands, broken) == {verdict.ATTESTED}


def test_output_that_nobody_attests_is_found() -> None:
    errands, books = world()
    attempts = books.receipts[BROKEN].attempts
    silent = Receipt.of(UUID(BROKEN), None, attempts, books.receipts[BROKEN].attestations[:1])
    assert silent.finding is None
    assert found(errands, replace(books, receipts={**books.receipts, BROKEN: silent})) == {verdict.ATTESTED}


@pytest.mark.parametrize(("error", "rule"), [("503 no", {verdict.ERRORS}), ("503 charge_unknown", set())])
def test_a_charge_for_an_error_is_found_unless_it_says_that_this_is_open(error: str, rule: set[str]) -> None:
    errands, books = world()
    errands[1].seen[0] = replace(errands[1].seen[0], status=503, error=error)
    assert found(errands, books) == rule


def test_a_stream_that_just_ends_is_found() -> None:
    errands, books = world()
    errands[1].seen[0].error = ""
    assert found(errands, books) == {verdict.ERRORS}


def test_a_second_charge_under_a_key_is_found() -> None:
    errands, books = world()
    again = row(DEAD, "completed", 3, 2)
    books = replace(books, receipts={**books.receipts, DEAD: receipt(DEAD, 3, 3)})
    assert found(errands, with_rows(books, *books.rows, again)) == {verdict.ONE_CHARGE}


def test_two_answers_under_a_key_are_found() -> None:
    errands, books = world()
    errands[0].key = "other"
    errands[0].seen.append(replace(errands[0].seen[0], request_id=DEAD))
    nothing = {**row(DEAD, "completed", 5, 9)}
    books = replace(books, receipts={**books.receipts, DEAD: receipt(DEAD, 5, 5)})
    assert found(errands, with_rows(books, *books.rows, nothing)) == {verdict.ONE_CHARGE}


def test_a_hold_that_stands_is_found() -> None:
    errands, books = world()
    assert found(errands, replace(books, holds={"t": 1})) == {verdict.HOLDS}


def test_what_the_ledger_says_of_itself_is_found() -> None:
    errands, books = world()
    assert found(errands, replace(books, faults=["entries of x sum to 1, not 0"])) == {verdict.POSTINGS}


def test_usage_that_was_put_aside_is_a_fault_of_ours() -> None:
    errands, books = world()
    assert found(errands, replace(books, quarantined=["5 output tokens of no call"])) == {verdict.POSSIBLE}
