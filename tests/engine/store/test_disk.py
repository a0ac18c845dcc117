"""Disks that are full, read-only or gone, and files that are not what they should be: always a miss."""

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.store.directory import Loaded, Match, Published
from engine.store.namespace import Namespace
from tests.engine.store.conftest import (
    NAMESPACE,
    NEXT_NAMESPACE,
    PAYLOAD,
    START_S,
    House,
    chain,
    load,
    publish,
)

NOBODY = 65534
OURS = Namespace(NAMESPACE, "ef" * 32, 64, {"vllm": "0.32.0"})


def in_a_child(check: Callable[[], None]) -> None:
    """Run a check where limits and rights can be given up."""
    child = os.fork()
    if not child:
        try:
            check()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def open_house() -> Iterator[House]:
    """A store below a folder that every account may enter."""
    folder = Path(tempfile.mkdtemp(prefix="kv-disk-", dir="/tmp"))
    folder.chmod(0o755)
    yield House(folder / "store")
    shutil.rmtree(folder)


def as_a_stranger(check: Callable[[], None]) -> None:
    """Run a check under an account that owns nothing; where we are not root, under our own."""

    def stranger() -> None:
        if os.geteuid() == 0:
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        check()

    in_a_child(stranger)


def test_a_full_disk_refuses_a_block_and_leaves_nothing_of_it(house: House) -> None:
    publish(house.store(quota_blocks=10), chain(1))

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(PAYLOAD) // 2, resource.RLIM_INFINITY))
        store = house.store(quota_blocks=10)
        assert publish(store, chain(1, 2)) == [Published.REFUSED]
        assert not store.writable()
        assert load(store.namespace(NAMESPACE, "ten_a"), chain(1)[0]) is Loaded.LOADED

    in_a_child(full)
    store = house.store(quota_blocks=10)
    assert not list(house.root.rglob("*.tmp"))
    assert store.namespace(NAMESPACE, "ten_a").match(chain(1, 2)) == Match(0)
    assert publish(store, chain(1, 2)) == [Published.WRITTEN]


def test_a_read_only_store_serves_what_it_has_and_takes_nothing(open_house: House) -> None:
    publish(open_house.store(), chain(2))
    for path in [open_house.root, *open_house.root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def read_only() -> None:
        store = open_house.store()
        blocks = store.namespace(NAMESPACE, "ten_a")
        held = blocks.hold(chain(2))
        assert (held.blocks, held.pin) == (2, None)
        assert load(blocks, chain(2)[0]) is Loaded.LOADED
        assert publish(store, chain(1, 9)) == [Published.REFUSED]
        assert publish(open_house.store(quota_blocks=9), chain(1, 9)) == [Published.REFUSED]
        assert store.sweep(START_S + 10**9).expired == 0

    as_a_stranger(read_only)
    for path in [open_house.root, *open_house.root.rglob("*")]:
        path.chmod(0o700)


def test_a_store_that_may_not_be_read_is_a_miss(open_house: House) -> None:
    publish(open_house.store(), chain(2))
    open_house.root.chmod(0)

    def unreadable() -> None:
        store = open_house.store()
        blocks = store.namespace(NAMESPACE, "ten_a")
        assert blocks.match(chain(2)) == Match(0)
        assert load(blocks, chain(2)[0]) is Loaded.MISSING
        assert publish(store, chain(1, 9)) == [Published.REFUSED]
        assert store.check_integrity() == []
        store.sweep(START_S)

    as_a_stranger(unreadable)
    open_house.root.chmod(0o700)


def test_a_store_that_vanishes_under_its_worker_is_a_miss_and_is_made_anew(house: House) -> None:
    store = house.store(quota_blocks=5)
    store.describe(OURS)
    publish(store, chain(2))
    blocks = store.namespace(NAMESPACE, "ten_a")
    held = blocks.hold(chain(2))
    shutil.rmtree(house.root)
    assert load(blocks, chain(2)[0]) is Loaded.MISSING
    held.release()
    assert blocks.match(chain(2)) == Match(0)
    assert not blocks.renew(chain(2)[0], "chat")
    store.sweep(START_S)
    published = publish(store, chain(1))
    house.clock.at_s += 5
    assert Published.WRITTEN in (*published, *publish(store, chain(1)))
    assert load(blocks, chain(1)[0]) is Loaded.LOADED
    assert Namespace.read(house.root, NAMESPACE) == OURS, "what it is promised for is told again"


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(file: Path) -> None:
        file.unlink()
        make(file)

    return replace


NOT_BLOCKS = {
    "a folder": instead(Path.mkdir),
    "a link to itself": instead(lambda file: file.symlink_to(file)),
    "a link to nothing": instead(lambda file: file.symlink_to("nowhere")),
    "nothing": Path.unlink,
    "no bytes": lambda file: os.truncate(file, 0),
    "a header alone": lambda file: os.truncate(file, 184),
    "bytes too many": lambda file: file.write_bytes(file.read_bytes() + b"!"),
    "another format": lambda file: file.write_bytes(b"SQLite format 3\0" + bytes(2000)),
    "a length beyond all": lambda file: file.write_bytes(
        file.read_bytes()[:104] + b"\xff" * 8 + file.read_bytes()[112:]
    ),
}


@pytest.mark.parametrize("damage", NOT_BLOCKS.values(), ids=NOT_BLOCKS.keys())
def test_a_file_that_is_no_block_is_never_loaded_and_heals(
    house: House, damage: Callable[[Path], object]
) -> None:
    store = house.store(quota_blocks=5)
    publish(store, chain(3))
    blocks = store.namespace(NAMESPACE, "ten_a")
    damage(blocks.path(chain(3)[1]))
    assert load(blocks, chain(3)[1]) is not Loaded.LOADED
    blocks.quarantine(chain(3)[1])  # what cannot even be read is not moved by a load
    assert blocks.match(chain(3)) == Match(1)
    assert publish(store, chain(3)[1:2], after=chain(3)[0]) == [Published.WRITTEN]
    assert load(blocks, chain(3)[1]) is Loaded.LOADED
    assert store.check_integrity() == []
    store.sweep(START_S)


def test_a_block_of_another_model_in_our_folder_is_corrupt(house: House) -> None:
    """Of other weights, block size or vLLM: their namespace is in the header, whatever the folder says."""
    store = house.store()
    publish(store, chain(1), namespace=NEXT_NAMESPACE)
    theirs = store.namespace(NEXT_NAMESPACE, "ten_a").path(chain(1)[0])
    blocks = store.namespace(NAMESPACE, "ten_a")
    ours = blocks.path(chain(1)[0])
    ours.parent.mkdir(parents=True)
    shutil.copy2(theirs, ours)
    assert len(store.check_integrity()) == 1
    assert load(blocks, chain(1)[0]) is Loaded.CORRUPT
    assert load(store.namespace(NEXT_NAMESPACE, "ten_a"), chain(1)[0]) is Loaded.LOADED
