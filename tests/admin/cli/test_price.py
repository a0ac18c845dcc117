"""`kvitto price`: the shipped demo book, published in a real database."""

from typing import Any

import pytest

MODEL = "smollm2-135m-instruct"
STANDARD = {"hit": "0.014", "miss": "0.14", "write": None, "output": "0.28"}
OFFPEAK = {"hit": "0.007", "miss": "0.07", "write": None, "output": "0.14"}


def test_the_list_holds_every_row_with_its_windows(kvitto: Any, demo_prices: None) -> None:
    (row,) = kvitto("price", "list", "--json").told
    assert (row["model"], row["currency"], row["effective_from"]) == (MODEL, "USD", "2025-01-01T00:00:00Z")
    assert (row["instant"], row["rates"]) == ("admitted", STANDARD)
    (window,) = row["windows"]
    assert (window["name"], window["start"], window["end"], window["tz"]) == (
        "offpeak",
        "16:30",
        "00:30",
        "UTC",
    )
    assert window["days"] == ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    assert window["rates"] == OFFPEAK
    assert "offpeak" in kvitto("price", "list").out


@pytest.mark.parametrize(
    ("at", "window", "rates"),
    [
        ("2026-12-01T16:29:59Z", "standard", STANDARD),
        ("2026-12-01T16:30Z", "offpeak", OFFPEAK),
        ("2026-12-01T17:30+01:00", "offpeak", OFFPEAK),
        ("2026-12-02T00:30Z", "standard", STANDARD),
    ],
)
def test_what_is_in_force_depends_on_the_instant(
    kvitto: Any, demo_prices: None, at: str, window: str, rates: Any
) -> None:
    (shown,) = kvitto("price", "show", MODEL, "--at", at, "--json").told
    assert (shown["window"], shown["rates"]) == (window, rates)
    assert shown["price_row_id"] == kvitto("price", "list", "--json").told[0]["id"]
    assert window in kvitto("price", "show", "--at", at).out


@pytest.mark.parametrize("words", [("--at", "2024-12-31"), ("another-model",), ("--currency", "EUR")])
def test_what_has_no_price_is_said_so(kvitto: Any, demo_prices: None, words: tuple[str, ...]) -> None:
    ran = kvitto("price", "show", *words)
    assert ran.status == 1
    assert "`kvitto price list`" in ran.err
