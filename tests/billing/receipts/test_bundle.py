"""Bundles: a folder and a zip of the same, and everything that is none."""

import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from billing.errors import BundleInvalid, ProofBroken
from billing.receipts import bundle_reader
from billing.receipts.bundle import (
    CERTIFICATES,
    FILES,
    HEADS,
    KEYS,
    MANIFEST,
    PRICES,
    RECEIPTS,
    Consistency,
    Contents,
    InvoiceFile,
    write_directory,
    write_zip,
)
from billing.receipts.bundle_reader import open_bundle
from billing.receipts.sealed import SealedReceipt
from tests.bundles import WRITTEN_AT_S, Deployment, contents_of, served_by

HOUSE = Deployment()
SERVED = served_by(HOUSE, 5)
CONTENTS = contents_of(HOUSE, SERVED, [InvoiceFile("KV-1", "{}", b"%PDF-1.7"), InvoiceFile("KV-2", "{}")])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_directory(tmp_path / "b", CONTENTS, HOUSE.new, WRITTEN_AT_S)
    return tmp_path / "b"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "b.zip"
    with path.open("wb") as file:
        write_zip(file, CONTENTS, HOUSE.new, WRITTEN_AT_S)
    return path


def whole(path: Path) -> dict[str, bytes]:
    with open_bundle(path) as bundle:
        return {name: bundle.content(name) for name in bundle.names}


def refused(path: Path) -> BundleInvalid:
    with pytest.raises(BundleInvalid) as refusal:
        read(path)
    return refusal.value


def read(path: Path) -> None:
    """Every file as what it is, and all beside the manifest."""
    with open_bundle(path) as bundle:
        manifest = bundle.manifest(HOUSE.ring)
        for name in bundle.names:
            list(bundle.lines(name) if name.endswith(".jsonl") else [bundle.content(name)])
        for difference in bundle.differences(manifest):
            raise difference


def test_a_zip_and_a_folder_hold_the_same_and_what_was_put_in(folder: Path, archive: Path) -> None:
    assert whole(folder) == whole(archive)
    with open_bundle(archive) as bundle:
        read = [SealedReceipt.read(line.text) for line in bundle.lines(RECEIPTS)]
        assert read == list(CONTENTS.receipts)
        assert [line.number for line in bundle.lines(HEADS)] == [1, 2, 3]
        assert bundle.invoices == ("invoices/KV-1.json", "invoices/KV-2.json")
        assert bundle.content("invoices/KV-1.pdf") == b"%PDF-1.7"
        assert list(bundle.differences(bundle.manifest(HOUSE.ring))) == []


def test_the_same_contents_give_the_same_zip(archive: Path) -> None:
    again = io.BytesIO()
    write_zip(again, CONTENTS, HOUSE.new, WRITTEN_AT_S)
    assert again.getvalue() == archive.read_bytes()


def test_files_that_were_not_read_are_compared_with_the_manifest_too(folder: Path) -> None:
    (folder / "invoices/KV-1.pdf").write_bytes(b"%PDF-1.8")
    with open_bundle(folder) as bundle:
        (found,) = bundle.differences(bundle.manifest(HOUSE.ring))
    assert found.file == "invoices/KV-1.pdf"


@pytest.mark.parametrize("name", sorted(set(FILES) - {MANIFEST}))
def test_a_file_that_is_missing_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert refused(folder).file == name


def test_what_the_manifest_has_and_the_bundle_has_not_is_named_and_the_other_way_round(folder: Path) -> None:
    (folder / "invoices/KV-2.json").rename(folder / "invoices/KV-3.json")
    with open_bundle(folder) as bundle:
        found = [each.file for each in bundle.differences(bundle.manifest(HOUSE.ring))]
    assert found == ["invoices/KV-2.json", "invoices/KV-3.json"]


def test_a_manifest_of_another_deployment_or_of_another_time_is_refused(folder: Path) -> None:
    other = Deployment("other")
    with open_bundle(folder) as bundle, pytest.raises(BundleInvalid) as foreign:
        bundle.manifest(other.ring)
    assert foreign.value.file == MANIFEST
    write_directory(folder.with_name("late"), CONTENTS, HOUSE.old, WRITTEN_AT_S)
    assert refused(folder.with_name("late")).file == MANIFEST


@pytest.mark.parametrize(
    "name", ["notes.txt", "receipts.jsonl.bak", "invoices/deep/a.json", "invoices/.json"]
)
def test_an_unknown_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"")
    assert refused(folder).file in (name, str(Path(name).parent))


