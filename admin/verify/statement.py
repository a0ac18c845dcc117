"""One receipt with all that it takes to check it: the answer of ``GET /v1/receipts/{request_id}``, as a file.

It is JSON of any layout, since people read it through tools; only a name twice in an object is refused.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from admin.verify.finding import Finding, Place
from admin.verify.receipt import FORM, STEPS, CheckedReceipt, check
from admin.verify.trust import Pin, Trust, TrustText
from billing.errors import BundleInvalid, ReceiptInvalid
from billing.money import Femto, decimal_of
from billing.pricing.document import row_sha256
from billing.receipts.bundle import CERTIFICATES, CONSISTENCY, HEADS, PLACEMENTS, PRICES
from billing.receipts.bundle_reader import Line
from billing.receipts.sealed import SealedReceipt
from engine.proof import signed
from engine.proof.signed import ProofInvalid

FILE_BYTES_MAX: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Statement:
    """What the file says; nothing is verified."""

    file: str
    sealed: SealedReceipt
    trust: TrustText
    nonce: bytes | None

    @classmethod
    def read(cls, path: Path, pin: Pin) -> "Statement":
        """Read a file; raises BundleInvalid where it is no such statement."""
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise BundleInvalid("a file too long", path.name)
            written = json.loads(path.read_bytes(), object_pairs_hook=_once)
            return cls._of(path.name, written, pin)
        except (OSError, ValueError, RecursionError, ProofInvalid, ReceiptInvalid) as error:
            raise BundleInvalid(str(error), path.name) from error

    @classmethod
    def _of(cls, file: str, written: Any, pin: Pin) -> "Statement":
        match written:
            case {
                "sealed": {"receipt": receipt, **places},
                "head": head,
                "keys": dict(keys),
                "certificates": [*certificates],
                "prices": [*prices],
                "placements": [*placements],
                **others,
            }:
                pass
            case {"state": "pending"}:
                raise BundleInvalid("the receipt is not sealed yet", file)
            case _:
                raise BundleInvalid("no receipt with all that it takes to check it", file)
        line = msgspec.json.encode(
            {
                **{name: places.get(name) for name in ("leaf_index", "leaf_nonce", "tree_size", "path")},
                "receipt": msgspec.Raw(signed.canonical(receipt)),
            }
        )
        lines = {
            CERTIFICATES: _lines(f"{file}, certificates", certificates),
            HEADS: _lines(f"{file}, head", [head]),
            CONSISTENCY: (),
            PRICES: _lines(f"{file}, prices", prices),
            PLACEMENTS: _lines(f"{file}, placements", placements),
        }
        nonce = others.get("nonce")
        return cls(
            file=file,
            sealed=SealedReceipt.read(line),
            trust=TrustText(signed.canonical(keys).decode(), lines, pin),
            nonce=bytes.fromhex(nonce) if isinstance(nonce, str) else None,
        )


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("a name is there twice in an object")
    return dict(pairs)


def _lines(file: str, documents: Iterable[Any]) -> tuple[Line, ...]:
    return tuple(Line(file, number, signed.canonical(each)) for number, each in enumerate(documents, 1))


@dataclass(frozen=True, slots=True)
class StatementReport:
    """What a receipt came to. ``outcomes`` say of each step that was passed what it has shown."""

    anchor: str
    pinned: bool
    checked: CheckedReceipt
    outcomes: Mapping[str, str]
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """Whether there is no finding."""
        return not self.findings


def check_statement(statement: Statement) -> StatementReport:
    """Check a receipt by what came with it.

    Raises:
        BundleInvalid: its keys cannot be read, or are not trusted.
    """
    trust = Trust.of(statement.trust)
    checked = check(statement.sealed, trust)
    named = None if checked.document is None else str(checked.document.request_id)
    place = Place(statement.file)
    faults = [Finding(place, step, reason, named) for step, reason in checked.faults.items()]
    return StatementReport(
        anchor=trust.ring.keys[0].id,
        pinned=statement.trust.pin.given,
        checked=checked,
        outcomes={} if FORM in checked.faults else _outcomes(checked, trust),
        findings=[*trust.findings, *faults],
    )


def _outcomes(checked: CheckedReceipt, trust: Trust) -> dict[str, str]:
    document, sealed = checked.document, checked.sealed
    assert document is not None
    usage, head = document.usage, trust.heads.get(sealed.tree_size)
    workers = sorted({each.worker for each in checked.attestations})
    row = trust.rows.get(document.price_row_id)
    said = {
        "form": f"canonical, of {document.tenant_id}",
        "inclusion": f"leaf {sealed.leaf_index} of {sealed.tree_size}"
        + (f", root {head.root.hex()}" if head else ""),
        "attestations": f"{len(checked.attestations)} by {', '.join(workers) or 'nobody'}",
        "request": f"{document.request_id}, {document.model}, key {document.key_id}",
        "coverage": f"{document.grade}, {document.status}",
        "usage": f"{usage.cache_hit} hit, {usage.cache_owed} owed, {usage.cache_write} written,"
        f" {usage.cache_miss} missed, {usage.output} output",
        "price": f"{decimal_of(Femto(document.charge))} {document.currency} by {document.price_row_id},"
        f" {document.window}, {document.tier}" + (f", SHA-256 of the row {row_sha256(row)}" if row else ""),
    }
    return {step: said[step] for step in STEPS if step not in checked.faults}
