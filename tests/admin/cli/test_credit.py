"""Money moved from the command line: both billing modes, every movement with its reason."""

import secrets
from typing import Any

import pytest

from admin.settings import Settings
from tests.admin.cli.test_books import admits


@pytest.fixture
def name(kvitto: Any) -> str:
    """A tenant of this test's own."""
    name = f"acme-{secrets.token_hex(4)}"
    kvitto("tenant", "create", name)
    return name


def test_every_movement_is_listed_with_its_reason_and_actor_newest_first(kvitto: Any, name: str) -> None:
    kvitto("credit", "grant", name, "5", "--reason", "welcome", "--priority", "1")
    kvitto("credit", "top-up", name, "20", "--idempotency-key", "transfer-7")
    kvitto("credit", "refund", name, "8", "--reason", "asked for")
    kvitto("credit", "correct", name, "0.5", "--favours", "house", "--reason", "billed too little")
    rows = kvitto("credit", "list", name, "--json").told
    assert [(row["kind"], row["amount"], row["remaining"], row["reason"]) for row in rows] == [
        ("correction", "-0.5", None, "billed too little"),
        ("refund", "-8", None, "asked for"),
        ("credit", "20", "12", "paid, recorded on the command line"),
        ("credit", "5", "4.5", "welcome"),
    ]
    assert {row["actor"] for row in rows} == {"command line"}
    assert (rows[2]["idempotency_key"], rows[3]["priority"]) == ("transfer-7", 1)
    assert "billed too little" in kvitto("credit", "list", name).out
    told = kvitto("balance", name, "--json").told
    assert (told["granted"], told["topped_up"], told["spendable"]) == ("4.5", "12", "16.5")
    assert "16.5" in kvitto("balance", name).out


@pytest.mark.parametrize("command", ["refund", "write-off", "correct"])
def test_taking_back_and_forgiving_need_a_reason(kvitto: Any, name: str, command: str) -> None:
    assert kvitto("credit", command, name, "1").status == 2
    ran = kvitto("credit", "grant", name, "1", "--reason", " ")
    assert (ran.status, ran.err) == (1, "kvitto: every movement of money names its reason and its actor\n")


def test_more_than_there_is_is_one_line(kvitto: Any, name: str) -> None:
    kvitto("credit", "grant", name, "5")
    ran = kvitto("credit", "refund", name, "1", "--reason", "x")
    assert (ran.status, ran.err) == (1, "kvitto: 1 is more than the paid credit that remains, which is 0\n")
    ran = kvitto("credit", "write-off", name, "1", "--reason", "x")
    assert (ran.status, ran.err) == (1, "kvitto: 1 is more than the debt, which is 0\n")


def test_a_key_used_for_something_else_is_one_line(kvitto: Any, name: str) -> None:
    kvitto("credit", "top-up", name, "5", "--idempotency-key", "k")
    ran = kvitto("credit", "top-up", name, "6", "--idempotency-key", "k")
    assert ran.status == 1
    assert ran.err == "kvitto: idempotency key 'k' already names another movement of money\n"


def test_a_postpaid_tenant_is_admitted_up_to_its_limit_at_once(
    kvitto: Any, name: str, cli_settings: Settings
) -> None:
    told = kvitto("credit", "terms", name, "--mode", "postpaid", "--limit", "3", "--json").told
    assert (told["billing_mode"], told["balance"]) == ("postpaid", "3")
    assert admits(cli_settings, told["tenant_id"], "2.5")
    kvitto("credit", "correct", name, "1", "--favours", "house", "--reason", "usage")
    shown = kvitto("balance", name, "--json").told
    assert (shown["receivable"], shown["credit_limit"], shown["spendable"]) == ("1", "3", "2")
    kvitto("credit", "write-off", name, "1", "--reason", "goodwill")
    assert kvitto("balance", name, "--json").told["receivable"] == "0"


def test_a_rule_to_ask_for_top_ups_is_set_and_switched_off(kvitto: Any, name: str) -> None:
    told = kvitto("credit", "auto", name, "--below", "10", "--amount", "100", "--json").told
    assert (told["enabled"], told["below"], told["amount"]) == (True, "10", "100")
    assert "does not ask" in kvitto("credit", "auto", name, "--below", "10", "--amount", "100", "--off").out
    assert kvitto("credit", "auto", name, "--below", "10", "--amount", "0").status == 1


def test_a_threshold_that_is_told_is_set_and_taken_away(kvitto: Any) -> None:
    kvitto("tenant", "create", "watched")
    assert kvitto("credit", "alert", "watched", "10", "--json").told == {"tenant": "watched", "below": "10"}
    assert "is told nothing" in kvitto("credit", "alert", "watched", "--off").out
    for words in ((), ("10", "--off"), ("-1",), ("much",)):
        assert kvitto("credit", "alert", "watched", *words).status in (1, 2)
