"""A price row as the text that names it: every field comes back, and there is one text a row."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, time, timedelta, timezone
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import PriceInvalid
from billing.pricing.book import Placement, PriceRow
from billing.pricing.document import (
    placement_text,
    read_placement,
    read_row,
    row_sha256,
    row_text,
)
from billing.pricing.rates import Rates
from billing.pricing.toml import shipped
from billing.pricing.window import Window
from engine.proof.signed import canonical

ROW = shipped("deepseek").rows[0]
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Z"]), min_size=1, max_size=12)
RATE = st.integers(0, 10**20)
ZONES = st.sampled_from(["UTC", "Asia/Shanghai", "Asia/Kathmandu", "Europe/Stockholm"])
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
INSTANTS = st.builds(
    lambda zone, seconds: (ROW.effective_from + timedelta(seconds=seconds)).astimezone(zone),
    st.just(UTC) | OFFSETS,
    st.integers(-(10**9), 10**9),
)
HOURS = st.builds(time, st.integers(0, 23), st.integers(0, 59))
TIER = st.builds(Rates, RATE, RATE, RATE, st.none() | RATE)
RATES = st.builds(Rates, RATE, RATE, RATE, st.none() | RATE, st.none() | TIER, st.none() | TIER)
WINDOWS = st.builds(
    Window,
    NAMES,
    RATES,
    HOURS,
    HOURS,
    ZONES,
    st.frozensets(st.integers(0, 6)),
    st.none() | st.sampled_from(["CN", "SE", "NP"]),
)
ROWS = st.builds(
    PriceRow,
    model=NAMES,
    currency=st.sampled_from(["USD", "CNY", "EUR"]),
    effective_from=INSTANTS,
    instant=st.sampled_from(["admitted", "completed"]),
    standard=RATES,
    windows=st.lists(WINDOWS, max_size=3).map(tuple),
    standard_name=NAMES,
    plan=st.none() | NAMES,
    tenant_id=st.none() | NAMES,
    effective_until=st.none() | INSTANTS,
)


@given(ROWS)
def test_every_field_of_a_row_comes_back_and_its_text_is_canonical(row: PriceRow) -> None:
    text = row_text(row)
    assert read_row(text.encode()) == row
    assert canonical(json.loads(text)).decode() == text
    assert row_sha256(row) == sha256(text.encode()).hexdigest()


@given(ROWS, ROWS)
def test_rows_that_differ_have_different_texts(row: PriceRow, other: PriceRow) -> None:
    assert (row_text(row) == row_text(other)) == (row == other)


@given(st.builds(Placement, NAMES, INSTANTS, st.none() | NAMES))
def test_a_placement_comes_back(placement: Placement) -> None:
    assert read_placement(placement_text(placement).encode()) == placement


@pytest.mark.parametrize("book", ["demo", "deepseek"])
def test_the_shipped_books_come_back(book: str) -> None:
    for row in shipped(book).rows:
        assert read_row(row_text(row).encode()) == row


@pytest.mark.parametrize("place", range(0, len(row_text(ROW)), 7))
def test_a_changed_byte_is_refused_or_another_row(place: int) -> None:
    raw = bytearray(row_text(ROW).encode())
    raw[place] ^= 0x01
    with suppress(PriceInvalid):
        assert read_row(bytes(raw)) != ROW


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"kind": "kvitto.price-row.v2"},
        {"id": "another"},
        {"effective_from": "2026-12-01T00:00:00"},
        {"effective_from": "2026-12-01T00:00:00+00:00"},
        {"instant": "recorded"},
        {"plan": None},
        {"standard": {"hit": 1, "miss": "2", "output": "3"}},
        {"standard": {"hit": "-1", "miss": "2", "output": "3"}},
        {"standard": {"hit": "01", "miss": "2", "output": "3"}},
        {"standard": {"hit": "1", "miss": "2"}},
    ],
)
def test_what_is_no_row_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PriceInvalid):
        read_row(canonical({**json.loads(row_text(ROW)), **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"zone": "Mars/Olympus"},
        {"not_on_holidays_of": "XX"},
        {"days": [7]},
        {"days": [1, 0]},
        {"start": "25:00:00"},
        {"start": "09:00:00Z"},
    ],
)
def test_a_window_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    window = Window("night", Rates(1, 2, 3), time(22), time(6), "UTC")
    written = json.loads(row_text(replace(ROW, windows=(window,))))
    read_row(canonical(written))
    with pytest.raises(PriceInvalid):
        read_row(canonical({**written, "windows": [{**written["windows"][0], **change}]}))


def test_the_same_row_written_otherwise_is_refused() -> None:
    text = row_text(ROW)
    assert read_row(text.encode()) == ROW
    spaced = json.dumps(json.loads(text)).encode()
    for other in (spaced, text.encode() + b"\n", b" " + text.encode(), text[:-1].encode(), b""):
        with pytest.raises(PriceInvalid):
            read_row(other)
    with pytest.raises(PriceInvalid):
        read_placement(placement_text(Placement("ten_a", ROW.effective_from, None)).encode() + b" ")
