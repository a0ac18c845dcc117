"""What must hold after a crash storm. A finding begins with the rule that it breaks; none is what we want."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from billing.money import decimal_of
from billing.pricing.rating import rate
from billing.receipts.receipt import Receipt
from billing.usage import TokenUsage
from engine.proof.attestation import DecodeAttestation, PrefillAttestation
from tests.chaos.client import Seen
from tests.scenarios.books import Books, Row
from tests.scenarios.client import Errand, key_name

ONE_EVENT: Final = "one usage event a request"
SUMS: Final = "events = ledger = receipts"
SEALED: Final = "each event is sealed once, for what it has cost"
SEEN_TO_THE_END: Final = "counted to the end is what is billed"
SEEN_IN_PART: Final = "counted in part <= billed"
ATTESTED: Final = "billed <= attested"
ERRORS: Final = "an error bills nothing"
ONE_CHARGE: Final = "one charge an idempotency key"
POSSIBLE: Final = "no usage that cannot be"
HOLDS: Final = "no open hold after the sweep"
POSTINGS: Final = "postings sum to zero"
BUCKETS: Final = ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output")
# The codes of `ChargeUnknown`; and what is told to who had joined a request that is gone (`OriginalFailed`).
OPEN: Final = ("charge_unknown", "that was answering this idempotency key has failed")


def findings(errands: Sequence[Errand], books: Books) -> list[str]:
    """Look at what clients asked and saw, and at the books when all is over."""
    rules = {
        ONE_EVENT: _events(errands, books),
        SUMS: _sums(books),
        SEALED: _sealed(books),
        SEEN_TO_THE_END: _complete(errands, books),
        SEEN_IN_PART: _partial(errands, books),
        ATTESTED: _attested(books),
        ERRORS: _errors(errands, books),
        ONE_CHARGE: _keys(errands, books),
        POSSIBLE: iter(books.quarantined),
        HOLDS: (f"{tenant} holds {count}" for tenant, count in books.holds.items() if count),
        POSTINGS: iter(books.faults),
    }
    return [f"{rule}: {fault}" for rule, faults in rules.items() for fault in faults]


def _events(errands: Sequence[Errand], books: Books) -> Iterator[str]:
    counted = Counter(row["request_id"] for row in books.rows)
    yield from (f"{request_id} has {count} events" for request_id, count in counted.items() if count > 1)
    for receipt in books.unsettled:
        if any(one.output_to for one in receipt.attestations):  # else it was lost before it got anything
            yield f"{receipt.request_id} has no event, but {len(receipt.attestations)} attestations"
    own = Counter(seen.request_id for _, seen in _all(errands) if seen.status == 200 and not seen.replayed)
    yield from (f"{request_id} answered {count} requests" for request_id, count in own.items() if count > 1)
    for errand, seen in _all(errands):
        if seen.ending == "complete" and not counted[seen.request_id]:
            yield f"{errand.name} was answered by {seen.request_id}, which has none"


def _sums(books: Books) -> Iterator[str]:
    for tenant, spent in books.spent.items():
        rows = [row for row in books.rows if row["tenant"] == tenant]
        events = sum((Decimal(row["charge"]) for row in rows), Decimal(0))
        receipts = sum((_by_receipt(books, row) for row in rows), Decimal(0))
        if not events == spent == receipts:
            yield f"{tenant}: events {events}, ledger {spent}, receipts {receipts}"
        for bucket in BUCKETS:
            billed = sum(row[bucket] for row in rows)
            proven = sum(getattr(_proven(books.receipts[row["request_id"]]), bucket) for row in rows)
            if billed != proven:
                yield f"{tenant}: {billed} tokens of {bucket} in events, {proven} in receipts"


def _sealed(books: Books) -> Iterator[str]:
    yield from books.log
    for row in books.rows:
        sealed = books.sealed.get(row["request_id"])
        if sealed != Decimal(row["charge"]):
            yield f"{row['request_id']}: charged {row['charge']}, sealed {sealed}"


def _complete(errands: Sequence[Errand], books: Books) -> Iterator[str]:
    for errand, seen in _all(errands):
        row = books.row(seen.request_id)
        if seen.ending != "complete" or row is None:
            continue
        usage = seen.usage
        told = (
            usage["prompt_cache_hit_tokens"], usage["prompt_cache_miss_tokens"], usage["completion_tokens"]
        )  # fmt: skip
        billed = (row["cache_hit"] + row["cache_owed"], row["cache_miss"] + row["cache_write"], row["output"])
        if told != billed or row["status"] != "completed":
            yield f"{errand.name}: told {told}, billed {billed} ({row['status']}, {row['request_id']})"
        counted = _counted(seen, books)
        cut_off = seen.finish == "length"
        if counted != row["output"] or (cut_off and counted != errand.question.max_tokens):
            yield (
                f"{errand.name}: {seen.text!r} ({seen.finish}), {errand.question.max_tokens} tokens at most,"
                f" counted {counted}, billed {row['output']} ({row['request_id']})"
            )


def _counted(seen: Seen, books: Books) -> int:
    """Tokens of a whole answer. The one that ends it has no text; blanks at a cut may be any number."""
    if seen.text.rstrip() != seen.text:
        return int(seen.usage["completion_tokens"])
    return books.tokens(seen.text) + (seen.finish == "stop")


def _partial(errands: Sequence[Errand], books: Books) -> Iterator[str]:
    for errand, seen in _all(errands):
        if seen.ending == "complete" or not seen.pieces or _told_error(seen):
            continue
        row = books.row(seen.request_id)
        # Who asks again by a key first sees to it that a dead request costs nothing (`gateway.retries`).
        disowned = errand.key is not None and row is not None and row["status"] == "failed"
        billed = 0 if row is None else row["output"]
        if seen.pieces > billed and not disowned:
            yield f"{errand.name}: {seen.pieces} pieces, billed {billed} ({seen.request_id}, {seen.ending})"


def _attested(books: Books) -> Iterator[str]:
    for row in books.rows:
        receipt, request_id = books.receipts[row["request_id"]], row["request_id"]
        billed = TokenUsage(*(row[bucket] for bucket in BUCKETS))
        if receipt.finding is not None:
            yield f"{request_id}: {receipt.finding}"
        elif billed.prompt and receipt.grade != "attested":
            yield f"{request_id}: {receipt.grade}, billed {billed}"
        else:
            ends = [one.output_to for one in receipt.attestations if isinstance(one, DecodeAttestation)]
            prompts = [one.prompt_tokens for one in _prefills(receipt)]
            if billed.output > max(ends, default=0) or (billed.prompt and billed.prompt not in prompts):
                yield f"{request_id}: billed {billed}, attested prompts {prompts} and outputs to {ends}"


def _errors(errands: Sequence[Errand], books: Books) -> Iterator[str]:
    for errand, seen in _all(errands):
        row = books.row(seen.request_id)
        if seen.ending == "error" and not seen.error:
            yield f"{errand.name} ended without its end and without an error ({seen.request_id})"
        elif _told_error(seen) and not _open(seen) and row is not None and Decimal(row["charge"]):
            yield f"{errand.name} was charged {row['charge']} for {seen.error} ({seen.request_id})"


def _keys(errands: Sequence[Errand], books: Books) -> Iterator[str]:
    """Each client has an API key of its own: it is charged for no more than it has had errands."""
    keyed = [errand for errand in errands if errand.key is not None]
    for errand in keyed:
        answers = {seen.request_id for seen in errand.seen if seen.ending == "complete"}
        if len(answers) > 1:
            yield f"{errand.name} was answered by {sorted(map(str, answers))}"
    for client, asked in Counter(errand.client for errand in keyed).items():
        charged = sum(bool(Decimal(row["charge"])) for row in books.rows if row["key"] == key_name(client))
        if charged > asked:
            yield f"client {client} was charged {charged} times for {asked} errands"


def _all(errands: Sequence[Errand]) -> Iterator[tuple[Errand, Seen]]:
    return ((errand, seen) for errand in errands for seen in errand.seen)


def _open(seen: Seen) -> bool:
    """Whether such an answer leaves open what is charged; at most once it is."""
    return any(words in seen.error for words in OPEN)


def _told_error(seen: Seen) -> bool:
    """The service said that it failed, as a status or in the stream; not: it broke off."""
    refused = seen.status is not None and seen.status != 200
    return seen.ending == "error" and (refused or seen.error.startswith("{"))


def _prefills(receipt: Receipt) -> list[PrefillAttestation]:
    return [one for one in receipt.attestations if isinstance(one, PrefillAttestation)]


def _proven(receipt: Receipt) -> TokenUsage:
    """What the worker attests of the accepted calls: the prompt of the first, the output that they cover."""
    prompts = {attempt.attempt for attempt in receipt.attempts if attempt.stage != "decode"}
    output = sum(attempt.output_to - attempt.output_from for attempt in receipt.attempts)
    for prefill in _prefills(receipt):
        if prefill.attempt in prompts:
            return TokenUsage.of(prefill, output)
    return TokenUsage.none()


def _by_receipt(books: Books, row: Row) -> Decimal:
    """What the receipt comes to at the price of the instant that rated its event."""
    at, usage = datetime.fromisoformat(row["rated_at"]), _proven(books.receipts[row["request_id"]])
    return Decimal(decimal_of(rate(books.price, row["model"], row["currency"], usage, at).amount))
