"""Projects, keys with terms, users, limits, budgets and the audit log from the command line."""

import asyncio
import secrets
from typing import Any

import pytest
from sqlalchemy import text

from admin.settings import Settings
from billing.db.access import OWNER
from billing.db.transaction import Database
from billing.tenancy.api_key import KeyGrant
from billing.tenancy.service import Tenancy


@pytest.fixture
def acme(kvitto: Any) -> str:
    """A tenant of this test's own, by its name: the database is the module's."""
    name = f"acme-{secrets.token_hex(4)}"
    assert kvitto("tenant", "create", name).status == 0
    return name


def granted(settings: Settings, secret: str) -> KeyGrant:
    """What a gateway would be told of this key."""

    async def find() -> KeyGrant | None:
        database = Database(settings.database_url, pool_size=1)
        try:
            tenancy = Tenancy(database, settings.key_pepper)
            return await tenancy.find_key(tenancy.digest(secret))
        finally:
            await database.close()

    grant = asyncio.run(find())
    assert grant is not None
    return grant


def test_a_tenant_is_billed_as_it_says_and_its_days_begin_where_it_says(kvitto: Any) -> None:
    name = f"acme-{secrets.token_hex(4)}"
    words = ("tenant", "create", name, "--billing-mode", "postpaid", "--time-zone", "Asia/Kolkata", "--json")
    made = kvitto(*words).told
    assert (made["billing_mode"], made["time_zone"]) == ("postpaid", "Asia/Kolkata")
    moved = kvitto("tenant", "set", name, "--time-zone", "Europe/Stockholm", "--json").told
    assert (moved["billing_mode"], moved["time_zone"]) == ("postpaid", "Europe/Stockholm")
    shown = kvitto("tenant", "show", made["id"], "--json").told
    assert (shown["time_zone"], shown["projects"], shown["keys_in_use"]) == ("Europe/Stockholm", 1, 0)
    assert "no time zone" in kvitto("tenant", "set", name, "--time-zone", "Mars").err


def test_a_key_may_do_what_its_options_say(kvitto: Any, acme: str, cli_settings: Settings) -> None:
    kvitto("project", "create", acme, "search")
    words = (
        *(
            "key",
            "create",
            acme,
            "--project",
            "search",
            "--scope",
            "inference",
            "--model",
            "a",
            "--model",
            "b",
        ),
        *("--network", "10.0.0.0/8", "--expires", "2100-01-01", "--traffic-class", "agent"),
        *("--allow-class", "agent", "--max-tokens", "9", "--json"),
    )
    made = kvitto(*words).told
    terms = granted(cli_settings, made["secret"]).terms
    assert (terms.scopes, terms.models, terms.max_tokens) == ({"inference"}, {"a", "b"}, 9)
    assert ([str(n) for n in terms.networks or ()], terms.traffic_class) == (["10.0.0.0/8"], "agent")
    assert terms.traffic_classes == {"agent"}
    assert made["expires_at"] == "2100-01-01T00:00:00Z"
    words = ("key", "set", made["id"], "--name", "ci", "--clear", "models", "--clear", "expires", "--json")
    changed = kvitto(*words).told
    assert (changed["name"], changed["models"], changed["expires_at"]) == ("ci", None, None)
    assert changed["max_tokens"] == 9
    assert changed == kvitto("key", "show", made["id"], "--json").told
    assert "ci" in kvitto("key", "show", made["id"]).out


def test_a_rotated_key_has_two_secrets_for_a_while(kvitto: Any, acme: str, cli_settings: Settings) -> None:
    made = kvitto("key", "create", acme, "--json").told
    rotated = kvitto("key", "rotate", made["id"], "--grace", "1h", "--json").told
    assert rotated["id"] == made["id"]
    old, new = granted(cli_settings, made["secret"]), granted(cli_settings, rotated["secret"])
    assert old.lapses_in is not None
    assert 3500 < old.lapses_in.total_seconds() <= 3600
    assert new.lapses_in is None
    assert "cannot be shown again" in kvitto("key", "rotate", made["id"], "--grace", "0s").out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--scope", "inference", "--scope", "management"), "make two keys"),
        (("--network", "10.0.0.1/8"), "has host bits set"),
        (("--project", "nowhere"), "no project 'nowhere': `kvitto project list` shows all of them"),
    ],
)
def test_a_key_that_means_nothing_is_one_line(kvitto: Any, acme: str, words: Any, line: str) -> None:
    ran = kvitto("key", "create", acme, *words)
    assert (ran.status, ran.out) == (1, "")
    assert line in ran.err
    assert ran.err.count("\n") == 1


