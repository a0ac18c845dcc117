"""What a shape needs is said before it starts, and a machine that has clearly less is not begun on."""

from pathlib import Path

import pytest

from admin.stack import memory
from admin.stack.errors import MemoryShort
from admin.stack.memory import GIB
from admin.stack.stack import Stack
from admin.stack.state import StackOptions, StackStatus
from engine.shapes.shape import Shape
from engine.shapes.worker import KV_CACHE_BYTES

PAIR, FOUR = Shape.split(1, 1, ()), Shape.split(2, 2, ())


def test_each_worker_needs_itself_its_cache_and_its_weights() -> None:
    more = memory.needed_bytes(FOUR) - memory.needed_bytes(PAIR)
    assert more == 2 * (memory.WORKER_BYTES + KV_CACHE_BYTES)
    assert memory.needed_bytes(PAIR, weights_bytes=GIB) == memory.needed_bytes(PAIR) + 2 * GIB
    assert 4 * GIB < memory.needed_bytes(PAIR) < 6 * GIB


def test_what_is_needed_is_said_in_words() -> None:
    assert memory.check(FOUR, 10 * GIB, 16 * GIB) == (
        "workers: 2 prefill, 2 decode; about 10.0 of 16.0 GiB available"
    )
    assert memory.check(Shape.mono(1, ()), 3 * GIB, 16 * GIB).startswith("workers: 1 mono;")


def test_a_little_less_is_tried_and_clearly_less_says_what_to_change() -> None:
    memory.check(PAIR, 10 * GIB, 9 * GIB)
    with pytest.raises(MemoryShort, match=r"2 workers .* 10.0 GiB .* 7.0 GiB are available.*--mono 1"):
        memory.check(PAIR, 10 * GIB, 7 * GIB)


def test_weights_are_weighed_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(300))
    (tmp_path / "b.safetensors").write_bytes(bytes(200))
    (tmp_path / "config.json").write_bytes(bytes(100))
    assert memory.weights_bytes(str(tmp_path)) == 500
    assert memory.weights_bytes("owner/name") == 0
    assert memory.weights_bytes(None) == 0


def test_this_machine_has_some() -> None:
    assert memory.available_bytes() > GIB / 4


async def test_a_stack_too_large_for_the_machine_starts_nothing(short_folder: Path) -> None:
    shown: list[StackStatus] = []
    huge = Shape.split(2_000, 2_000, ())
    with pytest.raises(MemoryShort, match="4000 workers"):
        await Stack(StackOptions(short_folder / "huge", 1, shape=huge), shown.append).run()
    assert shown[-1].phase == "failed"
    assert shown[-1].parts == ()
