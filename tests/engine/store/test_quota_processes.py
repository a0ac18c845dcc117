"""Two processes that write as fast as they can into one quota."""

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from engine.store.block import Term
from engine.store.directory import PrefixStore
from engine.store.evict import Quotas
from engine.store.places import places_of
from engine.store.tombstone import tombstones_in
from tests.engine.store.conftest import NAMESPACE

ROOT = Path(__file__).resolve().parents[3]
FILE_BYTES = 184 + 64 * 1024
QUOTA_BYTES, TENANT_BYTES = 100 * FILE_BYTES, 40 * FILE_BYTES
WRITER = f"""
import sys, time
from pathlib import Path
from engine.store.block import Term
from engine.store.directory import PrefixStore
from engine.store.evict import Quotas

store = PrefixStore(Path(sys.argv[1]), lambda: int(time.time()), Quotas({QUOTA_BYTES}, {TENANT_BYTES}))
for turn in range(600):
    blocks = store.namespace("{NAMESPACE}", f"ten_{{turn % 4}}")
    name = f"{{sys.argv[2]}} {{turn}}".encode().ljust(32)
    blocks.publish(name, [memoryview(bytes(64 * 1024))], ("chat", "agent")[turn % 2])
"""


def used_bytes(root: Path) -> int:
    return sum(status.st_size for place in places_of(root) for _, status in place.blocks())


def guaranteed_bytes(root: Path) -> Counter[str]:
    """By tenant: what is promised, and what is owed."""
    found = Counter[str]()
    for _, owed in tombstones_in(root):
        found[owed.tenant] += owed.block_bytes
    for place in places_of(root):
        for _, status in place.blocks():
            found[place.tenant] += status.st_size * Term.of(status).promised
    return found


def stopped(writers: list[subprocess.Popen[bytes]], asked: signal.Signals) -> None:
    """Stop or continue all writers; a stop is waited for, so that the directory stands still."""
    for writer in writers:
        writer.send_signal(asked)
    while asked is signal.SIGSTOP and any(
        writer.poll() is None and psutil.Process(writer.pid).status() != psutil.STATUS_STOPPED
        for writer in writers
    ):
        pass


def test_quotas_hold_at_every_moment_but_for_a_block_a_writer(tmp_path: Path) -> None:
    """A third process sweeps all the time, as a keeper does, so that surveys are made in between."""
    store = PrefixStore(tmp_path, lambda: int(time.time()), Quotas(QUOTA_BYTES, TENANT_BYTES))
    commands = [[sys.executable, "-c", WRITER, str(tmp_path), str(writer)] for writer in range(2)]
    writers = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    used, guaranteed = [0], Counter[str]()
    while any(writer.poll() is None for writer in writers):
        stopped(writers, signal.SIGSTOP)
        used.append(used_bytes(tmp_path))
        guaranteed |= guaranteed_bytes(tmp_path)
        stopped(writers, signal.SIGCONT)
        store.sweep(int(time.time()))
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(used) > 5
    assert max(used) <= QUOTA_BYTES + 2 * FILE_BYTES
    assert used[-1] > QUOTA_BYTES * 0.9, "the writers have hindered each other"
    assert max(guaranteed.values()) <= TENANT_BYTES + 2 * FILE_BYTES
