"""One receipt, step by step: is it in the log, is it of workers we know, and is it rated as it says?

form          the bytes are a receipt's, canonical
inclusion     its leaf is in the tree of a signed head, which was made after it
attestations  each is signed by a worker whose key the deployment had certified by then
request       each is of this request: its id, its tenant, key, model, class, tier and price row
coverage      grade and finding follow from what was accepted and what is attested
usage         the buckets are those attested, the output is what was accepted
price         the row, the window and the amount, to the femto-unit, by the price book
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from admin.verify.trust import Trust
from billing.errors import PriceMissing, ProofBroken, ReceiptInvalid, TierMissing, UsageInvalid
from billing.pricing.rating import Charge
from billing.pricing.rating import charge as charge_by
from billing.receipts.document import ReceiptDocument
from billing.receipts.memo import Memo
from billing.receipts.receipt import Receipt, kind_of
from billing.receipts.sealed import SealedReceipt
from billing.request_id import instant_of
from billing.usage import TokenUsage
from engine.proof import signed
from engine.proof.attestation import Attestation, PrefillAttestation
from engine.proof.coverage import CoverageBroken, output_tokens
from engine.proof.signed import ProofInvalid

FORM: Final = "form"
INCLUSION: Final = "inclusion"
ATTESTATIONS: Final = "attestations"
REQUEST: Final = "request"
COVERAGE: Final = "coverage"
USAGE: Final = "usage"
PRICE: Final = "price"
STEPS: Final = (FORM, INCLUSION, ATTESTATIONS, REQUEST, COVERAGE, USAGE, PRICE)

# Clocks of a worker, of Valkey and of the jobs process; a date is a plausibility, no proof.
CLOCKS_APART_S: Final = 300


@dataclass(slots=True)
class CheckedReceipt:
    """A receipt and what is wrong with it, by step. ``document`` is None where it cannot be read.

    ``charge`` is what the price book asks; None where it asks nothing.
    """

    sealed: SealedReceipt
    document: ReceiptDocument | None = None
    attestations: tuple[Attestation, ...] = ()
    charge: Charge | None = None
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every step was passed."""
        return not self.faults


def check(sealed: SealedReceipt, trust: Trust) -> CheckedReceipt:
    """Take every step; one that fails does not end the others, unless there is nothing to go on with."""
    checked = CheckedReceipt(sealed)
    try:
        document, tree = _read(sealed.receipt)
    except ReceiptInvalid as error:
        checked.faults[FORM] = error.reason
        return checked
    checked.document = document
    _step(checked, INCLUSION, lambda: _included(sealed, document, trust))
    _step(checked, ATTESTATIONS, lambda: _attested(checked, document, tree, trust))
    _step(checked, REQUEST, lambda: _of_request(checked.attestations, document, trust))
    _step(checked, COVERAGE, lambda: _covered(checked.attestations, document))
    _step(checked, USAGE, lambda: _used(checked.attestations, document))
    _step(checked, PRICE, lambda: _rated(checked, document, trust))
    return checked


def _step(checked: CheckedReceipt, step: str, fault_of: Callable[[], str | None]) -> None:
    fault = fault_of()
    if fault is not None:
        checked.faults[step] = fault


def _read(raw: bytes) -> tuple[ReceiptDocument, dict[str, Any]]:
    try:
        return ReceiptDocument.read(raw), signed.canonical_value(raw)
    except ProofInvalid as error:
        raise ReceiptInvalid(str(error)) from error


def _included(sealed: SealedReceipt, document: ReceiptDocument, trust: Trust) -> str | None:
    head = trust.heads.get(sealed.tree_size)
    if head is None:
        return f"no head of {sealed.tree_size} leaves is known"
    try:
        sealed.check(head)
    except ProofBroken as error:
        return error.reason
    if document.rated_at.timestamp() > head.at_s + CLOCKS_APART_S:
        return "it was rated after the head that it is in"
    return None


def _attested(
    checked: CheckedReceipt, document: ReceiptDocument, tree: dict[str, Any], trust: Trust
) -> str | None:
    """Read those that are signed; the first that is not is the fault."""
    fault, said = None, []
    for text, written in zip(document.attestations, tree["attestations"], strict=True):
        try:
            attestation = trust.attestations.read_canonical(text.encode(), written)
        except ProofInvalid as error:
            key_id = written.get("key_id") if isinstance(written, dict) else None
            known = isinstance(key_id, str) and key_id in trust.workers
            fault = fault or (str(error) if known or key_id is None else f"no certificate for key {key_id}")
            continue
        said.append(attestation)
        issued_s = trust.workers[written["key_id"]].issued_at_s
        if attestation.attested_at_ns < (issued_s - CLOCKS_APART_S) * 10**9:
            fault = fault or f"{attestation.worker} attests before its key was certified"
    checked.attestations = tuple(said)
    return fault


