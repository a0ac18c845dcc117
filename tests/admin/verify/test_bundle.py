"""Whole bundles: what is found when a byte, a line or a file of one is not what it was."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admin.verify.bundle import BundleReport, NoTally, Tally, check_bundle
from admin.verify.finding import Finding, Place
from admin.verify.receipt import CheckedReceipt
from admin.verify.trust import Pin, Trust
from billing.errors import BundleInvalid
from billing.receipts.bundle import (
    CERTIFICATES,
    CONSISTENCY,
    FILES,
    HEADS,
    KEYS,
    MANIFEST,
    PLACEMENTS,
    PRICES,
    RECEIPTS,
    Contents,
    InvoiceFile,
    write_directory,
    write_zip,
)
from engine.proof import signed
from engine.proof.ring import DeploymentRing
from tests.bundles import WRITTEN_AT_S, Deployment, Served, contents_of, key_of, resigned, served_by

HOUSE = Deployment()
SERVED = served_by(HOUSE, 6)
INVOICE = InvoiceFile("KV-1", signed.sign(HOUSE.new, {"kind": "an invoice"}), b"%PDF-1.7")
CONTENTS = contents_of(HOUSE, SERVED, [INVOICE])
FLIPS_MAX = 120  # a file

Seen = tuple[str, int | None]  # file and line


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "sound"
    write_directory(folder, CONTENTS, HOUSE.new, WRITTEN_AT_S)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "b"))


def verified(path: Path, pin: Pin = Pin(), jobs: int = 1) -> BundleReport:  # noqa: B008 -- it is frozen
    return check_bundle(path, pin, jobs=jobs)


def seen(path: Path) -> set[Seen]:
    """Places of all that is found, or the place where it cannot be read."""
    try:
        return {(each.place.file, each.place.line) for each in verified(path).findings}
    except BundleInvalid as error:
        return {(error.file or "", error.line)}


def steps(path: Path, file: str, line: int | None = None) -> set[str]:
    return {each.step for each in verified(path).findings if each.place == Place(file, line)}


def test_a_sound_bundle_is_verified_whole(sound: Path, tmp_path: Path) -> None:
    report = verified(sound)
    assert report.findings == []
    assert (report.ok, report.receipts, report.verified, report.pinned) == (True, 6, 6, False)
    assert report.anchor == HOUSE.ring.keys[0].id
    assert report.grades == {"attested": 4, "gateway-counted": 1, "unattested": 1}
    assert report.femto == {"USD": sum(one.receipt.charge for one in SERVED)}
    with (tmp_path / "b.zip").open("wb") as file:
        write_zip(file, CONTENTS, HOUSE.new, WRITTEN_AT_S)
    assert verified(tmp_path / "b.zip") == report


def flips(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Each byte, or as many evenly, with a bit of it turned: another one each time."""
    for number, place in enumerate(range(0, len(raw), max(1, len(raw) // FLIPS_MAX))):
        changed = bytearray(raw)
        changed[place] ^= 1 << number % 8
        yield place, bytes(changed)


@pytest.mark.parametrize("name", [*FILES, "invoices/KV-1.json", "invoices/KV-1.pdf"])
def test_a_changed_bit_anywhere_is_found_and_its_place_is_named(folder: Path, name: str) -> None:
    raw = (folder / name).read_bytes()
    for place, changed in flips(raw):
        (folder / name).write_bytes(changed)
        found = seen(folder)
        assert name in {file for file, _ in found}, (place, found)
        if name.endswith(".jsonl") and raw[place] != ord("\n") and changed[place] != ord("\n"):
            line = raw[:place].count(b"\n") + 1
            named = {number for file, number in found if file == name}
            assert named & {line, None} - ({None} if name in {RECEIPTS, HEADS, CERTIFICATES} else set()), (
                place
            )


@pytest.mark.parametrize("name", [RECEIPTS, HEADS, CERTIFICATES, CONSISTENCY])
def test_a_changed_bit_of_what_is_proved_is_found_without_the_manifest(folder: Path, name: str) -> None:
    """The manifest only says that a file is another; what each line proves is checked apart from it."""
    raw = (folder / name).read_bytes()
    for place, changed in flips(raw):
        (folder / name).write_bytes(changed)
        try:
            found = [each for each in verified(folder).findings if each.step != "manifest"]
        except BundleInvalid:
            continue
        assert any(each.place.file == name for each in found), place


def lines_of(folder: Path, name: str) -> list[bytes]:
    return (folder / name).read_bytes().splitlines(keepends=True)


Rearranged = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize("name", [CERTIFICATES, HEADS, CONSISTENCY, PRICES, RECEIPTS])
@pytest.mark.parametrize(
    "rearranged",
    [
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: lines[1:],
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0], *lines],
        lambda lines: [],
    ],
    ids=[
        "reordered",
        "the first dropped",
        "the last dropped",
        "the last twice",
        "the first twice",
        "emptied",
    ],
)
def test_lines_out_of_place_are_found(folder: Path, name: str, rearranged: Rearranged) -> None:
    lines = lines_of(folder, name)
    (folder / name).write_bytes(b"".join(rearranged(lines)))
    assert name in {file for file, _ in seen(folder)}


def test_receipts_out_of_order_and_twice_are_found_by_their_lines(folder: Path) -> None:
    one, two, *others = lines_of(folder, RECEIPTS)
    (folder / RECEIPTS).write_bytes(b"".join([two, one, *others]))
    assert "order" in steps(folder, RECEIPTS, 2)
    (folder / RECEIPTS).write_bytes(b"".join([one, one, two, *others]))
    assert steps(folder, RECEIPTS, 2) == {"order", "request"}


def swapped(folder: Path, name: str) -> None:
    one, two, *others = map(json.loads, lines_of(folder, RECEIPTS))
    one[name], two[name] = two[name], one[name]
    texts = (json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in (one, two, *others))
    (folder / RECEIPTS).write_bytes(b"".join(texts))


@pytest.mark.parametrize("name", ["leaf_nonce", "leaf_index", "path", "receipt"])
def test_what_two_receipts_have_exchanged_is_found_in_both(folder: Path, name: str) -> None:
    swapped(folder, name)
    assert "inclusion" in steps(folder, RECEIPTS, 1)
    assert "inclusion" in steps(folder, RECEIPTS, 2)


def test_a_request_that_was_sealed_twice_is_found(tmp_path: Path) -> None:
    write_directory(tmp_path / "b", contents_of(HOUSE, [*SERVED, SERVED[0]]), HOUSE.new, WRITTEN_AT_S)
    (found,) = verified(tmp_path / "b").findings
    assert (found.place, found.step) == (Place(RECEIPTS, 7), "request")


def test_a_receipt_of_another_tenant_is_found(tmp_path: Path) -> None:
    stranger: Served = replace(SERVED[-1], receipt=replace(SERVED[-1].receipt, tenant_id="ten_b"))
    write_directory(tmp_path / "b", contents_of(HOUSE, [*SERVED[:-1], stranger]), HOUSE.new, WRITTEN_AT_S)
    assert "tenant" in steps(tmp_path / "b", RECEIPTS, 6)


OTHER = Deployment("other")
OF_OTHER = contents_of(OTHER, served_by(OTHER, 6))


@pytest.mark.parametrize(
    ("foreign", "place"),
    [
        ({"heads": OF_OTHER.heads}, (HEADS, 1)),
        ({"certificates": OF_OTHER.certificates}, (CERTIFICATES, 1)),
        ({"receipts": OF_OTHER.receipts}, (RECEIPTS, 1)),
        ({"consistency": OF_OTHER.consistency}, (CONSISTENCY, 1)),
        ({"keys": OF_OTHER.keys}, (MANIFEST, None)),
    ],
)
def test_what_is_of_another_bundle_is_found(tmp_path: Path, foreign: dict[str, Any], place: Seen) -> None:
    contents = replace(CONTENTS, **foreign)
    write_directory(tmp_path / "b", contents, HOUSE.new, WRITTEN_AT_S)
    assert place in seen(tmp_path / "b")


def heads(contents: Contents, which: int, **change: object) -> list[str]:
    texts = list(contents.heads)
    texts[which] = resigned(HOUSE, texts[which], change)
    return texts


@pytest.mark.parametrize(
    ("contents", "step"),
    [
        (replace(CONTENTS, heads=heads(CONTENTS, 1, root="ab" * 32)), "consistency"),
        (replace(CONTENTS, heads=heads(CONTENTS, 1, at_s=2**32)), "head"),
        (replace(CONTENTS, heads=heads(CONTENTS, 1, size=1)), "head"),
        (replace(CONTENTS, consistency=[]), "consistency"),
        (replace(CONTENTS, consistency=[*CONTENTS.consistency, *OF_OTHER.consistency]), "consistency"),
    ],
)
def test_heads_that_are_of_no_one_log_are_found(tmp_path: Path, contents: Contents, step: str) -> None:
    """The deployment itself has signed these: only the proofs between them tell."""
    write_directory(tmp_path / "b", contents, HOUSE.new, WRITTEN_AT_S)
    assert step in {each.step for each in verified(tmp_path / "b").findings}


def test_a_bundle_of_another_deployment_is_refused_where_one_is_trusted(sound: Path) -> None:
    first, present = HOUSE.ring.keys
    known = DeploymentRing.of(first.public)
    for pin in (Pin(anchor=first.id), Pin(ring=known), Pin(ring=HOUSE.ring)):
        assert verified(sound, pin).ok
        assert verified(sound, pin).pinned
    forked = known.rotated(HOUSE.old, key_of("stolen").public_key(), int(1.8e9))
    for pin in (Pin(anchor=present.id), Pin(ring=OTHER.ring), Pin(ring=forked)):
        with pytest.raises(BundleInvalid) as refusal:
            verified(sound, pin)
        assert refusal.value.file == KEYS


def test_an_older_bundle_is_checked_by_the_longer_ring_that_is_trusted(tmp_path: Path) -> None:
    early = Deployment()
    early.ring = DeploymentRing.of(HOUSE.old.public_key())
    contents = contents_of(HOUSE, SERVED[:1])
    write_directory(tmp_path / "b", replace(contents, keys=early.ring.to_text()), HOUSE.old, 1_793_000_000)
    assert verified(tmp_path / "b", Pin(ring=HOUSE.ring)).ok


def test_processes_find_the_same_as_one(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admin.verify.bundle.ALONE_BYTES_MAX", 0)
    monkeypatch.setattr("admin.verify.bundle.CHUNK", 2)
    assert verified(sound, jobs=2) == verified(sound)
    swapped(folder := Path(shutil.copytree(sound, tmp_path / "b")), "leaf_nonce")
    assert verified(folder, jobs=2) == verified(folder)
    lines = lines_of(sound, RECEIPTS)
    (folder / RECEIPTS).write_bytes(b"".join([*lines[:2], *lines[4:], *lines[2:4]]))
    for jobs in (1, 2):
        assert {each.step for each in verified(folder, jobs=jobs).findings} == {"order", "manifest"}


def test_a_truncated_zip_or_file_is_refused_by_its_place(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "b.zip"
    with path.open("wb") as file:
        write_zip(file, CONTENTS, HOUSE.new, WRITTEN_AT_S)
    raw = path.read_bytes()
    for end in range(0, len(raw), len(raw) // 20):
        path.write_bytes(raw[:end])
        assert seen(path) == {("b.zip", None)}
    (folder / RECEIPTS).write_bytes((folder / RECEIPTS).read_bytes()[:-50])
    assert seen(folder) == {(RECEIPTS, 6)}


def test_a_zip_of_another_content_under_its_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    with path.open("wb") as file:
        write_zip(file, CONTENTS, HOUSE.new, WRITTEN_AT_S)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    for name, entry in entries.items():
        spoilt = bytearray(raw)
        spoilt[entry.header_offset + 30 + len(name) + 20 + entry.compress_size // 2] ^= 0x55
        path.write_bytes(spoilt)
        assert name in {file for file, _ in seen(path)}


def test_only_so_many_findings_are_kept_and_all_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.verify.bundle.FINDINGS_MAX", 2)
    (folder / HEADS).write_bytes(b"")
    report = verified(folder)
    assert (len(report.findings), report.ok) == (2, False)
    assert report.found > 6


class Counted(NoTally):
    """Implements `Tally`: the charges of what was verified."""

    def __init__(self, name: str = "", femto: int = 0) -> None:
        self.name, self.femto, self.leaves = name, femto, list[int]()

    def fresh(self) -> "Counted":
        return Counted(self.name)

    def add(self, checked: CheckedReceipt) -> None:
        assert checked.document is not None
        self.femto += checked.document.charge
        self.leaves.append(checked.sealed.leaf_index)

    def merge(self, other: Tally) -> None:
        assert isinstance(other, Counted)
        self.femto += other.femto
        self.leaves += other.leaves

    def findings(self) -> list[Finding]:
        assert self.leaves == sorted(self.leaves)
        return [Finding(Place(self.name), "total", str(self.femto))]


class Hook:
    """Implements `InvoiceHook`."""

    def begin(self, files: dict[str, bytes], trust: Trust) -> Tally:
        (name,) = files
        assert files[name].decode() == INVOICE.document
        assert trust.ring.verify(INVOICE.document)
        return Counted(name)


def test_invoices_are_given_each_receipt_that_was_verified(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.verify.bundle.CHUNK", 2)
    (found,) = check_bundle(folder, Pin(), jobs=1, invoices=Hook()).findings
    whole = sum(one.receipt.charge for one in SERVED)
    assert found == Finding(Place("invoices/KV-1.json"), "total", str(whole))
    lines = lines_of(folder, PLACEMENTS)
    (folder / PLACEMENTS).write_bytes(b"")
    *_, found = check_bundle(folder, Pin(), jobs=1, invoices=Hook()).findings
    assert (len(lines), int(found.reason)) == (1, whole)  # no receipt before the placement needs it
