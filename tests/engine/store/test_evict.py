"""Who goes first, what stays, and what is kept of a promise when there is no room."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.proof.prefix import ROOT_HASH
from engine.store import block
from engine.store.directory import Loaded, Match, PrefixStore, Published
from engine.store.namespace import Namespace
from engine.store.pin import LEASE_S
from engine.store.places import places_of
from engine.store.tombstone import tombstones_in
from tests.engine.store.conftest import (
    AGENT_S,
    CHAT_S,
    FILE_BYTES,
    NAMESPACE,
    NEXT_NAMESPACE,
    START_S,
    House,
    chain,
    load,
    publish,
    there,
)


def test_the_soonest_end_of_promise_goes_first(house: House) -> None:
    store = house.store(quota_blocks=2)
    old, young, new = (chain(1, first)[0] for first in (1, 2, 3))
    publish(store, [old])
    house.clock.at_s += 10
    publish(store, [young])
    house.clock.at_s += 10
    assert publish(store, [new]) == [Published.WRITTEN]
    assert there(store, [old, young, new]) == [young, new]


def test_a_class_that_promises_less_goes_before_an_older_one_that_promises_more(house: House) -> None:
    store = house.store(quota_blocks=2)
    chat, agent, new = (chain(1, first)[0] for first in (1, 2, 3))
    publish(store, [chat], "chat")
    house.clock.at_s += 10
    publish(store, [agent], "agent")
    house.clock.at_s += 10
    publish(store, [new], "chat")
    assert there(store, [chat, agent, new]) == [chat, new]


def test_what_is_promised_for_less_long_than_all_that_is_there_finds_no_room(house: House) -> None:
    store = house.store(quota_blocks=1)
    publish(store, chain(1, 1), "chat")
    assert publish(store, chain(1, 2), "agent") == [Published.FULL]
    assert there(store, chain(1, 1)) == chain(1, 1)


def test_a_block_that_was_loaded_stays_longer_than_one_that_was_looked_up(house: House) -> None:
    store = house.store(quota_blocks=2)
    loaded, looked_up, new = (chain(1, first)[0] for first in (1, 2, 3))
    publish(store, [loaded])
    publish(store, [looked_up])
    house.clock.at_s += 10
    blocks = store.namespace(NAMESPACE, "ten_a")
    assert load(blocks, loaded) is Loaded.LOADED
    assert blocks.match([looked_up]) == Match(1)
    house.clock.at_s += 10
    publish(store, [new])
    assert there(store, [loaded, looked_up, new]) == [loaded, new]


def test_leaves_go_before_their_parents_whatever_was_promised_first(house: House) -> None:
    store = house.store(quota_blocks=4)
    prompt = chain(4)
    publish(store, prompt[:2])
    house.clock.at_s += 100
    publish(store, prompt[2:], after=prompt[1])
    other = chain(2, 9)
    house.clock.at_s += 100
    publish(store, other)
    assert len(there(store, prompt + other)) == 4
    for block_hash in there(store, prompt):
        index = prompt.index(block_hash)
        assert there(store, prompt[:index]) == prompt[:index]


def test_a_prompt_never_evicts_its_own_beginning(house: House) -> None:
    store = house.store(quota_blocks=3)
    prompt, parents = chain(5), [ROOT_HASH, *chain(5)]
    blocks = store.namespace(NAMESPACE, "ten_a")
    outcomes = []
    for block_hash, parent in zip(prompt, parents, strict=False):
        house.clock.at_s += 1
        outcomes.append(blocks.publish(block_hash, [memoryview(bytes(FILE_BYTES))[:1024]], "chat", parent))
    assert outcomes == [Published.WRITTEN] * 3 + [Published.FULL] * 2
    assert there(store, prompt) == prompt[:3]


def test_a_broken_promise_is_owed_to_its_end_and_no_second_longer(house: House) -> None:
    store = house.store(quota_blocks=2)
    prompt = chain(2)
    publish(store, prompt)
    house.clock.at_s += 10
    publish(store, chain(2, 9))
    blocks = store.namespace(NAMESPACE, "ten_a")
    assert blocks.match(prompt) == Match(0, owed=2)
    assert blocks.promised_until(prompt) == START_S + CHAT_S
    house.clock.at_s = START_S + CHAT_S - 1
    assert blocks.match(prompt) == Match(0, owed=2)
    house.clock.at_s += 1
    assert blocks.match(prompt) == Match(0)
    assert blocks.promised_until(prompt) is None


def test_hits_come_first_then_what_is_owed_then_misses(house: House) -> None:
    store = house.store(quota_blocks=3)
    prompt = chain(4)
    publish(store, prompt[:3])
    house.clock.at_s += 10
    publish(store, chain(1, 9))
    assert store.namespace(NAMESPACE, "ten_a").match(prompt) == Match(2, owed=1)


def test_a_corrupt_block_is_a_miss_and_nothing_is_owed_for_it(house: House) -> None:
    store = house.store(quota_blocks=3)
    publish(store, chain(2))
    blocks = store.namespace(NAMESPACE, "ten_a")
    file = blocks.path(chain(2)[1])
    file.write_bytes(file.read_bytes()[:-1])
    assert load(blocks, chain(2)[1]) is Loaded.CORRUPT
    assert blocks.match(chain(2)) == Match(1, owed=0)


def test_an_owed_block_stored_again_evicts_no_promise(house: House) -> None:
    store = house.store(quota_blocks=2)
    first, second, third = (chain(1, index)[0] for index in (1, 2, 3))
    for block_hash in (first, second, third):
        publish(store, [block_hash])
        house.clock.at_s += 10
    assert publish(store, [first]) == [Published.OWED_WITHOUT_ROOM]
    assert there(store, [first, second, third]) == [second, third]
    roomier = house.store(quota_blocks=3)
    assert publish(roomier, [first]) == [Published.WRITTEN]
    promised = roomier.namespace(NAMESPACE, "ten_a").promised_until([first])
    assert promised == START_S + CHAT_S, "stored again, it is owed as before and promised no longer"


def test_beyond_its_own_quota_a_tenant_is_promised_nothing_and_owed_nothing(house: House) -> None:
    store = house.store(quota_blocks=4, tenant_blocks=2)
    prompt = chain(4)
    assert publish(store, prompt) == [Published.WRITTEN] * 4
    blocks = store.namespace(NAMESPACE, "ten_a")
    assert blocks.promised_until(prompt[:2]) == START_S + CHAT_S
    assert blocks.promised_until(prompt[:3]) is None
    publish(store, chain(2, 9), tenant="ten_b")
    assert there(store, prompt) == prompt[:2], "what is not promised goes first"
    assert blocks.match(prompt) == Match(2, owed=0)


def test_what_is_owed_counts_in_the_tenants_own_quota(house: House) -> None:
    store = house.store(quota_blocks=2, tenant_blocks=2)
    publish(store, chain(2, 1))
    house.clock.at_s += 10
    publish(store, chain(2, 2), tenant="ten_b")
    blocks = store.namespace(NAMESPACE, "ten_a")
    assert blocks.match(chain(2, 1)) == Match(0, owed=2)
    roomier = house.store(quota_blocks=4, tenant_blocks=2)
    publish(roomier, chain(1, 3))
    assert blocks.promised_until(chain(1, 3)) is None


def test_a_block_being_loaded_is_not_evicted_by_another_worker(house: House) -> None:
    reader, writer = house.store(quota_blocks=1), house.store(quota_blocks=1)
    (wanted,) = chain(1)
    publish(reader, [wanted])
    house.clock.at_s += 10
    held = reader.namespace(NAMESPACE, "ten_a").hold([wanted])
    assert publish(writer, chain(1, 9)) == [Published.FULL]
    assert load(reader.namespace(NAMESPACE, "ten_a"), wanted) is Loaded.LOADED
    held.release()
    house.clock.at_s += 10
    assert publish(writer, chain(1, 9)) == [Published.WRITTEN]


def test_a_pin_of_a_killed_worker_lapses(house: House) -> None:
    store = house.store(quota_blocks=1)
    publish(store, chain(1))
    store.namespace(NAMESPACE, "ten_a").hold(chain(1))
    house.clock.at_s += LEASE_S - 1
    assert publish(store, chain(1, 9)) == [Published.FULL]
    house.clock.at_s += 1
    assert publish(store, chain(1, 9)) == [Published.WRITTEN]
    assert store.sweep(house.clock.at_s).pins == 1


def test_a_block_renewed_by_another_worker_is_not_evicted_for_its_old_end(house: House) -> None:
    mine, theirs = house.store(quota_blocks=2), house.store(quota_blocks=2)
    first, second, new = (chain(1, index)[0] for index in (1, 2, 3))
    publish(mine, [first])
    house.clock.at_s += 10
    publish(mine, [second])
    house.clock.at_s += 10
    load(theirs.namespace(NAMESPACE, "ten_a"), first)
    house.clock.at_s += 10
    publish(mine, [new])
    assert there(mine, [first, second, new]) == [first, new]


def test_a_sweep_spares_the_parents_of_what_is_still_promised(house: House) -> None:
    store = house.store()
    prompt = chain(3)
    publish(store, prompt, "agent")
    blocks = store.namespace(NAMESPACE, "ten_a")
    load(blocks, prompt[2], "chat")
    assert store.sweep(START_S + AGENT_S).expired == 0
    assert store.sweep(START_S + CHAT_S).expired == 3


def test_a_sweep_spares_what_is_being_loaded(house: House) -> None:
    store = house.store()
    publish(store, chain(2))
    house.clock.at_s += CHAT_S
    held = store.namespace(NAMESPACE, "ten_a").hold(chain(2))
    assert store.sweep(house.clock.at_s).expired == 0
    held.release()
    assert store.sweep(house.clock.at_s).expired == 2
    assert not list(tombstones_in(house.root)), "a promise that was kept leaves no tombstone"


def test_a_sweep_puts_back_what_a_killed_evictor_had_hidden(house: House) -> None:
    store = house.store()
    house.root.mkdir()
    house.clock.at_s = int(house.root.stat().st_ctime)
    publish(store, chain(1))
    file = store.namespace(NAMESPACE, "ten_a").path(chain(1)[0])
    file.rename(file.with_suffix(".going"))
    assert load(store.namespace(NAMESPACE, "ten_a"), chain(1)[0]) is Loaded.LOADED
    changed_at_s = int(file.with_suffix(".going").stat().st_ctime)
    store.sweep(changed_at_s + 61)
    assert there(store, chain(1)) == chain(1)


def test_an_upgrade_keeps_owing_what_the_old_engine_had_promised(house: House) -> None:
    store = house.store(quota_blocks=1)
    for digest in (NAMESPACE, NEXT_NAMESPACE):
        store.describe(Namespace(digest, "ef" * 32))
    publish(store, chain(1))
    house.clock.at_s += 10
    publish(store, chain(1, 9))
    assert store.namespace(NEXT_NAMESPACE, "ten_a").match(chain(1)) == Match(0, owed=1)


def test_an_upgrade_owes_what_the_old_engine_still_keeps_before_anyone_retires_it(house: House) -> None:
    store = house.store()
    for digest in (NAMESPACE, NEXT_NAMESPACE):
        store.describe(Namespace(digest, "ef" * 32))
    publish(store, chain(2))
    assert store.namespace(NEXT_NAMESPACE, "ten_a").match(chain(3)) == Match(0, owed=2)
    assert store.namespace(NEXT_NAMESPACE, "ten_b").match(chain(3)) == Match(0, owed=0)
    house.clock.at_s += CHAT_S
    assert store.namespace(NEXT_NAMESPACE, "ten_a").match(chain(3)) == Match(0, owed=0)


def test_another_models_blocks_are_owed_by_nobody(house: House) -> None:
    store = house.store()
    store.describe(Namespace(NAMESPACE, "ef" * 32))
    store.describe(Namespace(NEXT_NAMESPACE, "01" * 32))
    publish(store, chain(2))
    assert store.namespace(NEXT_NAMESPACE, "ten_a").match(chain(2)) == Match(0, owed=0)


def test_a_block_of_the_first_version_stays_readable(house: House) -> None:
    store = house.store()
    publish(store, chain(1))
    blocks = store.namespace(NAMESPACE, "ten_a")
    file = blocks.path(chain(1)[0])
    content = file.read_bytes()
    file.write_bytes(b"KVITTO01" + content[8:152] + content[block.HEADER_BYTES :])
    assert store.check_integrity() == []
    assert load(blocks, chain(1)[0]) is Loaded.LOADED


def test_no_disk_space_for_a_tombstone_means_no_eviction(house: House) -> None:
    store = house.store(quota_blocks=1)
    publish(store, chain(1))
    (house.root / "promises").write_text("no folder")
    house.clock.at_s += 10
    assert publish(store, chain(1, 9)) == [Published.FULL]
    assert there(store, chain(1)) == chain(1)


TENANTS = ("ten_a", "ten_b")
QUOTA_BLOCKS, TENANT_BLOCKS = 6, 4
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "publish", "load", "sweep"]),
        st.integers(1, 3),  # which prompt
        st.integers(1, 4),  # how many blocks of it
        st.sampled_from(TENANTS),
        st.sampled_from(["chat", "agent"]),
        st.sampled_from([0, 1, 3600, 86_400]),  # seconds until the next step
        st.integers(0, 1),  # which worker
    ),
    max_size=25,
)


class Observed:
    """What can be seen of a directory: live promises, tombstones, bytes, and parents that are missing."""

    def __init__(self, root: Path, at_s: int) -> None:
        self.guaranteed: dict[tuple[str, bytes], int] = {}
        self.promised: set[tuple[str, bytes]] = set()
        self.bytes_of: Counter[str] = Counter()
        self.used_bytes = 0
        self.orphans: list[bytes] = []
        for place in places_of(root):
            found = dict(place.blocks())
            for block_hash, status in found.items():
                term = block.Term.of(status)
                self.used_bytes += status.st_size
                if term.promised:
                    self.bytes_of[place.tenant] += status.st_size
                    self.promised.add((place.tenant, block_hash))
                    self.guaranteed[place.tenant, block_hash] = term.ends_s
                parent = block.read_header(place.path(block_hash)).parent
                if parent not in (ROOT_HASH, *found):
                    self.orphans.append(block_hash)
        for _, owed in tombstones_in(root):
            if owed.ends_s > at_s:
                self.bytes_of[owed.tenant] += owed.block_bytes
                key = (owed.tenant, owed.block_hash)
                self.guaranteed[key] = max(owed.ends_s, self.guaranteed.get(key, 0))


def take(step: tuple[str, int, int, str, str, int, int], stores: list[PrefixStore], house: House) -> None:
    action, prompt, length, tenant, retention_class, later_s, worker = step
    store = stores[worker % len(stores)]
    hashes = chain(length, prompt)
    if action == "publish":
        publish(store, hashes, retention_class, tenant)
    elif action == "load":
        blocks = store.namespace(NAMESPACE, tenant)
        for block_hash in hashes[: blocks.match(hashes).blocks]:
            load(blocks, block_hash, retention_class)
    else:
        store.sweep(house.clock.at_s)
    house.clock.at_s += later_s


@settings(deadline=None, max_examples=80)
@given(STEPS)
def test_whatever_happens_quotas_parents_and_promises_are_kept(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, str, str, int, int]]
) -> None:
    house = House(tmp_path_factory.mktemp("store"))
    stores = [house.store(QUOTA_BLOCKS, TENANT_BLOCKS)]
    before = Observed(house.root, house.clock.at_s)
    for step in steps:
        acted_at_s = house.clock.at_s
        take(step, stores, house)
        seen = Observed(house.root, acted_at_s)
        assert seen.used_bytes <= QUOTA_BLOCKS * FILE_BYTES
        assert all(seen.bytes_of[tenant] <= TENANT_BLOCKS * FILE_BYTES for tenant in TENANTS)
        assert seen.orphans == []
        for key, ends_s in before.guaranteed.items():
            assert ends_s <= acted_at_s or seen.guaranteed.get(key, 0) >= ends_s
        before = seen


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_two_workers_on_one_directory_keep_its_quotas_and_owe_what_they_break(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, str, str, int, int]]
) -> None:
    house = House(tmp_path_factory.mktemp("store"))
    stores = [house.store(QUOTA_BLOCKS, TENANT_BLOCKS), house.store(QUOTA_BLOCKS, TENANT_BLOCKS)]
    before = Observed(house.root, house.clock.at_s)
    for step in steps:
        acted_at_s = house.clock.at_s
        take(step, stores, house)
        seen = Observed(house.root, acted_at_s)
        assert seen.used_bytes <= QUOTA_BLOCKS * FILE_BYTES
        assert all(seen.bytes_of[tenant] <= TENANT_BLOCKS * FILE_BYTES for tenant in TENANTS)
        for key, ends_s in before.guaranteed.items():
            assert ends_s <= acted_at_s or seen.guaranteed.get(key, 0) >= ends_s
        before = seen


@settings(deadline=None, max_examples=60)
@given(STEPS, st.integers(1, 3), st.integers(1, 4))
def test_asking_again_for_what_is_owed_takes_no_promise_and_makes_none(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, int, str, str, int, int]],
    prompt: int,
    length: int,
) -> None:
    house = House(tmp_path_factory.mktemp("store"))
    stores = [house.store(QUOTA_BLOCKS, TENANT_BLOCKS)]
    for step in steps:
        take(step, stores, house)
    before = Observed(house.root, house.clock.at_s)
    blocks = stores[0].namespace(NAMESPACE, "ten_a")
    hashes = chain(length, prompt)
    met = blocks.match(hashes)
    owed = hashes[met.blocks : met.blocks + met.owed]
    for block_hash, parent in zip(owed, [ROOT_HASH, *hashes][met.blocks :], strict=False):
        if not blocks.path(block_hash).exists():
            blocks.publish(block_hash, [memoryview(bytes(1024))], "chat", parent)
    after = Observed(house.root, house.clock.at_s)
    assert after.promised >= before.promised
    assert all(after.guaranteed[key] == before.guaranteed[key] for key in after.guaranteed if key[1] in owed)
