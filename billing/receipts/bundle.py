"""A bundle: all that a customer keeps in order to check receipts offline, as a folder or the same as a zip.

keys.json             the ring of the deployment's keys (`engine.proof.ring`)
certificates.jsonl    worker certificates, signed
heads.jsonl           signed heads of the log, by size
consistency.jsonl     that each head continues the one before it: a proof a pair
prices.jsonl          price rows, canonical JSON, by which the receipts were rated
placements.jsonl      who is on which plan, likewise
receipts.jsonl        sealed receipts, by leaf
invoices/N.json       signed invoices, and N.pdf
manifest.json         signed: SHA-256 and length of all the others, so that nothing can be left out or put in

Of files this module knows lines. What they mean is for their own modules; `admin.verify` puts it together.
"""

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, BinaryIO, Final, Self

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from billing.errors import BundleInvalid, ProofBroken
from billing.receipts.merkle import HASH_BYTES
from billing.receipts.sealed import SealedReceipt
from engine.proof import signed

KIND: Final = "kvitto.bundle.v1"

KEYS: Final = "keys.json"
CERTIFICATES: Final = "certificates.jsonl"
HEADS: Final = "heads.jsonl"
CONSISTENCY: Final = "consistency.jsonl"
PRICES: Final = "prices.jsonl"
PLACEMENTS: Final = "placements.jsonl"
RECEIPTS: Final = "receipts.jsonl"
MANIFEST: Final = "manifest.json"
FILES: Final = (KEYS, CERTIFICATES, HEADS, CONSISTENCY, PRICES, PLACEMENTS, RECEIPTS, MANIFEST)
INVOICE: Final = re.compile(r"invoices/[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.(json|pdf)", re.ASCII)

# The same contents give the same zip: it can be attached to a document that is signed.
_ZIP_DATE: Final = (1980, 1, 1, 0, 0, 0)


class _Consistency(msgspec.Struct, forbid_unknown_fields=True):
    first: int
    second: int
    path: list[str]


_CONSISTENCY: Final = msgspec.json.Decoder(_Consistency)


@dataclass(frozen=True, slots=True)
class Consistency:
    """A proof that the log of ``second`` leaves begins with that of ``first`` (`billing.receipts.merkle`)."""

    first: int
    second: int
    path: tuple[bytes, ...]

    def to_line(self) -> bytes:
        """JSON without a line break."""
        return msgspec.json.encode(_Consistency(self.first, self.second, [each.hex() for each in self.path]))

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Read what `to_line` wrote; raises ProofBroken for anything else, to the byte."""
        try:
            read = _CONSISTENCY.decode(line)
            proof = cls(read.first, read.second, tuple(bytes.fromhex(each) for each in read.path))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProofBroken(str(error)) from error
        if any(len(each) != HASH_BYTES for each in proof.path) or proof.to_line() != line:
            raise ProofBroken("written otherwise than a proof of consistency is")
        return proof


@dataclass(frozen=True, slots=True)
class InvoiceFile:
    """A signed invoice, under its number."""

    number: str
    document: str
    pdf: bytes | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a bundle, in the order of its files; everything is read once, line by line.

    ``heads`` ascend by size, ``receipts`` by leaf. ``prices`` and ``placements`` are lines of
    `billing.pricing.document`: all rows of the models that the receipts name, in the lists of their tenant.
    """

    keys: str
    certificates: Iterable[str]
    heads: Iterable[str]
    consistency: Iterable[Consistency]
    prices: Iterable[str]
    placements: Iterable[str]
    receipts: Iterable[SealedReceipt]
    invoices: Iterable[InvoiceFile] = ()


_Open = Callable[[str], AbstractContextManager[IO[bytes]]]


