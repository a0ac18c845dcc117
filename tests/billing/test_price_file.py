from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

import pytest

from billing.errors import PriceInvalid, PriceMissing
from billing.money import rate_of
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.toml import examine, read, shipped
from billing.pricing.window import Window
from billing.pricing.writing import write

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
        ('miss_per_mtok = "0.1"', "miss_per_mtok = 0.1", "8: price 1.miss_per_mtok: must be a text"),
        ('miss_per_mtok = "0.1"', 'miss_per_mtok = "0.1234567891"', "8: price 1.miss_per_mtok"),
        ('miss_per_mtok = "0.1"', 'miss_per_mtok = "100000.1"', "8: price 1.miss_per_mtok"),
        ('miss_per_mtok = "0.1"', 'miss_per_mtok = "-1"', "8: price 1.miss_per_mtok"),
        ('miss_per_mtok = "0.1"', "", "2: price 1.miss_per_mtok: missing"),
        ('miss_per_mtok = "0.1"', 'miss = "0.1"', "8: price 1.miss: unknown key"),
        ('miss_per_mtok = "0.1"', 'miss_per_mtok = "0.005"', "2: price 1: a hit costs more"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00", "5: price 1.effective_from"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "5: price 1.effective_from"),
        ("2026-01-01T00:00:00Z", "0001-01-01T00:00:00+09:00", "5: price 1.effective_from"),
        ('"admitted"', '"sent"', "6: price 1.instant"),
        ('"USD"', '"usd"', "4: price 1.currency"),
        ('"USD"', '"UDS"', "4: price 1.currency: 'UDS' is none of USD, CNY, EUR"),
        ('"Asia/Shanghai"', '"Beijing"', "13: price 1, window 1.zone"),
        ('"22:00-24:00"', '"22:00-25:00"', "14: price 1, window 1.hours"),
        ('"mon"', '"monday"', "15: price 1, window 1.days"),
        ('"CN"', '"XX"', "16: price 1, window 1.not_on_holidays_of"),
        ('"night"', '"standard"', "11: price 1, window 1: 'standard' is also the name of other rates"),
        ('"00:00-06:00"', '"23:30-06:00"', "11: price 1, window 1: 'night' is open at the same time"),
        ("[[price]]", "[[price", "2: TOML"),
        ("[[price]]", "[price]", "2: price: must be an array of tables"),
        ("[[price]]", "[[prices]]", "2: prices: unknown key"),
    ],
)
def test_a_wrong_price_file_is_refused_with_file_line_and_reason(right: str, wrong: str, place: str):
    with pytest.raises(PriceInvalid) as refused:
        read((ROW + WINDOW).replace(right, wrong, 1), "book.toml")
    assert str(refused.value).startswith(f"book.toml:{place}")


def test_a_price_typed_per_token_is_refused_and_the_key_says_the_unit():
    """BerriAI/litellm#20615: 0.14 per 1M tokens, typed as 0.00000014 a token."""
    with pytest.raises(PriceInvalid, match=r"^book:8: price 1\.miss_per_mtok: .* is no price per 1M tokens"):
        read(ROW.replace('miss_per_mtok = "0.1"', 'miss_per_mtok = "0.00000014"'), "book")


def test_an_instant_with_an_offset_is_converted():
    """BerriAI/litellm#34896: nine o'clock in Tokyo is midnight in UTC."""
    (row,) = read(ROW.replace("00:00:00Z", "09:00:00+09:00")).rows
    assert (row.effective_from, row.id) == (datetime(2026, 1, 1, tzinfo=UTC), "m/USD/2026-01-01T00:00:00Z")


@pytest.mark.parametrize("text", ["", "# nothing\n", "price = []", "[[" * 9_999, "a = " + "9" * 9_999, "\0"])
def test_what_is_no_price_book_at_all_is_refused(text: str):
    with pytest.raises(PriceInvalid, match=r"^book:1: "):
        read(text, "book")


def test_two_rows_of_the_same_instant_are_refused():
    with pytest.raises(PriceInvalid, match=r"^book:12: price 2: another row of the same model"):
        read(ROW + "\n" + ROW.replace("2026-01-01T00:00:00Z", "2025-12-31T19:00:00-05:00"), "book")


def test_each_row_that_is_wrong_is_found():
    wrong = ROW.replace("m", "n", 1) + ROW.replace('"USD"', '"ZZZ"') + ROW + ROW.replace('"0.1"', '"1e3"')
    rows, faults = examine(wrong, "book")
    assert [row.model for row in rows] == ["m"]
    assert [fault.line for fault in faults] == [3, 13, 35]


