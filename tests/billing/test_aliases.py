"""Names that clients use: which model answers, and who is remembered for saying so."""

import asyncio
from datetime import timedelta

import pytest

from billing.audit.event import HOUSE
from billing.audit.service import Audit
from billing.catalog.alias import Alias, Aliases
from billing.catalog.service import Aliasing
from billing.db.transaction import Database
from billing.errors import AliasInvalid, AliasMissing
from tests.billing.conftest import NOON


def alias(pattern: str, model: str = "small", **more: str) -> Alias:
    return Alias(pattern, model, NOON, more.get("by", "test"))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("gpt-4", "exact"),
        ("gpt-4o", "four"),
        ("gpt-5-codex", "any"),
        ("gpt-", "any"),
        ("gpt", None),
        ("GPT-4", None),
        ("org/gpt-4", None),
        ("org/small:v1", "slashed"),
    ],
)
def test_a_name_is_its_own_rows_else_that_of_its_longest_beginning(name: str, model: str | None) -> None:
    rows = ("gpt-*", "any"), ("gpt-4", "exact"), ("gpt-4*", "four"), ("org/small:*", "slashed")
    for order in (rows, rows[::-1]):
        assert Aliases(alias(*row) for row in order).resolve(name) == model


@pytest.mark.parametrize("pattern", ["", "*", "a*b", "a**", "*a", "two words", "a\n", "å*", "x" * 201])
def test_what_is_no_name_and_no_beginning_of_one_is_refused(pattern: str) -> None:
    """A bare `*` too: names that nobody knows stay unknown."""
    with pytest.raises(AliasInvalid):
        alias(pattern)
    with pytest.raises(AliasInvalid):
        alias("fine", pattern)


async def test_an_alias_is_set_changed_and_removed_and_each_change_is_recorded_once(
    database: Database,
) -> None:
    aliasing, audit = Aliasing(database), Audit(database)
    await aliasing.set_alias(alias("gpt-*", "small", by="ann"))
    await aliasing.set_alias(alias("gpt-*", "small", by="bob"))  # changes nothing
    await aliasing.set_alias(alias("gpt-*", "large", by="bob"))
    await aliasing.set_alias(alias("claude-x", "small", by="bob"))
    assert (await aliasing.aliases()).rows == (
        alias("claude-x", "small", by="bob"),
        alias("gpt-*", "large", by="bob"),
    )
    removed = await aliasing.remove_alias("gpt-*", "eve", NOON + timedelta(1))
    assert removed.model == "large"
    with pytest.raises(AliasMissing):
        await aliasing.remove_alias("gpt-*", "eve", NOON)
    deeds = [event.deed for event in await audit.events(HOUSE)]
    assert [(d.actor, d.action, d.object, d.before, d.after) for d in deeds] == [
        ("ann", "alias.set", "gpt-*", None, {"model": "small"}),
        ("bob", "alias.set", "gpt-*", {"model": "small"}, {"model": "large"}),
        ("bob", "alias.set", "claude-x", None, {"model": "small"}),
        ("eve", "alias.remove", "gpt-*", {"model": "large"}, None),
    ]
    assert await audit.verify(HOUSE) == []


async def test_operators_who_set_the_same_name_at_once_are_recorded_one_behind_the_other(
    database: Database,
) -> None:
    aliasing = Aliasing(database)
    await asyncio.gather(*(aliasing.set_alias(alias("same", f"model-{number}")) for number in range(6)))
    deeds = [event.deed for event in await Audit(database).events(HOUSE) if event.deed.object == "same"]
    assert [deed.before for deed in deeds] == [None, *(deed.after for deed in deeds[:-1])]
    assert (await aliasing.aliases()).resolve("same") == (deeds[-1].after or {})["model"]
