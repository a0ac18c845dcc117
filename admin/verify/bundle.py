"""A whole bundle: each file beside the manifest, the receipts by all cores, what invoices make of them."""

import gc
import multiprocessing
import os
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, Self

from admin.verify.finding import Finding, Place
from admin.verify.receipt import FORM, CheckedReceipt, check
from admin.verify.trust import Pin, Trust, TrustText
from billing.errors import BundleInvalid, ReceiptInvalid
from billing.receipts.bundle import MANIFEST, RECEIPTS
from billing.receipts.bundle_reader import Bundle, open_bundle
from billing.receipts.sealed import SealedReceipt

CHUNK: Final = 256
ALONE_BYTES_MAX: Final = 2 * 2**20  # of receipts: other processes take longer to start
FINDINGS_MAX: Final = 1_000
_LOW_BITS: Final = 2**64 - 1

Progress = Callable[[int], None]  # bytes of receipts that have been checked since it was called last


class Tally(Protocol):
    """What invoices make of receipts, added up apart and then together. It is sent between processes."""

    def fresh(self) -> "Tally":
        """An empty one, of the same invoices."""

    def add(self, checked: CheckedReceipt) -> None:
        """Count a receipt that passed every step; in the order of leaves."""

    def merge(self, other: "Tally") -> None:
        """Add what comes behind."""

    def findings(self) -> Iterable[Finding]:
        """When all is merged: what is wrong with the invoices, and where."""


class InvoiceHook(Protocol):
    """Checks invoices; see `check_bundle`."""

    def begin(self, files: Mapping[str, bytes], trust: Trust) -> Tally:
        """Read the signed invoices of a bundle, by file name."""


class NoTally:
    """Implements `Tally` where nobody asks about invoices."""

    def fresh(self) -> Self:
        """See `Tally`."""
        return self

    def add(self, checked: CheckedReceipt) -> None:
        """See `Tally`."""

    def merge(self, other: Tally) -> None:
        """See `Tally`."""

    def findings(self) -> Iterable[Finding]:
        """See `Tally`."""
        return ()