def test_an_archived_project_has_revoked_keys(kvitto: Any, acme: str) -> None:
    project = kvitto("project", "create", acme, "search", "--json").told
    renamed = kvitto("project", "rename", project["id"], "find", "--json").told
    assert renamed["name"] == "find"
    key = kvitto("key", "create", acme, "--project", "find", "--json").told
    assert kvitto("project", "archive", project["id"], "--json").told["archived_at"]
    assert kvitto("key", "show", key["id"], "--json").told["revoked_at"]
    names = [row["name"] for row in kvitto("project", "list", "--tenant", acme, "--json").told]
    assert names == ["default", "find"]


def test_users_have_roles(kvitto: Any, acme: str) -> None:
    made = kvitto("user", "create", acme, "Ada@example.com", "--role", "owner", "--json").told
    assert (made["email"], made["role"]) == ("ada@example.com", "owner")
    assert kvitto("user", "set", made["id"], "--role", "finance", "--json").told["role"] == "finance"
    assert [row["role"] for row in kvitto("user", "list", "--tenant", acme, "--json").told] == ["finance"]
    assert kvitto("user", "create", acme, "bo@example.com", "--role", "king").status == 2
    kvitto("user", "remove", made["id"])
    assert kvitto("user", "list", "--tenant", acme, "--json").told == []


def test_limits_and_budgets_travel_with_the_keys_they_bound(
    kvitto: Any, acme: str, cli_settings: Settings
) -> None:
    project = kvitto("project", "create", acme, "search", "--json").told
    key = kvitto("key", "create", acme, "--project", "search", "--json").told
    kvitto("limit", "set", "requests_per_minute", "60", "--tenant", acme)
    kvitto("limit", "set", "concurrent", "3", "--tenant", acme, "--project", "search")
    words = ("limit", "set", "input_tokens_per_minute", "1000", "--key", key["id"], "--model", "m")
    limit = kvitto(*words, "--per-user", "--cached-free", "--json").told
    assert (limit["per_user"], limit["cached_free"], limit["model"]) == (True, True, "m")
    budget = kvitto(
        "budget", "create", "0.10", "--period", "daily", "--project", project["id"], "--json"
    ).told
    changed = kvitto("budget", "set", budget["id"], "--amount", "0.2", "--soft", "--json").told
    assert (changed["amount"], changed["hard"], changed["period"]) == ("0.2", False, "daily")
    grant = granted(cli_settings, key["secret"])
    assert {(one.level, one.measure, one.amount) for one in grant.limits} == {
        ("tenant", "requests_per_minute", 60),
        ("project", "concurrent", 3),
        ("key", "input_tokens_per_minute", 1000),
    }
    assert [(one.level, one.amount) for one in grant.budgets] == [("project", 2 * 10**14)]
    kvitto("limit", "remove", limit["id"])
    kvitto("budget", "remove", budget["id"])
    assert len(kvitto("limit", "list", "--tenant", acme, "--json").told) == 2
    assert kvitto("budget", "list", "--tenant", acme, "--json").told == []


@pytest.mark.parametrize(
    "words",
    [
        ("limit", "set", "concurrent", "-1", "--tenant", "acme"),
        ("limit", "set", "speed", "1", "--tenant", "acme"),
        ("limit", "set", "concurrent", "1"),
        ("budget", "create", "1"),
        ("budget", "create", "1", "--period", "hourly", "--tenant", "acme"),
        ("key", "rotate", "key_0", "--grace", "long"),
        ("key", "set", "key_0"),
    ],
)
def test_a_command_line_that_means_nothing_is_status_2(kvitto: Any, words: Any) -> None:
    assert kvitto(*words).status == 2


def test_the_audit_log_shows_who_did_what_and_notices_an_edit(
    kvitto: Any, acme: str, cli_settings: Settings
) -> None:
    key = kvitto("key", "create", acme, "--json").told
    kvitto("key", "revoke", key["id"])
    rows = kvitto("audit", "list", "--tenant", acme, "--json").told
    assert [(row["actor"], row["action"]) for row in rows] == [
        ("command line", "tenant.create"), ("command line", "key.create"), ("command line", "key.revoke"),
    ]  # fmt: skip
    assert rows[2]["before"]["revoked_at"] is None
    assert rows[2]["after"]["revoked_at"]
    assert key["secret"] not in kvitto("audit", "list", "--json").out
    assert kvitto("audit", "verify", "--tenant", acme).status == 0
    assert kvitto("audit", "verify", "--json").told == {"whole": True, "faults": []}

    async def edit() -> None:
        database = Database(cli_settings.database_url, pool_size=1)
        async with database.transaction(OWNER) as connection:
            await connection.execute(
                text("UPDATE audit_event SET actor = 'nobody' WHERE tenant_id = :id AND position = 2"),
                {"id": rows[0]["tenant_id"]},
            )
        await database.close()

    asyncio.run(edit())
    ran = kvitto("audit", "verify", "--tenant", acme)
    assert (ran.status, "event 2 was altered" in ran.out) == (1, True)
