"""What receipts are checked by: keys, workers, heads and prices, each verified before it is used."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final, Self

from admin.verify.finding import Finding, Place
from billing.errors import BundleInvalid, PriceInvalid, ProofBroken
from billing.pricing.book import Placement, PriceBook, PriceRow
from billing.pricing.document import read_placement, read_row
from billing.receipts.bundle import (
    CERTIFICATES,
    CONSISTENCY,
    HEADS,
    KEYS,
    PLACEMENTS,
    PRICES,
    Consistency,
)
from billing.receipts.bundle_reader import Bundle, Line
from billing.receipts.head import TreeHead
from billing.receipts.merkle import check_consistency
from engine.proof import signed
from engine.proof.attestation import AttestationReader
from engine.proof.certificate import WorkerCertificate
from engine.proof.ring import DeploymentRing
from engine.proof.signed import ProofInvalid, SignatureInvalid

_SECTIONS: Final = (CERTIFICATES, HEADS, CONSISTENCY, PRICES, PLACEMENTS)


@dataclass(frozen=True, slots=True)
class Pin:
    """What who verifies trusts already: the anchor's key id, or a ring; with neither, what he is shown."""

    anchor: str | None = None
    ring: DeploymentRing | None = None

    @property
    def given(self) -> bool:
        """Whether anything is."""
        return self.anchor is not None or self.ring is not None

    def ring_of(self, text: str) -> DeploymentRing:
        """The longer of both rings, which begin alike.

        Raises:
            ProofInvalid: not canonical, no ring, of another anchor, or one that goes on otherwise.
        """
        shown = DeploymentRing.read(text)
        if shown.to_text() != text:
            raise SignatureInvalid("the ring of keys is written otherwise than one is")
        if self.anchor is not None and self.anchor != shown.keys[0].id:
            raise SignatureInvalid(f"its anchor is {shown.keys[0].id}, trusted is {self.anchor}")
        if self.ring is None:
            return shown
        longer, shorter = (shown, self.ring) if len(shown.keys) >= len(self.ring.keys) else (self.ring, shown)
        if longer.keys[0].id != shorter.keys[0].id:
            raise SignatureInvalid(f"its anchor is {shown.keys[0].id}, trusted is {self.ring.keys[0].id}")
        if longer.rotations[: len(shorter.rotations)] != shorter.rotations:
            raise SignatureInvalid("its keys go on otherwise than those trusted")
        return longer


@dataclass(frozen=True, slots=True)
class TrustText:
    """The texts that trust is built from. They can be handed to another process, keys cannot."""

    keys: str
    lines: dict[str, tuple[Line, ...]]
    pin: Pin

    @classmethod
    def of_bundle(cls, bundle: Bundle, pin: Pin) -> Self:
        """Read them; raises BundleInvalid where a file cannot be read."""
        try:
            keys = bundle.content(KEYS).decode()
        except ValueError as error:
            raise BundleInvalid(str(error), KEYS) from error
        return cls(keys, {name: tuple(bundle.lines(name)) for name in _SECTIONS}, pin)