def test_links_and_pipes_are_no_files(folder: Path) -> None:
    (folder / PRICES).rename(folder.parent / PRICES)
    (folder / PRICES).symlink_to(folder.parent / PRICES)
    assert refused(folder).file == PRICES
    (folder / PRICES).unlink()
    os.mkfifo(folder / PRICES)
    assert refused(folder).file == PRICES


def added(archive: Path, name: str) -> BundleInvalid:
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr(name, b"x")
    return refused(archive)


@pytest.mark.parametrize(
    "name", ["../keys.json", "/etc/passwd", "invoices/../../a.json", "..\\a.json", "C:a.json", "invoices/"]
)
def test_a_name_that_leads_out_of_the_bundle_is_refused(archive: Path, name: str) -> None:
    assert added(archive, name).file == name


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_twice_is_refused(archive: Path) -> None:
    assert added(archive, KEYS).file == KEYS


def test_a_truncated_zip_is_refused(archive: Path) -> None:
    raw = archive.read_bytes()
    for end in (0, 10, len(raw) // 2, len(raw) - 1):
        archive.write_bytes(raw[:end])
        assert refused(archive).reason.startswith("neither a folder nor a zip")


def test_a_zip_that_is_spoilt_inside_is_refused_by_the_file(archive: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        offset = file.getinfo(RECEIPTS).header_offset
    raw = bytearray(archive.read_bytes())
    raw[offset + 200] ^= 0xFF
    archive.write_bytes(raw)
    assert refused(archive).file == RECEIPTS


def test_an_encrypted_zip_is_refused(archive: Path) -> None:
    raw = bytearray(archive.read_bytes())
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(raw)
    assert refused(archive).file == KEYS


@pytest.mark.parametrize(("end", "line"), [(-1, 3), (-40, 3)])
def test_a_file_that_breaks_off_is_refused_with_the_line(folder: Path, end: int, line: int) -> None:
    file = folder / CERTIFICATES
    file.write_bytes(file.read_bytes()[:end])
    found = refused_line(folder, CERTIFICATES)
    assert (found.file, found.line) == (CERTIFICATES, line)


def refused_line(folder: Path, name: str) -> BundleInvalid:
    with open_bundle(folder) as bundle, pytest.raises(BundleInvalid) as refusal:
        list(bundle.lines(name))
    return refusal.value


def test_an_empty_line_and_one_too_long_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / HEADS
    file.write_bytes(file.read_bytes() + b"\n")
    assert refused_line(folder, HEADS).line == 4
    monkeypatch.setattr(bundle_reader, "LINE_BYTES_MAX", 100)
    assert refused_line(folder, RECEIPTS).line == 1
    file.write_bytes(b"x" * 101)
    assert refused_line(folder, HEADS).line == 1


@pytest.mark.parametrize("limit", ["FILE_BYTES_MAX", "CONTENT_BYTES_MAX"])
def test_huge_files_are_refused(archive: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(bundle_reader, limit, 10)
    assert "too long" in refused(archive).reason


def test_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_reader, "FILES_MAX", 5)
    assert "too many" in refused(folder).reason


@pytest.mark.parametrize(
    "contents",
    [
        replace(CONTENTS, receipts=list(CONTENTS.receipts)[::-1]),
        replace(CONTENTS, receipts=[*CONTENTS.receipts, list(CONTENTS.receipts)[-1]]),
        replace(CONTENTS, heads=["a\nb"]),
        replace(CONTENTS, heads=[""]),
        replace(CONTENTS, invoices=[InvoiceFile("../KV", "{}")]),
    ],
)
def test_what_would_be_no_bundle_is_not_written(tmp_path: Path, contents: Contents) -> None:
    with pytest.raises(BundleInvalid):
        write_directory(tmp_path / "c", contents, HOUSE.new, WRITTEN_AT_S)
    assert not (tmp_path / "c" / MANIFEST).exists()


def test_a_proof_of_consistency_comes_back_and_has_one_text() -> None:
    proof = list(CONTENTS.consistency)[-1]
    line = proof.to_line()
    assert Consistency.read(line) == proof
    for other in (
        line + b" ",
        line.replace(b"a", b"A", 1),
        json.dumps(json.loads(line)).encode(),
        b"{}",
        line[:-3],
    ):
        if other != line:
            with pytest.raises(ProofBroken):
                Consistency.read(other)
