"""What a customer has kept: receipts, and the prompts that he sent.

bundle or bundle.zip   receipts, as `billing.receipts.bundle` lays them out
receipts/*.json        and answers of ``GET /v1/receipts/{request_id}``; one of the two at least
prompts/ID.json        the body of the request ID, as it was sent
prompts/ID.ids.json    or {"token_ids": […], "user_id": "…"}, where the tokens are known already
nonces.json            {ID: hex}: the nonces of prompts, but those that answers hold
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from uuid import UUID

import msgspec

from admin.verify.finding import Finding, Place
from admin.verify.promise import Broken, Exchange, broken_promises
from admin.verify.prompt import Encoded, prefill_of, prompt_fault, readings
from admin.verify.receipt import CheckedReceipt, check
from admin.verify.statement import Statement
from admin.verify.trust import Pin, Trust, TrustText
from billing.errors import BundleInvalid, ReceiptInvalid
from billing.money import ZERO, Femto
from billing.receipts.bundle import RECEIPTS
from billing.receipts.bundle_reader import open_bundle
from billing.receipts.sealed import SealedReceipt
from engine.proof.attestation import PrefillAttestation
from recipe.errors import RecipeError
from recipe.registry import Recipe

FILE_BYTES_MAX: Final = 64 * 2**20


class _Tokens(msgspec.Struct, forbid_unknown_fields=True):
    token_ids: tuple[int, ...]
    user_id: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """A broken promise, and what its misses cost beyond hits."""

    broken: Broken
    femto: Femto
    currency: str


@dataclass(slots=True)
class PromiseReport:
    """What a correspondence came to. ``unjudged`` are requests whose prompt is not here, or not attested."""

    anchors: dict[str, bool] = field(default_factory=dict)  # key id: whether it was pinned
    receipts: int = 0
    judged: int = 0
    unjudged: int = 0
    broken: list[Cost] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Kept:
    checked: CheckedReceipt
    trust: Trust


class Correspondence:
    """A folder of a customer's; the recipe encodes bodies, and is not needed for token ids."""

    def __init__(self, folder: Path, recipe: Recipe | None, pin: Pin) -> None:
        self._folder = folder
        self._recipe = recipe
        self._pin = pin
        self._nonces: dict[UUID, bytes] = {}
        self._report = PromiseReport()

    def check(self) -> PromiseReport:
        """Verify the receipts, encode the prompts, and find what was promised and missed.

        Raises:
            BundleInvalid: a file that cannot be read as what it is; or no receipts at all.
        """
        self._nonces |= self._kept_nonces()
        kept = {one.checked.document.request_id: one for one in self._receipts() if one.checked.document}
        self._report.receipts = len(kept)
        exchanges = [each for one in kept.values() if (each := self._exchange(one)) is not None]
        self._report.judged = sum(each.accepted is not None for each in exchanges)
        self._report.unjudged = len(kept) - self._report.judged
        self._report.broken = [_cost(each, kept[each.request_id]) for each in broken_promises(exchanges)]
        return self._report

    def _receipts(self) -> Iterator[_Kept]:
        """Those that pass every step; the others are findings."""
        found = False
        for name in ("bundle", "bundle.zip"):
            if (self._folder / name).exists():
                found = True
                yield from self._bundled(self._folder / name)
        for path in sorted((self._folder / "receipts").glob("*.json")):
            found = True
            statement = Statement.read(path, self._pin)
            trust = Trust.of(statement.trust)
            checked = check(statement.sealed, trust)
            if statement.nonce is not None and checked.document is not None:
                self._nonces.setdefault(checked.document.request_id, statement.nonce)
            yield from self._sound(Place(f"receipts/{path.name}"), checked, trust)
            self._take(trust)
        if not found:
            raise BundleInvalid("no bundle, no bundle.zip and no receipts/*.json", self._folder.name)

    def _bundled(self, path: Path) -> Iterator[_Kept]:
        with open_bundle(path) as bundle:
            trust = Trust.of(TrustText.of_bundle(bundle, self._pin))
            self._take(trust)
            for line in bundle.lines(RECEIPTS):
                place = Place(f"{path.name}/{RECEIPTS}", line.number)
                try:
                    checked = check(SealedReceipt.read(line.text), trust)
                except ReceiptInvalid as error:
                    self._report.findings.append(Finding(place, "form", error.reason))
                    continue
                yield from self._sound(place, checked, trust)

    def _take(self, trust: Trust) -> None:
        self._report.anchors[trust.ring.keys[0].id] = self._pin.given
        self._report.findings += trust.findings

    def _sound(self, place: Place, checked: CheckedReceipt, trust: Trust) -> Iterator[_Kept]:
        named = None if checked.document is None else str(checked.document.request_id)
        for step, reason in checked.faults.items():
            self._report.findings.append(Finding(place, step, reason, named))
        if checked.ok:
            yield _Kept(checked, trust)

    def _exchange(self, kept: _Kept) -> Exchange | None:
        """The request with its prompt, where that is here and is the attested one."""
        document = kept.checked.document
        assert document is not None
        request_id, nonce = document.request_id, self._nonces.get(document.request_id)
        prefills = tuple(
            one
            for one in kept.checked.attestations
            if isinstance(one, PrefillAttestation) and one.prompt_tokens
        )
        judged = prefill_of(kept.checked)
        stated = judged or next(iter(prefills), None)
        if nonce is None or stated is None:
            return None
        faults: dict[Place, str] = {}
        for place, encoded in self._prompts(request_id):
            fault = prompt_fault(stated, nonce, encoded.token_ids)
            if fault is None:
                scope = document.tenant_id, encoded.user_id, document.model
                return Exchange(request_id, scope, document.admitted_at, encoded.token_ids, prefills, judged)
            faults[place] = fault
        for place, fault in faults.items():
            self._report.findings.append(Finding(place, "prompt", fault, str(request_id)))
        return None

    def _prompts(self, request_id: UUID) -> Iterator[tuple[Place, Encoded]]:
        body = self._folder / "prompts" / f"{request_id}.json"
        tokens = self._folder / "prompts" / f"{request_id}.ids.json"
        if tokens.exists():
            place = Place(f"prompts/{tokens.name}")
            try:
                written = msgspec.json.decode(_content(tokens), type=_Tokens)
            except msgspec.MsgspecError as error:
                raise BundleInvalid(str(error), place.file) from error
            yield place, Encoded("token ids", written.user_id, written.token_ids)
        if body.exists() and self._recipe is not None:
            place = Place(f"prompts/{body.name}")
            try:
                yield from ((place, each) for each in readings(_content(body), self._recipe))
            except RecipeError as error:
                raise BundleInvalid(str(error), place.file) from error

    def _kept_nonces(self) -> dict[UUID, bytes]:
        path = self._folder / "nonces.json"
        if not path.exists():
            return {}
        try:
            written: Mapping[str, str] = cast("dict[str, str]", json.loads(_content(path)))
            return {UUID(name): bytes.fromhex(nonce) for name, nonce in written.items()}
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise BundleInvalid(f"no nonces by request id: {error}", path.name) from error


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BundleInvalid("a file too long", path.name)
        return path.read_bytes()
    except OSError as error:
        raise BundleInvalid(str(error), path.name) from error


def _cost(broken: Broken, kept: _Kept) -> Cost:
    """What the missed tokens would have cost less as hits, by the row that rated the request."""
    document = kept.checked.document
    assert document is not None
    row = kept.trust.rows[document.price_row_id]
    _, offered = row.rates_at(document.rated_at)
    rates = offered.of(document.tier)
    femto = ZERO if rates is None else Femto(broken.missed_tokens * (rates.miss - rates.hit))
    return Cost(broken, femto, document.currency)
