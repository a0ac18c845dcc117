"""`kvitto store` on a real directory, beside the session's real Postgres for what a token costs."""

import io
import os
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from admin import clock
from admin.settings import Settings
from admin.stack.state import Layout
from billing.money import Femto, decimal_of
from billing.pricing import toml
from billing.usage import TokenUsage
from engine.retention import RETENTION_S
from engine.store.directory import Match, PrefixStore, TenantBlocks
from engine.store.namespace import Namespace
from tests.admin.cli.conftest import Kvitto
from tests.admin.cli.test_usage import DAY, MODEL, customer, settle

__all__ = ["customer"]  # a fixture

NAMESPACE, OTHER_NAMESPACE, PROMISES = "ab" * 32, "cd" * 32, "ef" * 32
HASHES = [bytes([index]) * 32 for index in range(1, 5)]
FILE_BYTES = 184 + 2


def now_s() -> int:
    return int(clock.now().timestamp())


@pytest.fixture
def store(cli_settings: Settings) -> PrefixStore:
    store = PrefixStore(cli_settings.data_dir / "store", now_s)
    store.describe(Namespace(NAMESPACE, PROMISES, 64, {"vllm": "0.32.0"}))
    return store


def keep(store: PrefixStore, tenant: str = "ten_a", namespace: str = NAMESPACE) -> TenantBlocks:
    blocks = store.namespace(namespace, tenant)
    for block_hash in HASHES:
        blocks.publish(block_hash, [memoryview(b"kv")], "chat")
    return blocks