@dataclass(slots=True)
class Trust:
    """Everything verified that receipts are checked by. ``findings`` are of what was not, and is left out."""

    ring: DeploymentRing
    workers: dict[str, WorkerCertificate] = field(default_factory=dict)
    heads: dict[int, TreeHead] = field(default_factory=dict)
    rows: dict[str, PriceRow] = field(default_factory=dict)
    placements: list[Placement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    attestations: AttestationReader = field(init=False)
    _books: dict[str, PriceBook] = field(default_factory=dict)
    _asked: tuple[tuple[str, str, str, datetime], PriceRow] | None = None

    @classmethod
    def of(cls, text: TrustText) -> Self:
        """Verify line by line.

        Raises:
            BundleInvalid: the ring of keys cannot be read, or is none that the pin trusts.
        """
        try:
            trust = cls(text.pin.ring_of(text.keys))
        except ProofInvalid as error:
            raise BundleInvalid(str(error), KEYS) from error
        trust._certify(text.lines[CERTIFICATES])
        trust._take_heads(text.lines[HEADS], text.lines[CONSISTENCY])
        trust._take_prices(text.lines[PRICES], text.lines[PLACEMENTS])
        trust.attestations = AttestationReader(trust.workers)
        return trust

    def book(self, tenant_id: str) -> PriceBook:
        """The prices as a tenant is charged by them."""
        book = self._books.get(tenant_id)
        if book is None:
            whole = self._books.setdefault("", PriceBook(tuple(self.rows.values()), tuple(self.placements)))
            book = self._books[tenant_id] = whole.of(tenant_id)
        return book

    def row(self, tenant_id: str, model: str, currency: str, at: datetime) -> PriceRow:
        """The price row in force for a tenant; raises PriceMissing.

        The last answer is kept: most are asked for twice.
        """
        asked = tenant_id, model, currency, at
        if self._asked is None or self._asked[0] != asked:
            self._asked = asked, self.book(tenant_id).row(model, currency, at)
        return self._asked[1]

    def _certify(self, lines: Iterable[Line]) -> None:
        for line in self._signed(lines, "certificate"):
            try:
                certificate = WorkerCertificate.verify_by_ring(line.text.decode(), self.ring)
            except ProofInvalid as error:
                self._find(line, "certificate", str(error))
                continue
            known = self.workers.setdefault(certificate.key_id, certificate)
            if known is not certificate:
                self._find(line, "certificate", f"{certificate.key_id} is certified twice")

    def _take_heads(self, heads: Iterable[Line], proofs: Sequence[Line]) -> None:
        places: list[Line] = []
        for line in self._signed(heads, "head"):
            try:
                head = TreeHead.verify(line.text.decode(), self.ring)
            except ProofInvalid as error:
                self._find(line, "head", str(error))
                continue
            last = next(reversed(self.heads.values()), None)
            if last is not None and (head.size <= last.size or head.at_s < last.at_s):
                self._find(
                    line, "head", f"a head of {head.size} behind one of {last.size}, or dated before it"
                )
                continue
            self.heads[head.size] = head
            places.append(line)
        self._join_heads(places, {(p.first, p.second): (p, line) for p, line in self._proofs(proofs)})

    def _proofs(self, lines: Iterable[Line]) -> Iterator[tuple[Consistency, Line]]:
        for line in lines:
            try:
                yield Consistency.read(line.text), line
            except ProofBroken as error:
                self._find(line, "consistency", error.reason)

    def _join_heads(
        self, places: Sequence[Line], proofs: dict[tuple[int, int], tuple[Consistency, Line]]
    ) -> None:
        for (one, two), place in zip(pairwise(self.heads.values()), places[1:], strict=True):
            proof, line = proofs.pop((one.size, two.size), (None, place))
            if proof is None:
                self._find(place, "consistency", f"nothing shows that it continues the head of {one.size}")
                continue
            try:
                check_consistency((one.size, one.root), (two.size, two.root), proof.path)
            except ProofBroken as error:
                self._find(line, "consistency", error.reason)
        for proof, line in proofs.values():
            self._find(line, "consistency", f"no neighbouring heads of {proof.first} and {proof.second}")

    def _take_prices(self, rows: Iterable[Line], placements: Iterable[Line]) -> None:
        for line in rows:
            try:
                row = read_row(line.text)
            except PriceInvalid as error:
                self._find(line, "price row", str(error))
                continue
            if self.rows.setdefault(row.id, row) is not row:
                self._find(line, "price row", f"{row.id} is there twice")
        for line in placements:
            try:
                placement = read_placement(line.text)
            except PriceInvalid as error:
                self._find(line, "placement", str(error))
                continue
            if placement in self.placements:
                self._find(line, "placement", "it is there twice")
            self.placements.append(placement)

    def _signed(self, lines: Iterable[Line], step: str) -> Iterator[Line]:
        """Those that are canonical: else bytes could be changed that change nothing."""
        for line in lines:
            try:
                signed.canonical_value(line.text)
            except ProofInvalid as error:
                self._find(line, step, str(error))
                continue
            yield line

    def _find(self, line: Line, step: str, reason: str) -> None:
        self.findings.append(Finding(Place(line.file, line.number), step, reason))
