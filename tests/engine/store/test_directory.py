import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.retention import RETENTION_S
from engine.store.block import HEADER_BYTES
from engine.store.directory import Loaded, Match, PrefixStore, Published, TenantBlocks

NAMESPACE, OTHER_NAMESPACE = "ab" * 32, "cd" * 32
HASHES = [bytes([index]) * 32 for index in range(6)]
PAYLOAD = bytes(range(256)) * 8
START_S = 1_790_000_000


class Clock:
    def __init__(self) -> None:
        self.at_s = START_S

    def __call__(self) -> int:
        return self.at_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> PrefixStore:
    return PrefixStore(tmp_path / "store", clock)


@pytest.fixture
def blocks(store: PrefixStore) -> TenantBlocks:
    return store.namespace(NAMESPACE, "ten_a")


def publish(blocks: TenantBlocks, block_hash: bytes, payload: bytes = PAYLOAD) -> Published:
    half = len(payload) // 2
    return blocks.publish(block_hash, [memoryview(payload[:half]), memoryview(payload[half:])], "chat")


def load(blocks: TenantBlocks, block_hash: bytes, size: int = len(PAYLOAD)) -> tuple[Loaded, bytes]:
    buffer = bytearray(size)
    return blocks.load(block_hash, memoryview(buffer), "chat"), bytes(buffer)


def test_what_was_published_is_loaded(blocks: TenantBlocks, store: PrefixStore) -> None:
    assert publish(blocks, HASHES[0]) is Published.WRITTEN
    assert load(blocks, HASHES[0]) == (Loaded.LOADED, PAYLOAD)
    assert store.check_integrity() == []


def test_the_first_writers_bytes_stay(blocks: TenantBlocks) -> None:
    publish(blocks, HASHES[0])
    assert publish(blocks, HASHES[0], bytes(len(PAYLOAD))) is Published.RENEWED
    assert load(blocks, HASHES[0])[1] == PAYLOAD


def test_a_match_ends_at_the_first_missing_block(blocks: TenantBlocks) -> None:
    for index in (0, 1, 3):
        publish(blocks, HASHES[index])
    assert blocks.match(HASHES) == Match(2)
    assert blocks.match([]) == Match(0)


