from datetime import UTC, datetime, timedelta

import pytest

from billing.errors import PriceInvalid, PriceMissing
from billing.money import rate_of
from billing.pricing.toml import read, shipped

SECOND = timedelta(seconds=1)
ROW = """
[[price]]
model = "m"
currency = "USD"
effective_from = 2026-01-01T00:00:00Z
instant = "admitted"
hit_per_mtok = "0.01"
miss_per_mtok = "0.1"
output_per_mtok = "0.2"
"""
WINDOW = """
[[price.window]]
name = "night"
zone = "Asia/Shanghai"
hours = ["22:00-24:00", "00:00-06:00"]
days = ["mon", "sun"]
not_on_holidays_of = "CN"
hit_per_mtok = "0.005"
miss_per_mtok = "0.05"
output_per_mtok = "0.1"
"""


def test_each_of_the_hours_becomes_a_window():
    (row,) = read(ROW + WINDOW).rows
    assert [(str(w.start), str(w.end), sorted(w.days)) for w in row.windows] == [
        ("22:00:00", "00:00:00", [0, 6]),
        ("00:00:00", "06:00:00", [0, 6]),
    ]
    assert row.standard.miss == rate_of("0.1")
    assert row.id == "m/USD/2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("right", "wrong", "place"),
    [
        ('miss_per_mtok = "0.1"', "miss_per_mtok = 0.1", "price 1.miss_per_mtok"),
        ('miss_per_mtok = "0.1"', 'miss_per_mtok = "0.0000005"', "price 1.miss_per_mtok"),
        ('miss_per_mtok = "0.1"', 'miss_per_mtok = "0.12345678901"', "price 1.miss_per_mtok"),
        ('miss_per_mtok = "0.1"', "", "price 1.miss_per_mtok"),
        ('miss_per_mtok = "0.1"', 'miss = "0.1"', "price 1: unknown key 'miss'"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00", "price 1.effective_from"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "price 1.effective_from"),
        ('"admitted"', '"sent"', "price 1.instant"),
        ('"USD"', '"usd"', "price 1.currency"),
        ('"Asia/Shanghai"', '"Beijing"', "price 1, window 1.zone"),
        ('"22:00-24:00"', '"22:00-25:00"', "price 1, window 1.hours"),
        ('"mon"', '"monday"', "price 1, window 1.days"),
        ('"CN"', '"XX"', "price 1, window 1.not_on_holidays_of"),
        ("[[price]]", "[[price", "book"),
        ("[[price]]", "[price]", "book: price"),
    ],
)
def test_a_wrong_price_file_is_refused_with_the_place(right: str, wrong: str, place: str):
    with pytest.raises(PriceInvalid, match="book") as refused:
        read((ROW + WINDOW).replace(right, wrong, 1), "book")
    assert place in str(refused.value)


def test_two_rows_of_the_same_instant_are_refused():
    with pytest.raises(PriceInvalid):
        read(ROW + ROW)


def test_the_row_in_force_is_the_latest_that_has_begun():
    book = shipped("deepseek-2025")
    change = datetime(2025, 9, 5, 16, tzinfo=UTC)
    assert book.row("deepseek-chat", "USD", change - SECOND).standard.miss == rate_of("0.27")
    assert book.row("deepseek-chat", "USD", change).standard.miss == rate_of("0.56")


@pytest.mark.parametrize(("model", "currency"), [("nobody", "USD"), ("deepseek-chat", "EUR")])
def test_a_model_or_currency_without_prices_is_an_error(model: str, currency: str):
    with pytest.raises(PriceMissing):
        shipped("deepseek-2025").row(model, currency, datetime(2025, 9, 5, tzinfo=UTC))


def test_no_price_covers_an_instant_before_the_first_row():
    with pytest.raises(PriceMissing):
        shipped("deepseek-2025").row("deepseek-chat", "USD", datetime(2025, 2, 26, 16, 29, 59, tzinfo=UTC))


@pytest.mark.parametrize("name", ["demo", "deepseek-2025", "deepseek-2026"])
def test_off_peak_hours_of_shipped_books_never_cost_more(name: str):
    for row in shipped(name).rows:
        named = {row.standard_name: row.standard} | {window.name: window.rates for window in row.windows}
        for cheap, dear in (("offpeak", "standard"), ("offpeak", "peak")):
            if cheap in named and dear in named:
                assert named[cheap].hit <= named[dear].hit
                assert named[cheap].miss < named[dear].miss
                assert named[cheap].output < named[dear].output
