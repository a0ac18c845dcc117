"""What attestations prove of a request whose gateway is gone: the calls it had accepted, and what is billed.

A call that continues another says from which output token on: that many its gateway had accepted before. So
the last call whose ancestors reach back to a computed prompt tells them all, each up to where the next
begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from billing.pricing.book import PriceBook
from billing.pricing.rating import rate, rating_instant
from billing.receipts.memo import Memo
from billing.request_id import instant_of
from billing.settlement.event import Status, UsageEvent
from billing.settlement.idempotency import IdempotencyRecord
from billing.usage import TokenUsage
from engine.proof.attestation import Attestation, DecodeAttestation, Ended, PrefillAttestation
from engine.proof.coverage import Attempt
from gateway.admission.hold import EPOCH
from gateway.telemetry import log


@dataclass(frozen=True, slots=True)
class Proven:
    """What a lost request is settled by.

    ``attempts`` cover its prompt once and its output without gap or overlap. ``ended`` is None when nobody
    attests how the output ended. ``memos`` are those of all calls: one, where nobody is mistaken.
    """

    prefill: PrefillAttestation
    attempts: tuple[Attempt, ...]
    output_tokens: int
    ended: Ended | None
    last_attested_at_ns: int
    memos: frozenset[str]


@dataclass(frozen=True, slots=True)
class LostRequest:
    """A request that can be settled, and who pays for it."""

    request_id: UUID
    proven: Proven
    memo: Memo
    currency: str


@dataclass(frozen=True, slots=True)
class _Call:
    """One attested call. A worker that does both attests it twice."""

    attempt: Attempt
    prefill: PrefillAttestation | None
    decode: DecodeAttestation | None

    @property
    def said(self) -> tuple[Attestation, ...]:
        return tuple(one for one in (self.prefill, self.decode) if one is not None)

    @property
    def computed(self) -> bool:
        return self.prefill is None or self.prefill.computed


def proven(attestations: Sequence[Attestation]) -> Proven | None:
    """Find the accepted calls among all that is attested of one request.

    Returns:
        None when that does not suffice: no prompt was computed, or nothing is attested of its output; or the
        last call began the request anew, and what was generated before had been given up.
    """
    calls = sorted(_calls(attestations), key=lambda call: call.attempt.attempt)
    while calls:
        chain = _chain(calls)
        if chain is not None:
            return _proven(chain)
        calls.pop()
    return None


def event_of(lost: LostRequest, book: PriceBook, now: datetime, *, billable: bool = True) -> UsageEvent:
    """Rate what is attested, as its gateway would have: an output that ended in an error costs nothing.

    Nobody has the whole answer: an idempotency key is answered by it, and that answer is lost. Where the key
    has another answer, nothing is ``billable``.

    Raises:
        PriceMissing, TierMissing: the book has no price for the memo's model, or none at its tier.
        UsageInvalid: counts that no worker of ours attests.
    """
    found, memo, admitted_at = lost.proven, lost.memo, instant_of(lost.request_id)
    failed = found.ended == "error" or not billable
    usage = TokenUsage.none() if failed else TokenUsage.of(found.prefill, found.output_tokens)
    book = book.of(memo.tenant_id)
    row = book.row(memo.model, lost.currency, admitted_at)
    if row.id != memo.price_row_id:
        log.error("memo_of_another_price", request_id=str(lost.request_id), price_row=memo.price_row_id)
    # A worker's clock may be wrong; the request completed between its admission and now all the same.
    until_now_us = max(0, (now - admitted_at) // timedelta(microseconds=1))
    since_us = found.last_attested_at_ns // 1000 - (admitted_at - EPOCH) // timedelta(microseconds=1)
    completed_at = admitted_at + timedelta(microseconds=min(max(since_us, 0), until_now_us))
    rated_at = rating_instant(row, admitted_at, completed_at)
    return UsageEvent(
        request_id=lost.request_id,
        tenant_id=memo.tenant_id,
        key_id=memo.key_id,
        model=memo.model,
        status="failed" if failed else _status(found),
        admitted_at=admitted_at,
        rated_at=rated_at,
        usage=usage,
        reasoning_tokens=0,  # workers do not tell
        charge=rate(book, memo.model, lost.currency, usage, rated_at, memo.tier),
        traffic_class=memo.traffic_class,
        attempts=() if failed else found.attempts,
        answers=None if failed else _answer(lost),
    )


def _answer(lost: LostRequest) -> IdempotencyRecord | None:
    if lost.memo.answers is None:
        return None
    key, body = map(bytes.fromhex, lost.memo.answers)
    admitted_at = instant_of(lost.request_id)
    return IdempotencyRecord(lost.memo.tenant_id, key, body, lost.request_id, admitted_at, "lost")


def _status(found: Proven) -> Status:
    return "completed" if found.ended in ("stop", "length") else "aborted"


def _proven(chain: tuple[_Call, ...]) -> Proven | None:
    prefill, last = chain[0].prefill, chain[-1]
    assert prefill is not None
    if not prefill.computed or (last.decode is None and prefill.output_to == 0):
        return None
    attempts = (call.attempt for call in chain)
    return Proven(
        prefill=prefill,
        attempts=tuple(a for a in attempts if a.stage != "decode" or a.output_from < a.output_to),
        output_tokens=last.attempt.output_to,
        ended=None if last.decode is None else last.decode.ended,
        last_attested_at_ns=max(one.attested_at_ns for call in chain for one in call.said),
        memos=frozenset(one.memo for call in chain for one in call.said),
    )


def _chain(calls: Sequence[_Call]) -> tuple[_Call, ...] | None:
    """The last of the calls and its ancestors, prefill first; None when something between is not attested."""
    last = calls[-1]
    if last.attempt.stage != "decode":
        return (last,)
    begins = last.attempt.output_from
    for count in range(len(calls) - 1, 0, -1):
        before = calls[count - 1]
        if before.computed and before.attempt.output_from <= begins <= before.attempt.output_to:
            ancestors = _chain(calls[:count])
            if ancestors is not None:
                cut = replace(before, attempt=replace(before.attempt, output_to=begins))
                return (*ancestors[:-1], cut, last)
    return None


def _calls(attestations: Sequence[Attestation]) -> list[_Call]:
    decodes = {one.attempt: one for one in attestations if isinstance(one, DecodeAttestation)}
    calls = [
        _Call(Attempt(one.attempt, "decode", one.worker, one.output_from, one.output_to), None, one)
        for one in decodes.values()
        if one.stage == "decode"
    ]
    for one in attestations:
        if isinstance(one, PrefillAttestation):
            decode = decodes.get(one.attempt)
            if decode is not None and (decode.stage != "both" or decode.output_from):
                decode = None
            output_to = one.output_to if decode is None else decode.output_to
            calls.append(_Call(Attempt(one.attempt, one.stage, one.worker, 0, output_to), one, decode))
    return calls
