"""Reads bundles that anybody may have written: nothing is taken that `billing.receipts.bundle` does not name.

A bundle is never unpacked and never held whole. Who reads its files to their ends can have them compared with
the manifest.
"""

import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final, Protocol

from billing.errors import BundleInvalid
from billing.receipts.bundle import FILES, INVOICE, KEYS, MANIFEST, RECEIPTS, Manifest
from engine.proof import signed
from engine.proof.ring import DeploymentRing
from engine.proof.signed import ProofInvalid

FILES_MAX: Final = 100_000
LINE_BYTES_MAX: Final = 2**20
CONTENT_BYTES_MAX: Final = 64 * 2**20
FILE_BYTES_MAX: Final = 2**30
RECEIPTS_BYTES_MAX: Final = 2**40

_CHUNK_BYTES: Final = 2**20
_DEFLATED: Final = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its break, and where it stands; lines count from 1."""

    file: str
    number: int
    text: bytes


class _Source(Protocol):
    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each file, by what is said of it."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file that is there."""


@dataclass(slots=True)
class Bundle:
    """An open bundle, laid out as one. Its methods raise BundleInvalid where a file cannot be read."""

    _source: _Source
    _read: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """All files."""
        return frozenset(self._source.sizes)

    @property
    def invoices(self) -> tuple[str, ...]:
        """The files of signed invoices, in the order of their names."""
        return tuple(
            sorted(name for name in self.names if name.startswith("invoices/") and name.endswith(".json"))
        )

    @property
    def receipts_bytes(self) -> int:
        """Length of the file of receipts, by what is said of it."""
        return self._source.sizes[RECEIPTS]

    def lines(self, name: str) -> Iterator[Line]:
        """The lines of a file, each whole and ended by a break."""
        number, rest = 0, b""
        for chunk in self._chunks(name):
            *whole, rest = (rest + chunk).split(b"\n")
            for text in whole:
                number += 1
                if not text or len(text) > LINE_BYTES_MAX:
                    raise BundleInvalid("an empty line" if not text else "a line too long", name, number)
                yield Line(name, number, text)
            if len(rest) > LINE_BYTES_MAX:
                raise BundleInvalid("a line too long", name, number + 1)
        if rest:
            raise BundleInvalid("truncated: the last line has no end", name, number + 1)

    def content(self, name: str) -> bytes:
        """A whole file, of 64 MiB at most."""
        if self._source.sizes[name] > CONTENT_BYTES_MAX:
            raise BundleInvalid("a file too long", name)
        return b"".join(self._chunks(name))

    def manifest(self, ring: DeploymentRing) -> Manifest:
        """What the deployment says that there is.

        Raises:
            BundleInvalid: not signed by a key of the ring, with the key that it had then, or no manifest.
        """
        text = self.content(MANIFEST)
        try:
            signed.canonical_value(text)
            payload, key = ring.verify(text.decode())
            manifest = Manifest.of(payload)
            key.check(manifest.written_at_s)
        except (ProofInvalid, ValueError) as error:
            raise BundleInvalid(str(error), MANIFEST) from error
        return manifest

    def differences(self, manifest: Manifest) -> Iterator[BundleInvalid]:
        """Each file that is not the one of the manifest; files that have not been read are."""
        for name in sorted({*manifest.files, *self.names} - {MANIFEST}):
            if name not in self.names:
                yield BundleInvalid("the manifest has it, the bundle has not", name)
            elif name not in manifest.files:
                yield BundleInvalid("the bundle has it, the manifest has not", name)
            else:
                if name not in self._read:
                    for _ in self._chunks(name):
                        pass
                if self._read[name] != manifest.files[name]:
                    yield BundleInvalid("it is not what the deployment's manifest says", name)

    def _chunks(self, name: str) -> Iterator[bytes]:
        digest, length = sha256(), 0
        bytes_max = RECEIPTS_BYTES_MAX if name == RECEIPTS else FILE_BYTES_MAX
        try:
            with self._source.open(name) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    length += len(chunk)
                    if length > bytes_max:
                        raise BundleInvalid("a file too long", name)
                    yield chunk
        except _BROKEN as error:
            raise BundleInvalid(f"cannot be read: {error}", name) from error
        self._read[name] = (digest.hexdigest(), length)


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Open a folder or a zip.

    Raises:
        BundleInvalid: neither, files that are missing, unknown, named twice or no files, names that lead out
            of it, a zip that is truncated or encrypted.
    """
    if path.is_dir():
        yield Bundle(_checked(_Folder(path, _sizes_of(path))))
        return
    try:
        archive = zipfile.ZipFile(path)
    except _BROKEN as error:
        raise BundleInvalid(f"neither a folder nor a zip: {error}", path.name) from error
    with archive:
        yield Bundle(_checked(_Zip(archive, _entries_of(archive))))


@dataclass(frozen=True, slots=True)
class _Folder:
    path: Path
    sizes: Mapping[str, int]

    def open(self, name: str) -> IO[bytes]:
        return os.fdopen(os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW), "rb")


@dataclass(frozen=True, slots=True)
class _Zip:
    archive: zipfile.ZipFile
    sizes: Mapping[str, int]

    def open(self, name: str) -> IO[bytes]:
        return self.archive.open(name)


def _sizes_of(folder: Path) -> dict[str, int]:
    """Regular files and their bytes; links are not followed."""
    sizes: dict[str, int] = {}
    pending = [("", folder)]
    while pending:
        prefix, here = pending.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode) and name == "invoices":
                        pending.append(("invoices/", here / entry.name))
                        continue
                    if not stat.S_ISREG(status.st_mode):
                        raise BundleInvalid("no file of a bundle", name)
                    _add(sizes, name, status.st_size)
        except OSError as error:
            raise BundleInvalid(f"cannot be read: {error}", prefix or None) from error
    return sizes


def _entries_of(archive: zipfile.ZipFile) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for entry in archive.infolist():
        if entry.flag_bits & 1 or entry.compress_type not in _DEFLATED:
            raise BundleInvalid("encrypted, or compressed in a way of its own", entry.filename)
        _add(sizes, entry.orig_filename, entry.file_size)
    return sizes


def _add(sizes: dict[str, int], name: str, size: int) -> None:
    if name in sizes:
        raise BundleInvalid("there are two files of this name", name)
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or ":" in name:
        raise BundleInvalid("a name that leads out of the bundle", name)
    if name not in FILES and INVOICE.fullmatch(name) is None:
        raise BundleInvalid("no file of a bundle", name)
    if len(sizes) >= FILES_MAX:
        raise BundleInvalid("too many files", name)
    sizes[name] = size


def _checked(source: Any) -> _Source:
    missing = sorted(set(FILES) - source.sizes.keys(), key=FILES.index)
    if missing:
        raise BundleInvalid("missing", missing[0])
    if source.sizes[KEYS] > CONTENT_BYTES_MAX:
        raise BundleInvalid("a file too long", KEYS)
    checked: _Source = source
    return checked
