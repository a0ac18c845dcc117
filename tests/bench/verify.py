"""How many receipts a core verifies a second, every signature checked, and what more cores bring.

Half of the receipts are of one worker that did all, half of two; each has two attestations, a place in a log
of a hundred thousand leaves, windows to be rated by, and a memo.
"""

import gc
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

from admin.verify.bundle import ALONE_BYTES_MAX, NoTally, check_bundle, check_chunk
from admin.verify.trust import Pin, Trust, TrustText
from billing.receipts.bundle import RECEIPTS, write_directory
from billing.receipts.bundle_reader import open_bundle
from engine.proof import ed25519
from tests.bench.row import Row
from tests.bundles import START, WRITTEN_AT_S, Deployment, Request, Served, contents_of

RECEIPTS_COUNT: Final = 12_000
BETWEEN: Final = 7
CHUNK: Final = 1_000
RECEIPTS_S_MIN: Final = 3_000.0
SHARE_OF_CORES_MIN: Final = 0.75


def served(count: int = RECEIPTS_COUNT) -> Iterator[Served]:
    """Receipts of a day."""
    house = Deployment()
    prompt = tuple(range(400))
    for number in range(count):
        shape = "both" if number % 2 else "apart"
        request = Request(number, prompt, START + timedelta(seconds=7 * number), 200, "both", hit=320)
        yield house.serve(replace(request, shape=shape))


def rows(alone_s: Sequence[float], cores: int, share: float) -> list[Row]:
    """Processor time of one core a receipt, by chunk; and how much of so many cores is used."""
    library = "libsodium" if ed25519.crypto_sign_open is not None else "OpenSSL: install pynacl"
    return [
        Row(
            "receipts verified on a core",
            1 / median(alone_s),
            "/s",
            floor=RECEIPTS_S_MIN,
            remark=f"{len(alone_s)} chunks, {1 / max(alone_s):,.0f} to {1 / min(alone_s):,.0f}; {library}",
        ),
        Row(
            f"the same on {cores} cores, as a part of {cores} times one",
            share,
            "ratio",
            floor=SHARE_OF_CORES_MIN,
        ),
    ]


def measure() -> list[Row]:
    """A bundle, first by this process alone, then by all cores."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        house = Deployment()
        write_directory(path, contents_of(house, list(served()), between=BETWEEN), house.new, WRITTEN_AT_S)
        assert (path / RECEIPTS).stat().st_size > ALONE_BYTES_MAX
        alone_s = list(_alone(path))
        share = _rate(path, cores) / (cores * _rate(path, 1))
    return rows(alone_s, cores, share)


def _alone(path: Path) -> Iterator[float]:
    """Processor time a receipt, chunk by chunk."""
    with open_bundle(path) as bundle:
        trust = Trust.of(TrustText.of_bundle(bundle, Pin()))
        lines = [(line.number, line.text) for line in bundle.lines(RECEIPTS)]
    gc.collect()
    gc.freeze()
    for start in range(0, len(lines), CHUNK):
        chunk = lines[start : start + CHUNK]
        started_s = time.thread_time()
        part = check_chunk(chunk, trust, NoTally())
        yield (time.thread_time() - started_s) / len(chunk)
        assert (part.verified, part.found) == (len(chunk), 0), part.findings[:3]


def _rate(path: Path, jobs: int) -> float:
    """Bytes of receipts a second, from the first that are checked on: processes have started then."""
    seen: list[tuple[float, int]] = []
    report = check_bundle(
        path, Pin(), jobs=jobs, progress=lambda read: seen.append((time.perf_counter(), read))
    )
    assert report.ok, report.findings[:3]
    return sum(read for _, read in seen[1:]) / (seen[-1][0] - seen[0][0])
