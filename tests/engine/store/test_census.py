"""What all writers of a directory count together: exact for each, and nobody's truth."""

import os
import shutil

import pytest

from engine.store import operate, survey
from engine.store.directory import Published
from tests.engine.store.conftest import CHAT_S, NAMESPACE, START_S, House, chain, publish, there


def test_what_is_written_while_a_sweep_walks_is_counted(house: House) -> None:
    store = house.store(quota_blocks=4)
    publish(store, chain(1, 1))
    late = [chain(1, first) for first in (2, 3, 4)]

    def meanwhile() -> None:
        house.clock.at_s += 1
        while late:
            publish(store, late.pop())

    store.sweep(house.clock.at_s, meanwhile)
    for first in range(5, 9):
        house.clock.at_s += 1
        publish(store, chain(1, first))
    assert len(there(store, [chain(1, first)[0] for first in range(1, 9)])) == 4


def test_several_writers_keep_one_quota_between_two_sweeps(house: House) -> None:
    writers = [house.store(quota_blocks=3) for _ in range(3)]
    for writer in writers:
        writer.sweep(house.clock.at_s)
    for index, writer in enumerate(writers):
        house.clock.at_s += 1
        publish(writer, chain(3, index + 1))
        assert sum(len(there(writer, chain(3, first))) for first in (1, 2, 3)) == 3
    assert there(writers[0], chain(3, 3)) == chain(3, 3)
    assert writers[0].sweep(house.clock.at_s).evicted == 0


def test_several_writers_promise_a_tenant_no_more_than_its_quota(house: House) -> None:
    writers = [house.store(tenant_blocks=3) for _ in range(3)]
    for index, writer in enumerate(writers):
        publish(writer, chain(2, index + 1))
    promised = [writers[0].namespace(NAMESPACE, "ten_a").promised_until([each]) for each in chain(2, 2)]
    assert promised == [START_S + CHAT_S, None]
    assert operate.stat(house.root, house.clock.at_s).tenants["ten_a"].promised_blocks == 3


def test_a_sweep_with_a_smaller_quota_evicts_down_to_it(house: House) -> None:
    publish(house.store(), chain(6))
    assert house.store(quota_blocks=2).sweep(house.clock.at_s).evicted == 4
    assert there(house.store(), chain(6)) == chain(2)


def test_a_lost_census_is_counted_again_by_the_next_sweep_and_until_then_nothing_is_stored(
    house: House,
) -> None:
    store = house.store(quota_blocks=3)
    publish(store, chain(3))
    shutil.rmtree(house.root / "census")
    house.clock.at_s += 1
    assert publish(store, chain(1, 9)) == [Published.REFUSED]
    assert store.evictor.starved.is_set()
    house.clock.at_s += 5
    store.sweep(house.clock.at_s)
    assert publish(store, chain(1, 9)) == [Published.WRITTEN]
    assert there(store, chain(3)) == chain(2)


def test_a_census_full_of_nonsense_evicts_nothing_that_it_should_not(house: House) -> None:
    store = house.store(quota_blocks=3)
    publish(store, chain(2))
    for file in (house.root / "census").iterdir():
        file.write_text("nonsense\n1 2 3\n")
    assert publish(house.store(quota_blocks=3), chain(1, 9)) == [Published.REFUSED]
    house.store(quota_blocks=3).sweep(house.clock.at_s)
    assert publish(house.store(quota_blocks=3), chain(1, 9)) == [Published.WRITTEN]
    assert there(store, chain(2)) == chain(2)


def test_what_an_operator_removed_makes_room_at_once(house: House) -> None:
    store = house.store(quota_blocks=2)
    publish(store, chain(1, 1), tenant="ten_b")
    publish(store, chain(1, 2))
    operate.erase(house.root, "ten_b")
    assert publish(store, chain(1, 3)) == [Published.WRITTEN]
    assert len(there(store, [chain(1, first)[0] for first in (2, 3)])) == 2


def test_what_left_without_a_word_is_known_once_the_log_that_named_it_is_dropped(house: House) -> None:
    store = house.store(quota_blocks=2)
    publish(store, chain(1, 1))
    publish(store, chain(1, 2))
    store.namespace(NAMESPACE, "ten_a").path(chain(1, 1)[0]).unlink()
    for log in (house.root / "census").glob("*.log"):
        os.utime(log, (1, 1))
    for _ in range(2):
        store.sweep(house.clock.at_s)
    assert not list((house.root / "census").glob("*.log"))
    assert publish(store, chain(1, 3)) == [Published.WRITTEN]
    assert there(store, chain(1, 2)) == chain(1, 2)


def test_a_survey_lists_more_than_the_next_writes_need_and_a_writer_that_has_used_it_up_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_LISTED_BLOCKS_LEAST", 0)
    for first in range(10):
        publish(house.store(), chain(1, first))
        house.clock.at_s += 1
    store = house.store(quota_blocks=10)
    store.sweep(house.clock.at_s)
    for first in range(10, 12):
        assert publish(store, chain(1, first)) == [Published.WRITTEN]
        house.clock.at_s += 1
    assert not store.evictor.starved.is_set()
    assert there(store, [chain(1, first)[0] for first in range(12)]) == [
        chain(1, first)[0] for first in range(2, 12)
    ]
    assert publish(store, chain(1, 12)) == [Published.FULL], "older ones would go first, and are not known"
    assert store.evictor.starved.is_set()
    store.sweep(house.clock.at_s)
    assert publish(store, chain(1, 12)) == [Published.WRITTEN]
    assert there(store, [chain(1, first)[0] for first in range(2, 13)])[0] == chain(1, 3)[0]


def test_parents_are_read_from_the_index_and_without_it_from_the_blocks(house: House) -> None:
    prompt = chain(4)
    publish(house.store(), prompt)
    place = house.store().namespace(NAMESPACE, "ten_a")
    index = place.path(prompt[0]).parents[1] / "parents.index"
    for known in (False, True):
        house.store(quota_blocks=4).sweep(house.clock.at_s)
        assert index.stat().st_size == 4 * 64
        if known:
            index.write_bytes(index.read_bytes()[:100])
    assert house.store(quota_blocks=2).sweep(house.clock.at_s).evicted == 2
    assert there(house.store(), prompt) == prompt[:2]