def test_tenants_and_namespaces_share_nothing(store: PrefixStore, blocks: TenantBlocks) -> None:
    publish(blocks, HASHES[0])
    for stranger in (store.namespace(NAMESPACE, "ten_b"), store.namespace(OTHER_NAMESPACE, "ten_a")):
        assert stranger.match(HASHES) == Match(0)
        assert load(stranger, HASHES[0])[0] is Loaded.MISSING


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, HEADER_BYTES + len(PAYLOAD) - 1), bit=st.integers(0, 7))
def test_no_flipped_bit_of_name_or_payload_is_ever_loaded(blocks: TenantBlocks, at: int, bit: int) -> None:
    publish(blocks, HASHES[0])
    file = blocks.path(HASHES[0])
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)
    outcome, loaded = load(blocks, HASHES[0])
    describes_only = 112 <= at < HEADER_BYTES  # when it was made, and its class: nothing is decided by them
    assert (outcome is Loaded.LOADED and loaded == PAYLOAD) if describes_only else outcome is Loaded.CORRUPT
    file.unlink(missing_ok=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(size=st.integers(0, HEADER_BYTES + len(PAYLOAD) - 1))
def test_a_truncated_block_is_quarantined_and_can_be_published_again(blocks: TenantBlocks, size: int) -> None:
    publish(blocks, HASHES[0])
    file = blocks.path(HASHES[0])
    os.truncate(file, size)
    assert load(blocks, HASHES[0])[0] is Loaded.CORRUPT
    assert blocks.match(HASHES[:1]) == Match(0)
    assert publish(blocks, HASHES[0]) is Published.WRITTEN
    assert load(blocks, HASHES[0])[0] is Loaded.LOADED
    file.unlink()


def test_a_block_under_another_name_is_corrupt(store: PrefixStore, blocks: TenantBlocks) -> None:
    publish(blocks, HASHES[0])
    impostor = blocks.path(HASHES[1])
    impostor.parent.mkdir()
    impostor.write_bytes(blocks.path(HASHES[0]).read_bytes())
    assert len(store.check_integrity()) == 1
    assert load(blocks, HASHES[1])[0] is Loaded.CORRUPT
    assert store.check_integrity() == []


def test_a_block_of_another_size_is_corrupt(blocks: TenantBlocks) -> None:
    publish(blocks, HASHES[0])
    assert load(blocks, HASHES[0], len(PAYLOAD) + 1)[0] is Loaded.CORRUPT


def test_loading_renews_a_promise_and_looking_up_does_not(blocks: TenantBlocks, clock: Clock) -> None:
    publish(blocks, HASHES[0])
    first_end_s = START_S + RETENTION_S["chat"]
    clock.at_s += 1000
    blocks.match(HASHES)
    assert blocks.promised_until(HASHES[:1]) == first_end_s
    load(blocks, HASHES[0])
    assert blocks.promised_until(HASHES[:1]) == first_end_s + 1000
    blocks.load(HASHES[0], memoryview(bytearray(len(PAYLOAD))), "agent")
    assert blocks.promised_until(HASHES[:1]) == first_end_s + 1000, "a longer promise is never shortened"


def test_a_class_of_the_configuration_promises_what_it_says_and_an_unknown_one_what_chat_does(
    tmp_path: Path, clock: Clock
) -> None:
    store = PrefixStore(tmp_path, clock, classes={**RETENTION_S, "batch": 60})
    blocks = store.namespace(NAMESPACE, "ten_a")
    for index, (retention_class, seconds) in enumerate((("batch", 60), ("nobody", RETENTION_S["chat"]))):
        blocks.publish(HASHES[index], [memoryview(PAYLOAD)], retention_class)
        assert blocks.promised_until(HASHES[index : index + 1]) == START_S + seconds


def test_a_prefix_is_promised_as_long_as_its_first_block_to_go(blocks: TenantBlocks, clock: Clock) -> None:
    publish(blocks, HASHES[0])
    clock.at_s += 50
    publish(blocks, HASHES[1])
    assert blocks.promised_until(HASHES[:2]) == START_S + RETENTION_S["chat"]
    assert blocks.promised_until(HASHES[:3]) is None
    assert blocks.promised_until([]) is None


def test_a_sweep_takes_blocks_whose_promise_ended(
    store: PrefixStore, blocks: TenantBlocks, clock: Clock
) -> None:
    publish(blocks, HASHES[0])
    clock.at_s += 10
    publish(blocks, HASHES[1])
    assert store.sweep(START_S + RETENTION_S["chat"] - 1).expired == 0
    assert store.sweep(START_S + RETENTION_S["chat"]).expired == 1
    assert blocks.match(HASHES[1:2]) == Match(1)
    assert blocks.match(HASHES[:1]) == Match(0)


def test_a_sweep_takes_what_killed_writers_left_and_spares_living_ones(
    store: PrefixStore, blocks: TenantBlocks
) -> None:
    leftover = store.temporary_name(blocks.path(HASHES[2]))
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half a block")
    os.utime(leftover, (2**33, 2**33))  # as a writer killed between its last two calls leaves it
    written_at_s = int(leftover.stat().st_ctime)
    assert blocks.match(HASHES[2:3]) == Match(0)
    assert store.sweep(written_at_s + 59).temporary == 0
    assert store.sweep(written_at_s + 62).temporary == 1
    assert not leftover.exists()


def test_files_of_the_store_are_for_their_owner_alone(blocks: TenantBlocks) -> None:
    publish(blocks, HASHES[0])
    file = blocks.path(HASHES[0])
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_disk_that_refuses_is_left_alone_for_some_seconds(tmp_path: Path, clock: Clock) -> None:
    blocked = tmp_path / "store"
    blocked.write_text("a file where the store's folder should be")
    store = PrefixStore(blocked, clock)
    blocks = store.namespace(NAMESPACE, "ten_a")
    assert publish(blocks, HASHES[0]) is Published.REFUSED
    blocked.unlink()
    assert publish(blocks, HASHES[0]) is Published.REFUSED
    clock.at_s += 5
    assert publish(blocks, HASHES[0]) is Published.WRITTEN


def test_a_lost_store_is_a_miss(tmp_path: Path, clock: Clock) -> None:
    blocks = PrefixStore(tmp_path / "nowhere", clock).namespace(NAMESPACE, "ten_a")
    assert blocks.match(HASHES) == Match(0)
    assert load(blocks, HASHES[0])[0] is Loaded.MISSING
    assert blocks.promised_until(HASHES) is None


def test_a_block_sealed_before_its_bytes_changed_is_never_loaded(blocks: TenantBlocks) -> None:
    row = bytearray(PAYLOAD)
    sealed = blocks.seal(HASHES[0], [memoryview(row)], "chat")
    row[5] ^= 1
    assert blocks.publish_sealed(HASHES[0], sealed, "chat") is Published.WRITTEN
    assert load(blocks, HASHES[0])[0] is Loaded.CORRUPT


@given(st.lists(st.integers(0, 5), unique=True))
def test_a_match_is_the_longest_prefix_of_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, there: list[int]
) -> None:
    blocks = PrefixStore(tmp_path_factory.mktemp("store"), Clock()).namespace(NAMESPACE, "ten_a")
    for index in there:
        publish(blocks, HASHES[index])
    expected = next((index for index in range(6) if index not in there), 6)
    assert blocks.match(HASHES) == Match(expected)
