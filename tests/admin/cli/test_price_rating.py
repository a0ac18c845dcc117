"""`kvitto price rate` and `replay`: a usage object of any shape, and a recorded month."""

import io
import json
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

from admin.settings import Settings
from billing.pricing import toml
from billing.pricing.writing import write
from billing.usage import TokenUsage
from tests.admin.cli.test_usage import DAY, settle

MODEL = "smollm2-135m-instruct"
DEEPSEEK = {
    "prompt_tokens": 1200,
    "completion_tokens": 300,
    "total_tokens": 1500,
    "prompt_cache_hit_tokens": 1024,
    "prompt_cache_miss_tokens": 176,
}
OPENAI = {
    "prompt_tokens": 1200,
    "completion_tokens": 300,
    "prompt_tokens_details": {"cached_tokens": 1024},
}
ANTHROPIC = {"input_tokens": 176, "cache_read_input_tokens": 1024, "output_tokens": 300}


@pytest.fixture
def history(tmp_path: Path) -> str:
    path = tmp_path / "deepseek.toml"
    path.write_text(write(toml.shipped("deepseek")))
    return str(path)


@pytest.fixture
def usage(tmp_path: Path) -> Any:
    def written(document: object) -> str:
        path = tmp_path / "usage.json"
        path.write_text(json.dumps(document))
        return str(path)

    return written


@pytest.mark.parametrize("document", [DEEPSEEK, OPENAI, ANTHROPIC, {"id": "x", "usage": DEEPSEEK}])
@pytest.mark.parametrize(
    ("at", "rated"),
    [
        ("2026-09-21T00:59:59Z", ("offpeak", "0.000209472")),
        ("2026-09-21T09:00+08:00", ("peak", "0.000418944")),
    ],
)
def test_a_usage_object_of_any_shape_is_rated_exactly(
    kvitto: Any, history: str, usage: Any, document: object, at: str, rated: tuple[str, str]
) -> None:
    """BerriAI/litellm#8867, theopenco/llmgateway#1193: amounts are exact decimals, never binary noise."""
    (window, charge), words = rated, ("--at", at, "--usage", usage(document), "--book", history)
    told = kvitto("price", "rate", "deepseek-flash", *words, "--json").told
    assert (told["window"], told["charge"], told["currency"]) == (window, charge, "USD")
    assert told["price_row_id"] == "deepseek-flash/USD/2026-09-10T04:00:00Z"
    assert told["usage"] == {
        "cache_hit": 1024, "cache_owed": 0, "cache_write": 0, "cache_miss": 176, "output": 300,
    }  # fmt: skip
    text = kvitto("price", "rate", "deepseek-flash", *words).out
    assert f"{charge} USD" in text
    assert f"window {window}" in text


def test_a_charge_is_written_to_its_last_decimal(kvitto: Any, tmp_path: Path, usage: Any) -> None:
    """BerriAI/litellm#8867: 0.001615, not 0.0016150000000000001."""
    prices = toml.shipped("demo")
    book = tmp_path / "book.toml"
    book.write_text(write(prices).replace('"0.14"', '"0.17"'))
    used = usage({"prompt_tokens": 9_500, "completion_tokens": 0})
    words = ("--at", "2026-12-01T12:00Z", "--usage", used, "--book", str(book), "--json")
    assert '"charge": "0.001615"' in kvitto("price", "rate", MODEL, *words).out


def test_another_currency_tier_and_stdin(kvitto: Any, history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("deepseek-v4-pro", "--at", "2026-09-22T08:00:00Z", "--usage", "-", "--book", history, "--json")

    def rated(*more: str) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(DEEPSEEK).encode())))
        return kvitto("price", "rate", *words, *more)

    told = rated("--currency", "cny").told
    assert (told["currency"], told["charge"]) == ("CNY", "0.0099912")
    assert "not offered" in rated("--tier", "batch").err
    assert "no tier" in rated("--tier", "urgent").err
    assert "no price for deepseek-v4-pro in EUR" in rated("--currency", "EUR").err


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 9}, "9 cached"),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 5},
            "impossible token counts",
        ),
        ({"input_tokens": 5, "output_tokens": 1, "cache_creation_input_tokens": 2}, "does not price"),
        ([], "no usage object"),
        ({"usage": None}, "no usage object"),
    ],
)
def test_usage_that_cannot_be_is_not_rated(
    kvitto: Any, history: str, usage: Any, document: object, reason: str
) -> None:
    words = ("deepseek-flash", "--at", "2026-09-21", "--usage", usage(document), "--book", history)
    ran = kvitto("price", "rate", *words)
    assert ran.status == 1
    assert reason in ran.err


def test_a_month_replayed_by_the_exported_book_is_the_ledgers_own_total(
    kvitto: Any, demo_prices: None, cli_settings: Settings, tmp_path: Path
) -> None:
    name = f"customer-{secrets.token_hex(4)}"
    kvitto("tenant", "create", name)
    kvitto("credit", "grant", name, "1")
    customer = kvitto("key", "create", name, "--name", "laptop", "--json").told
    for number in range(3):
        settle(cli_settings, customer, TokenUsage(64 * number, 0, 0, 1, number), DAY)
    exported, dearer = tmp_path / "exported.toml", tmp_path / "dearer.toml"
    exported.write_text(kvitto("price", "export").out)
    dearer.write_text(exported.read_text().replace('output_per_mtok = "0.28"', 'output_per_mtok = "1.28"'))

    def replayed(book: Path, *words: str) -> Any:
        rows = kvitto("price", "replay", "--book", str(book), "--since", "2026-11-01", *words, "--json").told
        return [row for row in rows if row["tenant"] == name]

    (same,) = replayed(exported)
    (tenant,) = [each for each in kvitto("tenant", "list", "--json").told if each["name"] == name]
    charged = f"0.{10**15 - int(tenant['balance'].removeprefix('0.').ljust(15, '0')):015d}".rstrip("0")
    assert (same["ledger"], same["rated"], same["difference"]) == (charged, charged, "0")
    assert (same["requests"], same["unpriced"], same["currency"]) == (3, 0, "USD")
    (more,) = replayed(dearer)
    assert (more["ledger"], more["difference"]) == (charged, "0.000003")
    assert replayed(exported, "--until", "2026-11-24T12:00Z") == []
    assert name in kvitto("price", "replay", "--book", str(dearer), "--since", "2026-11-01").out
