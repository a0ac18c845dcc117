"""Shapes: names, roles, and which cores each worker computes on."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.shapes.shape import Seat, Shape

CORES = st.integers(min_value=1, max_value=96).map(lambda count: tuple(range(3, 3 + count)))
FEW = st.integers(min_value=1, max_value=24)


def cores_of(seats: tuple[Seat, ...]) -> list[int]:
    return [core for seat in seats for core in seat.cores or ()]


def test_the_default_shape_gives_each_kind_a_half() -> None:
    assert Shape.split(1, 1, (0, 1)).seats == (
        Seat("prefill-1", "prefill", (0,)),
        Seat("decode-1", "decode", (1,)),
    )
    assert [seat.cores for seat in Shape.split(1, 1, range(5)).seats] == [(0, 1), (2, 3, 4)]


def test_four_workers_on_two_cores_keep_the_kinds_apart() -> None:
    seats = Shape.split(2, 2, (0, 1)).seats
    assert [(seat.name, seat.cores) for seat in seats] == [
        ("prefill-1", (0,)),
        ("prefill-2", (0,)),
        ("decode-1", (1,)),
        ("decode-2", (1,)),
    ]


def test_one_mono_worker_has_all_cores() -> None:
    assert Shape.mono(1, (0, 1)).seats == (Seat("mono-1", "both", (0, 1)),)
    assert [seat.cores for seat in Shape.mono(2, (0, 1)).seats] == [(0,), (1,)]


def test_a_machine_that_tells_of_no_cores_binds_nobody() -> None:
    assert [seat.cores for seat in Shape.split(1, 2, ()).seats] == [None, None, None]
    assert Shape.mono(1, ()).seats == (Seat("mono-1", "both", None),)


@given(FEW, FEW, CORES)
def test_every_worker_is_bound_and_none_shares_a_core_while_there_are_enough(
    prefill: int, decode: int, cores: tuple[int, ...]
) -> None:
    for shape in (Shape.split(prefill, decode, cores), Shape.mono(prefill + decode, cores)):
        assert len({seat.name for seat in shape.seats}) == prefill + decode
        assert all(seat.cores for seat in shape.seats)
        if len(cores) >= prefill + decode:
            assert sorted(cores_of(shape.seats)) == list(cores)
        else:
            assert {len(seat.cores or ()) for seat in shape.seats} == {1}


@given(FEW, FEW, CORES)
def test_too_few_cores_are_shared_evenly_and_never_by_both_kinds(
    prefill: int, decode: int, cores: tuple[int, ...]
) -> None:
    seats = Shape.split(prefill, decode, cores).seats
    of_kind = [cores_of(tuple(seat for seat in seats if seat.role == role)) for role in ("prefill", "decode")]
    if len(cores) > 1:
        assert not set(of_kind[0]) & set(of_kind[1])
    for taken in map(Counter, of_kind):
        assert max(taken.values()) - min(taken.values()) <= 1


def test_encode_workers_come_before_the_others_and_take_no_core_from_them() -> None:
    shape = Shape.split(1, 1, (0, 1))
    encoding = shape.encoding(2)
    assert encoding.seats == (Seat("encode-1", "encode"), Seat("encode-2", "encode"), *shape.seats)
    assert (encoding.encodes, shape.encodes, shape.encoding(0)) == (True, False, shape)