@pytest.mark.parametrize(
    ("hours", "day", "zone", "where"),
    [
        ("05:00-07:00", "mon", "Asia/Shanghai", "Monday at 05:00, Asia/Shanghai"),
        ("05:00-07:00", "tue", "Asia/Shanghai", None),
        ("05:00-07:00", "sun", "Asia/Tokyo", "Sunday at 05:00, Asia/Tokyo"),
        ("05:00-07:00", "fri", "Asia/Tokyo", None),
        ("21:00-23:30", "sun", "Asia/Shanghai", "Sunday at 22:00, Asia/Shanghai"),
        # Half past ten in the evening there is half past five in Shanghai, in summer alone.
        ("22:30-23:30", "sat", "Europe/London", "Saturday at 22:30, Europe/London"),
        ("22:30-23:30", "sat", "UTC", None),
    ],
)
def test_windows_never_overlap(hours: str, day: str, zone: str, where: str | None):
    other = WINDOW.replace("night", "other").replace("Asia/Shanghai", zone)
    other = other.replace('"22:00-24:00", "00:00-06:00"', f'"{hours}"').replace('"mon", "sun"', f'"{day}"')
    if where is None:
        assert len(read(ROW + WINDOW + other).rows[0].windows) == 3
    else:
        with pytest.raises(PriceInvalid, match=f"^book:21: price 1, window 2: .*: {where}"):
            read(ROW + WINDOW + other, "book")


def test_the_row_in_force_is_the_latest_that_has_begun():
    book = shipped("deepseek")
    change = datetime(2025, 9, 5, 16, tzinfo=UTC)
    assert book.row("deepseek-chat", "USD", change - SECOND).standard.miss == rate_of("0.27")
    assert book.row("deepseek-chat", "USD", change).standard.miss == rate_of("0.56")