@dataclass(slots=True)
class Part:
    """What came of some receipts in a row. ``ids`` are the lower 64 bits of request ids, a line each."""

    tally: Tally
    lines: int = 0
    bytes_read: int = 0
    first_leaf: int | None = None
    last_leaf: int = -1
    ids: "array[int]" = field(default_factory=lambda: array("Q"))
    tenants: dict[str, int] = field(default_factory=dict)
    grades: Counter[str] = field(default_factory=Counter)
    femto: Counter[str] = field(default_factory=Counter)
    verified: int = 0
    findings: list[Finding] = field(default_factory=list)
    found: int = 0

    def find(self, finding: Finding) -> None:
        """Count a finding; the first thousand are kept."""
        self.found += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def merge(self, behind: "Part") -> None:
        """Add the part that comes behind."""
        if behind.first_leaf is not None and behind.first_leaf <= self.last_leaf:
            self.find(_out_of_order(self.lines + 1, behind.first_leaf, self.last_leaf))
        self.last_leaf = max(self.last_leaf, behind.last_leaf)
        self.lines += behind.lines
        self.ids.extend(behind.ids)
        self.tenants = {**behind.tenants, **self.tenants}
        self.grades.update(behind.grades)
        self.femto.update(behind.femto)
        self.verified += behind.verified
        self.found += behind.found - len(behind.findings)
        for finding in behind.findings:
            self.find(finding)
        self.tally.merge(behind.tally)


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What a bundle came to. ``femto`` are the charges of verified receipts by currency.

    ``anchor`` is the key id that all rests on; ``pinned`` whether the one who verifies named it.
    """

    anchor: str
    pinned: bool
    heads: int
    workers: int
    prices: int
    invoices: tuple[str, ...]
    receipts: int
    verified: int
    tenants: tuple[str, ...]
    grades: Mapping[str, int]
    femto: Mapping[str, int]
    findings: Sequence[Finding]
    found: int

    @property
    def ok(self) -> bool:
        """Whether there is no finding."""
        return not self.found


def check_bundle(
    path: Path,
    pin: Pin,
    *,
    jobs: int | None = None,
    invoices: InvoiceHook | None = None,
    progress: Progress = lambda _: None,
) -> BundleReport:
    """Check everything that is in a bundle.

    Args:
        jobs: processes; None: one a core. Little is checked in this one.
        invoices: who checks the invoices; None: they are compared with the manifest alone.

    Raises:
        BundleInvalid: it cannot be read as one, with the file and the line; or its keys are not trusted.
    """
    with open_bundle(path) as bundle:
        text = TrustText.of_bundle(bundle, pin)
        trust = Trust.of(text)
        files = {name: bundle.content(name) for name in bundle.invoices}
        tally = NoTally() if invoices is None else invoices.begin(files, trust)
        whole = Part(tally.fresh())
        for finding in trust.findings:
            whole.find(finding)
        for part in _parts(bundle, text, trust, tally, jobs or os.cpu_count() or 1):
            whole.merge(part)
            progress(part.bytes_read)
        for finding in (*_of_one_tenant(whole), *_sealed_twice(whole.ids), *_beside_manifest(bundle, trust)):
            whole.find(finding)
        for finding in whole.tally.findings():
            whole.find(finding)
    return BundleReport(
        anchor=trust.ring.keys[0].id,
        pinned=pin.given,
        heads=len(trust.heads),
        workers=len(trust.workers),
        prices=len(trust.rows),
        invoices=bundle.invoices,
        receipts=whole.lines,
        verified=whole.verified,
        tenants=tuple(sorted(whole.tenants)),
        grades=dict(whole.grades),
        femto=dict(whole.femto),
        findings=whole.findings,
        found=whole.found,
    )


Chunk = list[tuple[int, bytes]]  # numbers and texts of lines


def _parts(bundle: Bundle, text: TrustText, trust: Trust, tally: Tally, jobs: int) -> Iterator[Part]:
    """Check the receipts, chunk by chunk, in their order."""
    lines = ((line.number, line.text) for line in bundle.lines(RECEIPTS))
    chunks = iter(lambda: list(islice(lines, CHUNK)), [])
    if jobs == 1 or bundle.receipts_bytes < ALONE_BYTES_MAX:
        yield from (check_chunk(chunk, trust, tally) for chunk in chunks)
        return
    with ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(text, tally)
    ) as pool:
        running: deque[Future[Part]] = deque()
        for chunk in chunks:
            running.append(pool.submit(_check_here, chunk))
            if len(running) > 4 * jobs:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def check_chunk(chunk: Chunk, trust: Trust, tally: Tally) -> Part:
    """Check some lines in a row."""
    part = Part(tally.fresh())
    for number, text in chunk:
        part.lines += 1
        part.bytes_read += len(text) + 1
        try:
            sealed = SealedReceipt.read(text)
        except ReceiptInvalid as error:
            part.ids.append(0)
            part.find(Finding(Place(RECEIPTS, number), FORM, error.reason))
            continue
        if part.first_leaf is None:
            part.first_leaf = sealed.leaf_index
        elif sealed.leaf_index <= part.last_leaf:
            part.find(_out_of_order(number, sealed.leaf_index, part.last_leaf))
        part.last_leaf = max(part.last_leaf, sealed.leaf_index)
        _count(part, number, check(sealed, trust))
    return part


def _count(part: Part, number: int, checked: CheckedReceipt) -> None:
    document = checked.document
    part.ids.append(0 if document is None else document.request_id.int & _LOW_BITS)
    named = None if document is None else str(document.request_id)
    for step, reason in checked.faults.items():
        part.find(Finding(Place(RECEIPTS, number), step, reason, named))
    if document is None:
        return
    part.tenants.setdefault(document.tenant_id, number)
    part.grades[document.grade or "contradicted"] += 1
    if checked.ok:
        part.verified += 1
        part.femto[document.currency] += document.charge
        part.tally.add(checked)


def _out_of_order(number: int, leaf: int, behind: int) -> Finding:
    return Finding(Place(RECEIPTS, number), "order", f"leaf {leaf} stands behind leaf {behind}")


def _of_one_tenant(whole: Part) -> Iterator[Finding]:
    first, *others = sorted(whole.tenants.items(), key=lambda each: each[1]) or [("", 0)]
    for tenant, number in others:
        reason = f"charged to {tenant}, those before to {first[0]}"
        yield Finding(Place(RECEIPTS, number), "tenant", reason)


def _sealed_twice(ids: "array[int]") -> Iterator[Finding]:
    ordered = sorted(ids)
    twice = {one for one, two in zip(ordered, islice(ordered, 1, None), strict=False) if one == two != 0}
    first: dict[int, int] = {}
    for number, one in enumerate(ids if twice else (), 1):
        if one in twice and first.setdefault(one, number) != number:
            reason = f"its request is sealed already, in line {first[one]}"
            yield Finding(Place(RECEIPTS, number), "request", reason)


def _beside_manifest(bundle: Bundle, trust: Trust) -> Iterator[Finding]:
    try:
        manifest = bundle.manifest(trust.ring)
    except BundleInvalid as error:
        yield Finding(Place(MANIFEST), "manifest", error.reason)
        return
    for difference in bundle.differences(manifest):
        yield Finding(Place(difference.file or MANIFEST), "manifest", difference.reason)


class _Here:
    """What a process of the pool works with."""

    trust: Trust
    tally: Tally


def _begin(text: TrustText, tally: Tally) -> None:
    _Here.trust, _Here.tally = Trust.of(text), tally
    gc.freeze()  # what stays for good is looked through no more


def _check_here(chunk: Chunk) -> Part:
    return check_chunk(chunk, _Here.trust, _Here.tally)
