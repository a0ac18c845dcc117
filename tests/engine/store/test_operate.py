"""What an operator sees of a store and does to it."""

import json

from engine.store import operate
from engine.store.directory import Match, Published
from engine.store.namespace import Namespace
from engine.store.places import places_of
from engine.store.tombstone import Reason, tombstones_in
from tests.engine.store.conftest import (
    CHAT_S,
    FILE_BYTES,
    NAMESPACE,
    NEXT_NAMESPACE,
    START_S,
    House,
    chain,
    publish,
    there,
)

PROMISES = "ef" * 32


def test_a_namespace_says_what_computed_it(house: House) -> None:
    store = house.store()
    store.describe(Namespace(NAMESPACE, PROMISES, 64, {"vllm": "0.32.0"}))
    told = json.loads((house.root / NAMESPACE / "namespace.json").read_text())
    assert told == {
        "namespace": NAMESPACE,
        "promises": PROMISES,
        "block_tokens": 64,
        "facts": {"vllm": "0.32.0"},
    }
    assert Namespace.read(house.root, NAMESPACE).promises == PROMISES


def test_a_namespace_that_is_described_badly_promises_under_its_own_name(house: House) -> None:
    publish(house.store(), chain(1))
    (house.root / NAMESPACE / "namespace.json").write_text('{"promises": "../../etc"}')
    assert Namespace.read(house.root, NAMESPACE) == Namespace(NAMESPACE, NAMESPACE)


def test_stat_tells_what_is_held_promised_and_owed(house: House) -> None:
    store = house.store(quota_blocks=3, tenant_blocks=2)
    publish(store, chain(3))
    house.clock.at_s += 10
    publish(store, chain(2, 9), tenant="ten_b")
    found = operate.stat(house.root, house.clock.at_s)
    assert (found.blocks, found.bytes) == (3, 3 * FILE_BYTES)
    assert found.tenants["ten_a"].promised_blocks == 1
    assert found.tenants["ten_b"].promised_until_s == START_S + 10 + CHAT_S
    assert found.owed["ten_a"].by_reason == {"quota": 1}
    assert found.owed["ten_a"].tokens == 64
    assert found.owed["ten_a"].until_s == START_S + CHAT_S
    assert not operate.stat(house.root, START_S + CHAT_S).owed


def test_erasing_a_tenant_leaves_nothing_of_it_and_all_of_others(house: House) -> None:
    store = house.store(quota_blocks=4)
    publish(store, chain(2, 1))
    house.clock.at_s += 10
    for tenant, first in (("ten_b", 2), ("ten_b", 3), ("ten_a", 4)):
        publish(store, chain(1, first), tenant=tenant)
    blocks = store.namespace(NAMESPACE, "ten_a")
    blocks.hold(chain(1, 4))
    blocks.quarantine(chain(1, 1)[0])
    erased = operate.erase(house.root, "ten_a")
    assert (erased.blocks, erased.tombstones) == (1, 1)
    assert blocks.match(chain(2, 1)) == Match(0)
    assert not [path for path in house.root.rglob("*") if "ten_a" in path.as_posix()]
    assert not [pin for pin in house.root.rglob("*.pin") if "ten_a" in pin.read_text()]
    assert there(store, chain(1, 2) + chain(1, 3), "ten_b") == chain(1, 2) + chain(1, 3)
    assert publish(store, chain(1, 1)) == [Published.WRITTEN], "the tenant may begin anew"


def test_retiring_an_engine_turns_its_live_promises_into_tombstones(house: House) -> None:
    store = house.store()
    for digest in (NAMESPACE, NEXT_NAMESPACE):
        store.describe(Namespace(digest, PROMISES))
    publish(store, chain(1, 1), "agent")
    house.clock.at_s += CHAT_S - 1
    publish(store, chain(3, 2))
    publish(store, chain(1, 3), namespace=NEXT_NAMESPACE)
    retired = operate.retire(house.root, NAMESPACE, Reason.UPGRADE, house.clock)
    assert retired == operate.Retired(blocks=4, owed_blocks=3)
    assert [place.namespace for place in places_of(house.root)] == [NEXT_NAMESPACE]
    successor = store.namespace(NEXT_NAMESPACE, "ten_a")
    assert successor.match(chain(3, 2)) == Match(0, owed=3)
    assert successor.match(chain(1, 1)) == Match(0, owed=0), "a promise that had ended is not owed"
    assert {each.reason for _, each in tombstones_in(house.root)} == {Reason.UPGRADE}


def test_what_is_owed_after_an_upgrade_and_computed_again_is_a_hit_that_is_not_promised_twice(
    house: House,
) -> None:
    store = house.store()
    for digest in (NAMESPACE, NEXT_NAMESPACE):
        store.describe(Namespace(digest, PROMISES))
    publish(store, chain(1))
    operate.retire(house.root, NAMESPACE, Reason.UPGRADE, house.clock)
    house.clock.at_s += 10
    publish(store, chain(1), namespace=NEXT_NAMESPACE)
    successor = store.namespace(NEXT_NAMESPACE, "ten_a")
    assert successor.match(chain(1)) == Match(1)
    assert successor.promised_until(chain(1)) == START_S + CHAT_S
    house.clock.at_s = START_S + CHAT_S
    assert successor.promised_until(chain(1)) is None
    successor.renew(chain(1)[0], "chat")
    assert successor.promised_until(chain(1)) == START_S + 2 * CHAT_S


def test_retiring_spares_what_is_being_loaded_and_says_so(house: House) -> None:
    store = house.store()
    publish(store, chain(2))
    held = store.namespace(NAMESPACE, "ten_a").hold(chain(1))
    retired = operate.retire(house.root, NAMESPACE, Reason.OPERATOR, house.clock)
    assert retired == operate.Retired(blocks=1, owed_blocks=1, spared=1)
    held.release()
    assert operate.retire(house.root, NAMESPACE, Reason.OPERATOR, house.clock).spared == 0
    assert not (house.root / NAMESPACE).exists()
