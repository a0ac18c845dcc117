"""`kvitto tenant suspend|resume|erase`: what is said, what is asked, and what is then so."""

import io
import sys
from typing import Any

import pytest

from tests.admin.cli.conftest import Kvitto


def says(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """What a person types when they are asked."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(words + "\n"))


@pytest.fixture
def acme(kvitto: Kvitto, request: pytest.FixtureRequest) -> Any:
    """A tenant with a user and a key, by its name and id."""
    made = kvitto("tenant", "create", f"acme {request.node.name}", "--json").told
    kvitto("user", "create", made["id"], "ada@lovelace.example")
    kvitto("key", "create", made["id"], "--name", "ada's laptop")
    kvitto("credit", "grant", made["id"], "3")
    return made


def test_a_tenant_is_suspended_shown_so_and_resumed(kvitto: Kvitto, acme: Any) -> None:
    suspended = kvitto("tenant", "suspend", acme["name"], "--reason", "leaked keys", "--json").told
    assert (suspended["suspended_by"], suspended["suspended_because"]) == ("operator", "leaked keys")
    assert "leaked keys" in kvitto("tenant", "show", acme["name"]).out
    assert "admitted" in kvitto("tenant", "resume", acme["name"]).out
    assert kvitto("tenant", "show", acme["name"], "--json").told["suspended_at"] is None
    assert kvitto("tenant", "suspend", acme["name"]).status == 2  # without a reason
    assert kvitto("tenant", "suspend", acme["name"], "--reason", " ").status == 1


def test_an_erasure_says_what_stays_and_asks_for_the_name(
    kvitto: Kvitto, acme: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "somebody else")
    refused = kvitto("tenant", "erase", acme["id"])
    assert refused.status == 1
    assert "nothing was erased" in refused.err
    assert kvitto("tenant", "show", acme["id"], "--json").told["suspended_at"] is None
    says(monkeypatch, acme["name"])
    erased = kvitto("tenant", "erase", acme["id"])
    assert erased.status == 0
    for said in ("Stays, under", "ledger (it has 3 USD left", "Backups"):
        assert said in erased.err
    assert f"{acme['id']} names nobody any more" in erased.out
    assert acme["name"] not in kvitto("tenant", "list").out
    assert kvitto("tenant", "show", acme["name"]).status == 1
    assert kvitto("tenant", "show", acme["id"], "--json").told["erased_at"] is not None
    assert kvitto("user", "list", "--tenant", acme["id"], "--json").told == []
    assert "lovelace" not in kvitto("audit", "list", "--tenant", acme["id"], "--json").out
    assert kvitto("audit", "verify").status == 0
    assert kvitto("tenant", "resume", acme["id"]).status == 1


def test_a_machine_confirms_by_the_name(kvitto: Kvitto, acme: Any) -> None:
    unconfirmed = kvitto("tenant", "erase", acme["id"], "--json")
    assert unconfirmed.status == 1
    assert "--confirm" in unconfirmed.err
    assert kvitto("tenant", "erase", acme["id"], "--confirm", acme["id"], "--json").status == 1
    dropped = kvitto("tenant", "erase", acme["id"], "--confirm", acme["name"], "--json").told
    assert (dropped["id"], dropped["users"], dropped["keys"]) == (acme["id"], 1, 1)