def _of_request(attestations: tuple[Attestation, ...], document: ReceiptDocument, trust: Trust) -> str | None:
    request_id = document.request_id
    if request_id.version != 7:
        return f"{request_id} is no request id"
    admitted_at = document.admitted_at
    if instant_of(request_id) != admitted_at.replace(microsecond=admitted_at.microsecond // 1000 * 1000):
        return f"admitted at {admitted_at.isoformat()}, by its id at {instant_of(request_id).isoformat()}"
    named = str(request_id)
    calls, agreed = set(), None
    for each in attestations:
        if each.request_id != named:
            return f"attempt {each.attempt} is attested of {each.request_id}"
        call = each.attempt, kind_of(each)
        if call in calls:
            return f"attempt {each.attempt} is attested twice"
        calls.add(call)
        if each.memo != agreed and (fault := _memo_fault(_memo(each.memo), document, trust)) is not None:
            return f"attempt {each.attempt}: {fault}"
        agreed = each.memo
    return None


@lru_cache(maxsize=1024)
def _memo(text: str) -> Memo | None:
    """Requests of one key to one model have the same."""
    return Memo.read(text)


def _memo_fault(memo: Memo | None, document: ReceiptDocument, trust: Trust) -> str | None:
    if memo is None:
        return "its memo is none"
    if memo.tenant_id != document.tenant_id:
        return f"attested for {memo.tenant_id}, charged to {document.tenant_id}"
    attested = memo.key_id, memo.model, memo.traffic_class, memo.tier
    charged = document.key_id, document.model, document.traffic_class, document.tier
    for name, one, two in zip(("key", "model", "class", "tier"), attested, charged, strict=True):
        if one != two:
            return f"attested with the {name} {one}, charged with {two}"
    try:
        row = trust.row(document.tenant_id, document.model, document.currency, document.admitted_at)
    except PriceMissing as error:
        return str(error)
    if row is not trust.rows.get(memo.price_row_id):
        return f"admitted by the price row {memo.price_row_id}, in force was {row.id}"
    return None


def _covered(attestations: tuple[Attestation, ...], document: ReceiptDocument) -> str | None:
    derived = Receipt.of(document.request_id, document.usage, document.attempts, attestations)
    if (derived.grade, derived.finding) != (document.grade, document.finding):
        said, found = (each.grade or each.finding for each in (document, derived))
        return f"it says {said}, what is attested says {found}"
    return None if document.finding is None else f"it contradicts itself: {document.finding}"


def _used(attestations: tuple[Attestation, ...], document: ReceiptDocument) -> str | None:
    usage = document.usage
    if document.status == "failed" and usage != TokenUsage.none():
        return "a failed request costs nothing"
    try:
        accepted = output_tokens(document.attempts)
    except CoverageBroken as error:
        return str(error)
    if accepted != usage.output:
        return f"{usage.output} output tokens are billed, {accepted} were accepted"
    prefills = {attempt.attempt for attempt in document.attempts if attempt.stage != "decode"}
    if len(prefills) != (usage.prompt > 0):
        return f"{usage.prompt} prompt tokens are billed with {len(prefills)} accepted prompts"
    for each in attestations:
        if isinstance(each, PrefillAttestation) and each.attempt in prefills:
            attested = TokenUsage.of(each, usage.output)
            if attested != usage:
                return f"billed is {usage}, attested {attested}"
    return None


def _rated(checked: CheckedReceipt, document: ReceiptDocument, trust: Trust) -> str | None:
    priced = document.tenant_id, document.model, document.currency
    try:
        admission = row = trust.row(*priced, document.admitted_at)
        if document.rated_at != document.admitted_at:
            row = trust.row(*priced, document.rated_at)
        charge = charge_by(row, document.usage, document.rated_at, document.tier)
    except (PriceMissing, TierMissing, UsageInvalid) as error:
        return str(error)
    checked.charge = charge
    if charge.price_row_id != document.price_row_id:
        return f"rated by {document.price_row_id}, in force was {charge.price_row_id}"
    if charge.window != document.window:
        return f"rated in the window {document.window!r}, open was {charge.window!r}"
    if charge.amount != document.charge:
        return f"charged {document.charge} femto-units, by the price book {charge.amount}"
    if document.rated_at < document.admitted_at or (
        admission.instant == "admitted" and document.rated_at != document.admitted_at
    ):
        return f"rated at {document.rated_at.isoformat()}, against the rule of {admission.id}"
    return None
