"""Tenants, keys and credit from the command line, on real Postgres and Valkey."""

import asyncio
import secrets
from typing import Any

import pytest

from admin.settings import Settings
from admin.stack.state import Layout
from billing.db.transaction import Database
from billing.ledger.balance import BalanceVersion
from billing.money import femto_of
from billing.tenancy.service import Tenancy
from gateway.admission.admit import Admission
from gateway.refusal import BalanceInsufficient
from gateway.valkey import Valkey


@pytest.fixture
def name() -> str:
    """A tenant's name that no other test has used: the database is the module's."""
    return f"acme-{secrets.token_hex(4)}"


def admits(settings: Settings, tenant_id: str, amount: str) -> bool:
    """Whether a gateway would admit a request of that worst case now."""

    async def ask() -> bool:
        valkey = Valkey.connect(settings.valkey_url)
        try:
            await Admission(valkey).admit(tenant_id, femto_of(amount))
        except BalanceInsufficient:
            return False
        finally:
            await valkey.close()
        return True

    return asyncio.run(ask())


def project(settings: Settings, balance: BalanceVersion) -> None:
    """Make Valkey believe something."""

    async def tell() -> None:
        valkey = Valkey.connect(settings.valkey_url)
        await Admission(valkey).project(balance)
        await valkey.close()

    asyncio.run(tell())


def test_a_new_tenant_has_no_credit_and_is_listed(kvitto: Any, name: str) -> None:
    made = kvitto("tenant", "create", name, "--currency", "eur", "--json").told
    assert (made["name"], made["currency"]) == (name, "EUR")
    assert made["id"].startswith("ten_")
    (listed,) = [row for row in kvitto("tenant", "list", "--json").told if row["id"] == made["id"]]
    assert listed["balance"] == listed["granted"] == listed["topped_up"] == "0"
    assert listed["created_at"].endswith("Z")
    assert name in kvitto("tenant", "list").out


def test_a_name_is_never_read_as_markup(kvitto: Any, name: str) -> None:
    marked = f"[red]{name}[/red]"
    assert marked in kvitto("tenant", "create", marked).out
    assert marked in kvitto("tenant", "list").out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("key", "create", "nobody"), "kvitto: no tenant 'nobody': `kvitto tenant list` shows all of them\n"),
        (
            ("credit", "grant", "nobody", "1"),
            "kvitto: no tenant 'nobody': `kvitto tenant list` shows all of them\n",
        ),
        (
            ("usage", "--tenant", "nobody"),
            "kvitto: no tenant 'nobody': `kvitto tenant list` shows all of them\n",
        ),
        (("key", "revoke", "key_0"), "kvitto: no API key 'key_0': `kvitto key list` shows all of them\n"),
    ],
)
def test_what_is_not_there_is_one_line_that_says_what_to_do(kvitto: Any, words: Any, line: str) -> None:
    ran = kvitto(*words)
    assert (ran.status, ran.out, ran.err) == (1, "", line)


def test_a_taken_name_is_refused(kvitto: Any, name: str) -> None:
    kvitto("tenant", "create", name)
    ran = kvitto("tenant", "create", name)
    assert (ran.status, ran.err) == (1, f"kvitto: tenant {name!r} exists already\n")


@pytest.mark.parametrize("code", ["", "US", "USDX", "U$D"])
def test_a_currency_has_three_letters(kvitto: Any, name: str, code: str) -> None:
    assert kvitto("tenant", "create", name, "--currency", code).status == 2


def test_a_secret_is_shown_once_and_is_the_key_that_is_found(
    kvitto: Any, name: str, cli_settings: Settings
) -> None:
    tenant = kvitto("tenant", "create", name, "--json").told
    made = kvitto("key", "create", name, "--name", "production", "--json").told
    shown = kvitto("key", "create", name).out
    assert "kv_live_" in shown
    assert "cannot be shown again" in shown

    for listing in (kvitto("key", "list", "--tenant", name).out, kvitto("key", "list", "--json").out):
        assert made["id"] in listing
        assert made["secret"] not in listing

    async def find() -> Any:
        database = Database(cli_settings.database_url, pool_size=1)
        try:
            tenancy = Tenancy(database, cli_settings.key_pepper)
            return await tenancy.find_key(tenancy.digest(made["secret"]))
        finally:
            await database.close()

    grant = asyncio.run(find())
    assert (grant.key_id, grant.tenant_id, grant.name) == (made["id"], tenant["id"], "production")


