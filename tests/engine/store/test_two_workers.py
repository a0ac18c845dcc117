"""Two workers on one directory at the same time, in threads that do not know of each other."""

import threading
from pathlib import Path

from engine.store.block import Term
from engine.store.directory import Loaded, PrefixStore
from engine.store.operate import retire
from engine.store.pin import Pin, Pins
from engine.store.places import Place, Removed, Remover
from engine.store.tombstone import Reason
from tests.engine.store.conftest import NAMESPACE, House, chain, load, publish

ROUNDS = 60


def test_nobody_deletes_what_another_worker_has_pinned(house: House) -> None:
    """One loads what it holds; the other writes into a quota that is too small for both, all the time."""
    prompt = chain(4)
    reader, writer = house.store(), house.store(quota_blocks=5)
    done = threading.Event()
    failures: list[str] = []

    def press() -> None:
        index = 0
        while not done.is_set():
            index += 1
            publish(writer, chain(2, 100 + index % 100), tenant="ten_b")
            writer.sweep(house.clock.at_s)

    def read() -> None:
        blocks = reader.namespace(NAMESPACE, "ten_a")
        for _ in range(ROUNDS):
            publish(reader, prompt)
            held = blocks.hold(prompt)
            failures.extend(
                f"{block_hash.hex()} vanished"
                for block_hash in prompt[: held.blocks]
                if held.pin is not None and load(blocks, block_hash) is not Loaded.LOADED
            )
            held.release()
            house.clock.at_s += 1
        done.set()

    threads = [threading.Thread(target=press), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert reader.check_integrity() == []


def test_two_that_evict_at_once_leave_each_promise_there_or_owed(house: House) -> None:
    prompts = [chain(4, first) for first in range(1, 9)]
    for prompt in prompts:
        publish(house.store(), prompt)
        house.clock.at_s += 1
    evictors = [house.store(quota_blocks=6) for _ in range(3)]
    threads = [threading.Thread(target=store.sweep, args=(house.clock.at_s,)) for store in evictors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    blocks = evictors[0].namespace(NAMESPACE, "ten_a")
    for prompt in prompts:
        met = blocks.match(prompt)
        assert met.blocks + met.owed == 4
    others = 2  # each may be removing a block while another counts
    assert sum(blocks.match(prompt).blocks for prompt in prompts) <= 6 + others
    evictors[0].sweep(house.clock.at_s)
    assert sum(blocks.match(prompt).blocks for prompt in prompts) <= 6


def test_a_retired_namespace_and_its_loaders_do_not_harm_each_other(house: House, tmp_path: Path) -> None:
    store: PrefixStore = house.store()
    prompt = chain(6)
    publish(store, prompt)
    blocks = store.namespace(NAMESPACE, "ten_a")
    held = blocks.hold(prompt[:3])
    thread = threading.Thread(target=retire, args=(house.root, NAMESPACE, Reason.OPERATOR, house.clock))
    thread.start()
    assert all(load(blocks, block_hash) is Loaded.LOADED for block_hash in prompt[:3])
    thread.join(60)
    assert blocks.match(prompt).blocks >= 3
    held.release()


class PinnedMeanwhile(Pins):
    """Pins of a remover, where another worker pins the block just after the first look."""

    pin: Pin | None = None

    def hold(self, place: str, block_hash: bytes) -> bool:
        held = super().hold(place, block_hash)
        if self.pin is None:
            self.pin = self.take(place, [block_hash])
        return held


def test_a_block_that_is_pinned_between_two_looks_is_put_back_and_not_owed(house: House) -> None:
    store, (block_hash,) = house.store(), chain(1)
    publish(store, [block_hash])
    place = Place(house.root, NAMESPACE, "ten_a")
    owed_to, term = store.tombstones(place), Term.of(place.path(block_hash).stat())
    remover = Remover(PinnedMeanwhile(house.root, house.clock), house.clock, store.log)
    assert remover.remove(place, block_hash, term, owed_to, Reason.OPERATOR) is Removed.PINNED
    assert load(store.namespace(NAMESPACE, "ten_a"), block_hash) is Loaded.LOADED
    assert not owed_to.owes(block_hash)