def write_directory(folder: Path, contents: Contents, key: Ed25519PrivateKey, at_s: int) -> None:
    """Write a new folder. Its manifest comes last: a folder without one is not whole.

    Args:
        key: the deployment's present one, which signs the manifest.
        at_s: Unix second.

    Raises:
        BundleInvalid: contents that are no bundle: a line with a break, receipts out of order.
        OSError: the folder is there, or the disk refuses.
    """
    folder.mkdir(parents=True)

    def opened(name: str) -> AbstractContextManager[IO[bytes]]:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        return path.open("xb")

    _write(opened, contents, key, at_s)


def write_zip(file: BinaryIO, contents: Contents, key: Ed25519PrivateKey, at_s: int) -> None:
    """Write the same as a zip, as a stream; raises as `write_directory` does."""
    with zipfile.ZipFile(file, "w") as archive:

        def opened(name: str) -> AbstractContextManager[IO[bytes]]:
            entry = zipfile.ZipInfo(name, _ZIP_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            return archive.open(entry, "w", force_zip64=True)

        _write(opened, contents, key, at_s)


def _write(opened: _Open, contents: Contents, key: Ed25519PrivateKey, at_s: int) -> None:
    files: dict[str, dict[str, int | str]] = {}
    for name, chunks in _streams(contents):
        digest, length = sha256(), 0
        with opened(name) as file:
            for chunk in chunks:
                digest.update(chunk)
                length += len(chunk)
                file.write(chunk)
        files[name] = {"sha256": digest.hexdigest(), "bytes": length}
    manifest = signed.sign(key, {"kind": KIND, "written_at_s": at_s, "files": files})
    with opened(MANIFEST) as file:
        file.write(manifest.encode())


def _streams(contents: Contents) -> Iterator[tuple[str, Iterable[bytes]]]:
    yield KEYS, [contents.keys.encode()]
    yield CERTIFICATES, _lines(CERTIFICATES, map(str.encode, contents.certificates))
    yield HEADS, _lines(HEADS, map(str.encode, contents.heads))
    yield CONSISTENCY, _lines(CONSISTENCY, (proof.to_line() for proof in contents.consistency))
    yield PRICES, _lines(PRICES, map(str.encode, contents.prices))
    yield PLACEMENTS, _lines(PLACEMENTS, map(str.encode, contents.placements))
    yield RECEIPTS, _lines(RECEIPTS, (receipt.to_line() for receipt in _in_order(contents.receipts)))
    for invoice in contents.invoices:
        name = f"invoices/{invoice.number}.json"
        if INVOICE.fullmatch(name) is None:
            raise BundleInvalid("an invoice's number that is no name of a file", name)
        yield name, [invoice.document.encode()]
        if invoice.pdf is not None:
            yield f"invoices/{invoice.number}.pdf", [invoice.pdf]


def _lines(name: str, lines: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        if b"\n" in line or not line:
            raise BundleInvalid("a line that is none", name, number)
        yield line + b"\n"


def _in_order(receipts: Iterable[SealedReceipt]) -> Iterator[SealedReceipt]:
    last = -1
    for number, receipt in enumerate(receipts, 1):
        if receipt.leaf_index <= last:
            raise BundleInvalid(f"leaf {receipt.leaf_index} behind leaf {last}", RECEIPTS, number)
        last = receipt.leaf_index
        yield receipt


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the deployment says a bundle consists of: (SHA-256 in hex, bytes) by name."""

    written_at_s: int
    files: Mapping[str, tuple[str, int]]

    @classmethod
    def of(cls, payload: Mapping[str, object]) -> Self:
        """Read a verified payload; raises ValueError where it is no manifest."""
        match payload:
            case {"kind": kind, "written_at_s": int(at_s), "files": dict(files), **others} if (
                kind == KIND and not others
            ):
                return cls(at_s, {name: _stated(each) for name, each in files.items()})
            case _:
                raise ValueError("no manifest of a bundle")


def _stated(file: object) -> tuple[str, int]:
    match file:
        case {"sha256": str(digest), "bytes": int(length), **others} if not others:
            return digest, length
        case _:
            raise ValueError("no manifest of a bundle")