# `contracts.md`, 2.7: from when on, and hit, miss and output by window.
HISTORY = [
    ("deepseek-chat", "USD", "2025-02-26T16:30:00Z", ".07/.27/1.10", ".035/.135/.55"),
    ("deepseek-reasoner", "USD", "2025-02-26T16:30:00Z", ".14/.55/2.19", ".035/.135/.55"),
    ("deepseek-chat", "USD", "2025-09-05T16:00:00Z", ".07/.56/1.68", None),
    ("deepseek-reasoner", "USD", "2025-09-05T16:00:00Z", ".07/.56/1.68", None),
    ("deepseek-v4-flash", "USD", "2026-01-01T00:00:00Z", ".0028/.14/.28", None),
    ("deepseek-v4-pro", "USD", "2026-01-01T00:00:00Z", ".003625/.435/.87", None),
    ("deepseek-v4-flash", "USD", "2026-08-16T16:00:00Z", ".014/.44/1.32", ".007/.22/.66"),
    ("deepseek-v4-pro", "USD", "2026-08-16T16:00:00Z", ".044/1.32/3.96", ".022/.66/1.98"),
    ("deepseek-v4-flash", "USD", "2026-08-22T16:00:00Z", ".014/.44/1.32", ".007/.22/.66"),
    ("deepseek-v4-pro", "USD", "2026-08-22T16:00:00Z", ".044/1.32/3.96", ".022/.66/1.98"),
    ("deepseek-v4-pro", "CNY", "2026-08-22T16:00:00Z", ".30/9/27", ".15/4.5/13.5"),
    *(
        (model, *prices)
        for model in ("deepseek-flash", "deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
        for prices in (
            ("USD", "2026-09-10T04:00:00Z", ".006/.30/1.20", ".003/.15/.60"),
            ("CNY", "2026-09-10T04:00:00Z", ".04/2/8", ".02/1/4"),
        )
    ),
]


def test_the_shipped_deepseek_book_is_the_published_history_and_nothing_else():
    def rates(text: str) -> Rates:
        return Rates(*(rate_of(f"0{price}" if price[0] == "." else price) for price in text.split("/")))

    told = []
    for row in shipped("deepseek").rows:
        named = {row.standard_name: row.standard} | {window.name: window.rates for window in row.windows}
        dear = named.get("peak") or named["standard"]
        told.append((row.model, row.currency, row.effective_from, dear, named.get("offpeak")))
    published = [
        (model, currency, datetime.fromisoformat(at), rates(dear), cheap and rates(cheap))
        for model, currency, at, dear, cheap in HISTORY
    ]
    assert sorted(told, key=str) == sorted(published, key=str)


@pytest.mark.parametrize(("model", "currency"), [("nobody", "USD"), ("deepseek-chat", "EUR")])
def test_a_model_or_currency_without_prices_is_an_error(model: str, currency: str):
    with pytest.raises(PriceMissing):
        shipped("deepseek").row(model, currency, datetime(2025, 9, 5, tzinfo=UTC))


def test_no_price_covers_an_instant_before_the_first_row():
    with pytest.raises(PriceMissing):
        shipped("deepseek").row("deepseek-chat", "USD", datetime(2025, 2, 26, 16, 29, 59, tzinfo=UTC))


@pytest.mark.parametrize("name", ["demo", "deepseek"])
def test_off_peak_hours_of_shipped_books_never_cost_more(name: str):
    for row in shipped(name).rows:
        named = {row.standard_name: row.standard} | {window.name: window.rates for window in row.windows}
        for cheap, dear in (("offpeak", "standard"), ("offpeak", "peak")):
            if cheap in named and dear in named:
                assert named[cheap].hit <= named[dear].hit
                assert named[cheap].miss < named[dear].miss
                assert named[cheap].output < named[dear].output


BATCH = """
[price.batch]
hit_per_mtok = "0.005"
miss_per_mtok = "0.05"
output_per_mtok = "0.1"
"""


def test_a_row_may_price_tiers_and_cache_writes_and_be_a_plans_or_a_tenants():
    more = 'write_per_mtok = "0.125"\n'
    in_batch = BATCH.replace('output_per_mtok = "0.1"', 'output_per_mtok = "0.1"\nwrite_per_mtok = "0.06"')
    text = ROW + more + in_batch + WINDOW + more + in_batch.replace("price.", "price.window.")
    (row,) = read(text).rows
    batch = Rates(*(rate_of(text) for text in ("0.005", "0.05", "0.1", "0.06")))
    assert (row.standard.batch, row.standard.flex, row.standard.write) == (batch, None, rate_of("0.125"))
    assert [window.rates.batch for window in row.windows] == [batch, batch]
    owned = ROW + 'plan = "gold"\neffective_until = 2026-02-01T09:00:00+09:00\n'
    (gold,) = read(owned).rows
    assert (gold.id, gold.plan) == ("m/USD/2026-01-01T00:00:00Z/plan/gold", "gold")
    assert gold.effective_until == datetime(2026, 2, 1, tzinfo=UTC)
    assert len(read(ROW + owned + ROW + 'tenant = "ten_a"\n').rows) == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ROW + BATCH + WINDOW, "book:16: price 1, window 1: a gap: the row and this window do not offer"),
        (ROW + BATCH.replace('"0.05"', '"0"'), "book:2: price 1: a hit costs more than a miss (batch)"),
        (ROW + BATCH.replace('"0.05"', '"1e9"'), "book:13: price 1, batch.miss_per_mtok"),
        (ROW + BATCH + "instant = 1", "book:15: price 1, batch.instant: unknown key"),
        (ROW + "batch = 1", "book:10: price 1.batch: must be a table"),
        (ROW + BATCH + 'write_per_mtok = "1"', "book:2: price 1: a gap: cache writes"),
        (ROW + WINDOW + 'write_per_mtok = "1"', "book:11: price 1, window 1: a gap: cache writes"),
        (ROW + "effective_until = 2026-02-01T00:00:00Z", "book:2: price 1: the public price never ends"),
        (ROW + 'plan = "gold"\ntenant = "ten_a"', "book:2: price 1: it is a plan's or a tenant's"),
        (ROW + 'plan = "Gold!"', "book:10: price 1.plan"),
        (ROW + 'tenant = "acme"', "book:10: price 1.tenant"),
        (
            ROW + 'plan = "gold"\neffective_until = 2025-02-01T00:00:00Z',
            "book:2: price 1: it ends before it begins",
        ),
    ],
)
def test_what_contradicts_itself_about_tiers_and_owners_is_refused(text: str, reason: str):
    with pytest.raises(PriceInvalid) as refused:
        read(text, "book")
    assert str(refused.value).startswith(reason)


@pytest.mark.parametrize("name", ["demo", "deepseek"])
def test_a_shipped_book_that_is_written_is_read_back_as_it_was(name: str):
    assert read(write(shipped(name))) == shipped(name)


def test_a_row_with_everything_that_is_written_is_read_back_as_it_was():
    batch = Rates(1_000_000, 2_000_000, 3_000_000, write=0)
    rates = Rates(1_500_000, 3_000_001, 9_000_000, write=4_000_000, flex=batch, batch=batch)
    day = Window('"d\\', rates, time(0), time(0), "Asia/Kathmandu", frozenset({6}), "NP")
    row = PriceRow(
        model="m",
        currency="EUR",
        effective_from=datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
        instant="completed",
        standard=rates,
        windows=(day, replace(day, start=time(9), end=time(12), days=frozenset({1, 2}), holidays=None)),
        standard_name="ü",
        tenant_id="ten_a",
        effective_until=datetime(2026, 2, 1, tzinfo=UTC),
    )
    assert read(write(PriceBook((row,)))).rows == (row,)
