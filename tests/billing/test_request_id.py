from datetime import UTC, datetime, timedelta
from uuid import RFC_4122

from hypothesis import given
from hypothesis import strategies as st

from billing.request_id import instant_of, mint

INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  Hypothesis takes naive bounds
TEN_BYTES = st.binary(min_size=10, max_size=10)


@given(INSTANTS, TEN_BYTES)
def test_a_request_id_is_a_uuid_v7_that_tells_its_millisecond(at: datetime, random: bytes):
    request_id = mint(at, random)
    assert request_id.version == 7
    assert request_id.variant == RFC_4122
    assert timedelta(0) <= at - instant_of(request_id) < timedelta(milliseconds=1)


@given(INSTANTS, TEN_BYTES, TEN_BYTES)
def test_a_later_request_has_a_greater_id(at: datetime, one: bytes, other: bytes):
    assert mint(at, one) < mint(at + timedelta(milliseconds=1), other)


@given(TEN_BYTES)
def test_random_bytes_keep_their_places(random: bytes):
    tail = mint(datetime(2026, 11, 30, tzinfo=UTC), random).bytes[6:]
    assert tail[1] == random[1]
    assert tail[3:] == random[3:]
    assert (tail[0] & 0x0F, tail[2] & 0x3F) == (random[0] & 0x0F, random[2] & 0x3F)
