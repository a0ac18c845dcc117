import json
from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from billing.pricing.rates import Rates
from billing.pricing.toml import shipped
from billing.pricing.window import Window

BOOKS = json.loads((Path(__file__).parents[1] / "fixtures" / "windows.json").read_text())["books"]
MODELS = {
    "deepseek-2025": ("deepseek-chat", "deepseek-reasoner"),
    "deepseek-2026": ("deepseek-flash", "deepseek-v4-flash", "deepseek-v4-pro"),
}
VECTORS = [
    pytest.param(model, instant, window, id=f"{model} {instant}")
    for book, facts in BOOKS.items()
    for model in MODELS[book]
    for instant, window in facts["vectors"]
]
FREE = Rates(0, 0, 0)


@pytest.mark.parametrize(("model", "instant", "window"), VECTORS)
def test_published_schemes_rate_each_vector_in_its_window(model: str, instant: str, window: str):
    at = datetime.fromisoformat(instant)
    name, _ = shipped("deepseek").row(model, "USD", at).rates_at(at)
    assert name == window


@pytest.mark.parametrize(
    ("instant", "window"),
    [
        ("2026-09-25T02:00:00Z", "offpeak"),  # Mid-Autumn, a Friday
        ("2026-10-01T02:00:00Z", "offpeak"),  # National Day, a Thursday
        ("2026-10-10T02:00:00Z", "offpeak"),  # a Saturday on which offices work
        ("2026-10-12T02:00:00Z", "peak"),
    ],
)
def test_chinese_public_holidays_are_off_peak_all_day(instant: str, window: str):
    at = datetime.fromisoformat(instant)
    assert shipped("deepseek").row("deepseek-flash", "USD", at).rates_at(at)[0] == window


def test_weekends_had_peak_hours_until_the_scheme_changed():
    book = shipped("deepseek")
    before, after = datetime(2026, 8, 22, 2, tzinfo=UTC), datetime(2026, 8, 23, 2, tzinfo=UTC)
    assert book.row("deepseek-v4-pro", "USD", before).rates_at(before)[0] == "peak"
    assert book.row("deepseek-v4-pro", "USD", after).rates_at(after)[0] == "offpeak"


def test_hours_after_midnight_belong_to_the_day_on_which_the_window_opened():
    friday_night = Window("night", FREE, time(22), time(6), "Europe/Stockholm", frozenset({4}))
    assert friday_night.contains(datetime(2026, 11, 7, 4, 59, tzinfo=UTC))  # Saturday 05:59 there
    assert not friday_night.contains(datetime(2026, 11, 7, 5, 0, tzinfo=UTC))
    assert not friday_night.contains(
        datetime(2026, 11, 6, 4, 0, tzinfo=UTC)
    )  # Friday morning is Thursday's night
    assert friday_night.contains(datetime(2026, 11, 6, 21, 0, tzinfo=UTC))


def test_a_window_from_midnight_to_midnight_is_the_whole_day():
    sunday = Window("sunday", FREE, time(0), time(0), "UTC", frozenset({6}))
    assert sunday.contains(datetime(2026, 11, 8, 0, 0, tzinfo=UTC))
    assert sunday.contains(datetime(2026, 11, 8, 23, 59, 59, tzinfo=UTC))
    assert not sunday.contains(datetime(2026, 11, 9, 0, 0, tzinfo=UTC))


def test_a_window_keeps_its_wall_clock_hours_over_a_change_to_summer_time():
    morning = Window("morning", FREE, time(9), time(12), "Europe/Stockholm")
    assert morning.contains(datetime(2026, 3, 28, 8, 0, tzinfo=UTC))
    assert not morning.contains(datetime(2026, 3, 28, 7, 59, tzinfo=UTC))
    assert morning.contains(datetime(2026, 3, 30, 7, 0, tzinfo=UTC))