def test_revoking_a_key_is_for_good(kvitto: Any, name: str) -> None:
    kvitto("tenant", "create", name)
    made = kvitto("key", "create", name, "--json").told
    assert made["revoked_at"] is None
    revoked = kvitto("key", "revoke", made["id"], "--json").told
    assert revoked["revoked_at"] is not None
    assert kvitto("key", "revoke", made["id"], "--json").told["revoked_at"] == revoked["revoked_at"]
    assert kvitto("key", "list", "--tenant", name, "--json").told == [revoked]


def test_granted_credit_is_exact_and_can_be_spent_at_once(
    kvitto: Any, name: str, cli_settings: Settings
) -> None:
    tenant = kvitto("tenant", "create", name, "--json").told
    first = kvitto("credit", "grant", name, "0.000000000000001", "--json").told
    assert first["balance"] == first["amount"] == "0.000000000000001"
    assert not admits(cli_settings, tenant["id"], "0.1")
    second = kvitto("credit", "top-up", tenant["id"], "0.3", "--json").told
    assert (second["balance"], second["kind"]) == ("0.300000000000001", "credit")
    assert admits(cli_settings, tenant["id"], "0.3")
    (row,) = [row for row in kvitto("tenant", "list", "--json").told if row["id"] == tenant["id"]]
    assert (row["granted"], row["topped_up"]) == ("0.000000000000001", "0.3")


def test_the_same_idempotency_key_grants_once(kvitto: Any, name: str) -> None:
    kvitto("tenant", "create", name)
    words = ("credit", "grant", name, "100", "--idempotency-key", "welcome", "--json")
    assert kvitto(*words).told["balance"] == "100"
    assert kvitto(*words).told["balance"] == "100"


@pytest.mark.parametrize("amount", ["0", "-1", "1e3", "1,000", "0.0000000000000001", "much"])
def test_what_is_no_amount_is_not_granted(kvitto: Any, name: str, amount: str) -> None:
    kvitto("tenant", "create", name)
    assert kvitto("credit", "grant", name, "--", amount).status != 0
    (row,) = [row for row in kvitto("tenant", "list", "--json").told if row["name"] == name]
    assert row["balance"] == "0"


def test_credit_that_has_lapsed_is_not_granted(kvitto: Any, name: str) -> None:
    kvitto("tenant", "create", name)
    ran = kvitto("credit", "grant", name, "1", "--expires", "2020-01-01")
    assert ran.status == 2
    assert "has passed" in ran.err


def test_admission_is_rebuilt_from_the_books(kvitto: Any, name: str, cli_settings: Settings) -> None:
    """songquanpeng/one-api#1132: where Valkey and the database disagree, the database wins."""
    tenant = kvitto("tenant", "create", name, "--json").told
    kvitto("credit", "grant", name, "5")
    project(cli_settings, BalanceVersion(tenant["id"], femto_of("1000"), 99))
    assert admits(cli_settings, tenant["id"], "1000")
    (row,) = kvitto("admission", "rebuild", name, "--json").told
    assert (row["tenant_id"], row["balance"], row["currency"]) == (tenant["id"], "5", "USD")
    assert not admits(cli_settings, tenant["id"], "6")
    assert name in kvitto("admission", "rebuild").out
    ran = kvitto("admission", "rebuild", "nobody")
    assert (ran.status, ran.err.count("\n")) == (1, 1)


def test_a_grant_that_valkey_missed_is_completed_by_the_same_key(
    kvitto: Any, name: str, cli_settings: Settings
) -> None:
    tenant = kvitto("tenant", "create", name, "--json").told
    settings_file = Layout(cli_settings.data_dir).settings
    whole = settings_file.read_bytes()
    settings_file.write_bytes(whole.replace(cli_settings.valkey_url.encode(), b"unix:///nowhere/valkey.sock"))
    ran = kvitto("credit", "grant", name, "5")
    settings_file.write_bytes(whole)
    assert ran.status == 1
    assert ran.err.count("\n") == 1
    key = ran.err.split("--idempotency-key ")[1].split()[0]
    assert kvitto("credit", "grant", name, "5", "--idempotency-key", key, "--json").told["balance"] == "5"
    assert admits(cli_settings, tenant["id"], "5")
