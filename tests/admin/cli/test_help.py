"""`kvitto --help`: quick, complete, with an example for each command."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from admin.cli.main import app

HEAVY = (
    "sqlalchemy",
    "asyncpg",
    "redis",
    "litestar",
    "aiohttp",
    "vllm",
    "torch",
    "tiktoken",
    "deepseek_recipe",
    "alembic",
    "pyarrow",
    "stripe",
)
OFFLINE = ("verify ", "witness")  # these need no stack
OF_THE_ISSUE = {
    "up", "status", "logs", "restart", "down",
    "balance", "credit grant", "credit top-up", "credit refund", "credit write-off", "credit correct",
    "credit list", "credit terms", "credit auto", "credit alert",
    "tenant create", "tenant list", "tenant show", "tenant set",
    "tenant suspend", "tenant resume", "tenant erase",
    "project create", "project list", "project rename", "project archive",
    "key create", "key list", "key show", "key set", "key rotate", "key revoke",
    "user create", "user list", "user set", "user remove",
    "limit set", "limit list", "limit remove",
    "budget create", "budget list", "budget set", "budget remove",
    "verify receipt", "verify bundle", "verify invoice", "verify promise", "witness",
    "audit list", "audit verify", "audit receipts", "audit log", "deployment keys", "deployment rotate-key",
    "webhook add", "webhook list", "webhook enable", "webhook remove", "webhook rotate", "webhook test",
    "webhook deliveries", "webhook replay",
    "payment customers", "payment link", "payment list", "payment show", "payment retry", "payment refund",
    "payment meter",
    "model list", "model alias", "model unalias",
    "invoice list", "invoice show", "invoice preview", "invoice close", "invoice pay", "invoice void",
    "invoice uncollectible", "invoice credit-note", "invoice bundle", "invoice terms set",
    "invoice terms show", "invoice profile set", "invoice profile show", "invoice coupon give",
    "invoice coupon end", "invoice coupon list", "invoice print",
    "price list", "price show", "usage", "chat", "export", "exports",
    "store stat", "store verify", "store sweep",
    "store erase", "store retire", "admission rebuild",
    "price rate", "price lint", "price diff", "price publish", "price export",
    "price replay", "reconcile", "price plan create", "price plan list", "price plan put",
}  # fmt: skip
PRINTS_ROWS = OF_THE_ISSUE - {
    "up",
    "logs",
    "restart",
    "down",
    "price lint",
    "price export",
    "price plan create",
    "deployment rotate-key",
    "witness",
}


def commands(group: Any = None, before: str = "") -> Iterator[str]:
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def help_of(command: str) -> str:
    ran = CliRunner().invoke(
        app, [*command.split(), "--help"], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )
    assert ran.exit_code == 0
    return ran.output


def test_the_commands_of_the_issue_are_there() -> None:
    assert set(commands()) == OF_THE_ISSUE


@pytest.mark.parametrize("command", sorted(OF_THE_ISSUE))
def test_each_command_says_what_it_does_with_an_example(command: str) -> None:
    text = help_of(command)
    assert f"Example: kvitto {command}" in text
    assert ("--data-dir" in text) != command.startswith(OFFLINE)


@pytest.mark.parametrize("command", sorted(PRINTS_ROWS))
def test_each_command_that_prints_rows_takes_json(command: str) -> None:
    assert "--json" in help_of(command)


def test_help_loads_nothing_heavy() -> None:
    code = f"import sys, admin.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_a_wrong_command_line_is_status_2() -> None:
    assert CliRunner().invoke(app, ["usage", "--limit", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["no-such-command"]).exit_code == 2


def test_up_refuses_two_shapes_at_once_and_switches_that_are_neither_on_nor_off() -> None:
    assert CliRunner().invoke(app, ["up", "--mono", "1", "--decode", "2"]).exit_code == 2
    assert CliRunner().invoke(app, ["up", "--store", "maybe"]).exit_code == 2
    assert CliRunner().invoke(app, ["up", "--step-budget-s", "-1"]).exit_code == 2