def says(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """What a person types when they are asked."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(words + "\n"))


def test_stat_shows_blocks_promises_and_what_is_owed(kvitto: Kvitto, store: PrefixStore) -> None:
    keep(store)
    keep(store, "ten_b")
    swept = kvitto("store", "sweep", "--quota", str(6 * FILE_BYTES), "--json").told
    assert swept["evicted"] == 2
    told = kvitto("store", "stat", "--json").told
    assert (told["blocks"], told["bytes"]) == (6, 6 * FILE_BYTES)
    (namespace,) = told["namespaces"]
    assert namespace["facts"] == {"vllm": "0.32.0"}
    assert namespace["promised_tokens"] == 6 * 64
    until = datetime.fromisoformat(namespace["promised_until"])
    assert abs(until - datetime.now(UTC) - timedelta(seconds=RETENTION_S["chat"])) < timedelta(minutes=5)
    owed = {row["tenant"]: (row["owed_blocks"], row["owed_tokens"]) for row in told["tenants"]}
    assert sum(blocks for blocks, _ in owed.values()) == 2
    assert sum(tokens for _, tokens in owed.values()) == 128
    table = kvitto("store", "stat")
    assert NAMESPACE[:12] in table.out
    assert "quota" in table.out


def test_a_store_that_is_not_there_says_what_makes_one(kvitto: Kvitto) -> None:
    for command in (["stat"], ["verify"], ["sweep"], ["erase", "--tenant", "ten_a"], ["retire", "ab"]):
        ran = kvitto("store", *command)
        assert ran.status == 1
        assert "`kvitto up` makes one" in ran.err


def test_verify_names_the_file_that_is_not_what_it_says(kvitto: Kvitto, store: PrefixStore) -> None:
    blocks = keep(store)
    assert kvitto("store", "verify", "--json").told["findings"] == []
    broken = blocks.path(HASHES[2])
    broken.write_bytes(broken.read_bytes()[:-1] + b"x")
    ran = kvitto("store", "verify")
    assert ran.status == 1
    assert str(broken) in ran.out
    assert "1 findings." in ran.out


def test_sweep_takes_what_is_promised_no_longer(kvitto: Kvitto, store: PrefixStore) -> None:
    blocks = keep(store)
    os.utime(blocks.path(HASHES[0]), (1, 1))
    assert kvitto("store", "sweep", "--json").told["expired"] == 1
    assert "blocks whose promise had ended" in kvitto("store", "sweep").out


def test_erase_asks_and_takes_one_tenant_alone(
    kvitto: Kvitto, store: PrefixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = keep(store), keep(store, "ten_b")
    says(monkeypatch, "n")
    refused = kvitto("store", "erase", "--tenant", "ten_a")
    assert refused.status == 1
    assert "Erase 4 blocks of ten_a, and forget 0 that are owed?" in refused.err
    assert mine.match(HASHES) == Match(4)
    says(monkeypatch, "y")
    assert kvitto("store", "erase", "--tenant", "ten_a").status == 0
    assert (mine.match(HASHES), theirs.match(HASHES)) == (Match(0), Match(4))
    again = kvitto("store", "erase", "--tenant", "ten_a", "--yes")
    assert again.status == 1
    assert "nothing of ten_a" in again.err


@pytest.mark.parametrize("tenant", ["../ten_a", "", "ten a", "a" * 65])
def test_erase_takes_no_tenant_that_is_a_path(kvitto: Kvitto, store: PrefixStore, tenant: str) -> None:
    assert kvitto("store", "erase", "--tenant", tenant, "--yes").status == 2


def test_retire_says_what_it_costs_and_asks(
    kvitto: Kvitto, store: PrefixStore, demo_prices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = keep(store)
    store.describe(Namespace(OTHER_NAMESPACE, PROMISES))
    says(monkeypatch, "n")
    asked = kvitto("store", "retire", "ab")
    assert asked.status == 1
    assert "4 are promised" in asked.out
    assert "up to 256 prompt tokens" in asked.out
    assert "by the prices in force now" in asked.out
    assert blocks.match(HASHES) == Match(4)
    told = kvitto("store", "retire", "ab", "--yes", "--json").told
    assert (told["blocks"], told["owed_blocks"], told["owed_tokens_most"]) == (4, 4, 256)
    rates = [row["rates"] for row in kvitto("price", "show", "--json").told]
    per_token = (Decimal(rates[0]["miss"]) - Decimal(rates[0]["hit"])) / 1_000_000
    assert Decimal(told["costs_most"][0]["amount"]) == 256 * per_token
    assert store.namespace(OTHER_NAMESPACE, "ten_a").match(HASHES) == Match(0, owed=4)
    (row,) = [row for row in kvitto("store", "stat", "--json").told["tenants"] if row["tenant"] == "ten_a"]
    assert (row["owed_blocks"], row["owed_because"]) == (4, "upgrade")


def test_retire_without_a_running_stack_counts_tokens_alone(
    kvitto: Kvitto, store: PrefixStore, cli_settings: Settings
) -> None:
    keep(store)
    Layout(cli_settings.data_dir).state.unlink()
    told = kvitto("store", "retire", "ab", "--yes", "--json").told
    assert (told["owed_tokens_most"], told["costs_most"]) == (256, [])


def test_retire_wants_one_namespace_and_a_yes_from_machines(kvitto: Kvitto, store: PrefixStore) -> None:
    store.describe(Namespace("ab" * 31 + "ac", PROMISES))
    for words, reason in (
        (["ff"], "no namespace begins with 'ff'"),
        (["ab"], "2 namespaces begin with 'ab'"),
        ([NAMESPACE, "--json"], "add --yes"),
    ):
        ran = kvitto("store", "retire", *words)
        assert ran.status == 1
        assert reason in ran.err


def test_stat_tells_what_broken_promises_have_cost_and_what_they_still_can(
    kvitto: Kvitto, store: PrefixStore, cli_settings: Settings, customer: dict[str, Any]
) -> None:
    tenant = customer["tenant_id"]
    keep(store, tenant)
    usage = TokenUsage(cache_hit=0, cache_owed=1_000, cache_write=0, cache_miss=200, output=1)
    settle(cli_settings, customer, usage, DAY)
    assert kvitto("store", "sweep", "--quota", str(2 * FILE_BYTES), "--json").told["evicted"] == 2
    told = kvitto("store", "stat", "--json").told
    assert told["books_reached"]
    assert (told["quota_bytes"], told["room_for_owed_bytes"]) == (2 * FILE_BYTES, 0)
    (row,) = [each for each in told["tenants"] if each["tenant"] == tenant]
    _, rates = toml.shipped("demo").row(MODEL, "USD", DAY).rates_at(DAY)
    so_far = decimal_of(Femto(1_000 * (rates.miss - rates.hit)))
    assert (row["owed_billed_tokens"], row["owed_cost_so_far"]) == (1_000, f"{so_far} USD")
    _, rates = toml.shipped("demo").row(MODEL, "USD", clock.now()).rates_at(clock.now())
    assert row["owed_cost_to_come"] == f"{decimal_of(Femto(128 * (rates.miss - rates.hit)))} USD"
    assert "room for owed blocks: 0" in kvitto("store", "stat").out.replace("\n", " ")


def test_stat_without_a_database_says_so_and_shows_the_rest(
    kvitto: Kvitto, store: PrefixStore, cli_settings: Settings
) -> None:
    keep(store)
    Layout(cli_settings.data_dir).state.unlink()
    told = kvitto("store", "stat", "--json").told
    assert (told["books_reached"], told["blocks"]) == (False, 4)
    assert "No database can be reached" in kvitto("store", "stat").out
