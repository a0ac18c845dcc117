"""What a fresh data directory starts with, on a real database."""

import json
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from admin import demo
from admin.settings import Settings
from billing.catalog.alias import Alias
from billing.catalog.service import Aliasing
from billing.db.transaction import Database
from billing.ledger.service import Ledger
from billing.pricing import toml
from billing.pricing.book import PriceBook
from billing.pricing.service import Prices
from billing.tenancy.service import Tenancy
from tests.deployment import RING

AT = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[demo.Books]:
    database = Database(database_url, pool_size=1)
    tenancy = Tenancy(database, b"p" * 32)
    yield demo.Books(tenancy, Ledger(database), Prices(database), Aliasing(database))
    await database.close()


def settings_of(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url="",
        valkey_url="",
        host="127.0.0.1",
        port=8080,
        model_dir=None,
        served_name="smollm2-135m-instruct",
        workers=(),
        key_pepper=b"p" * 32,
        salt_secret=b"s" * 32,
        worker_secret=b"s" * 32,
        deployment_ring=RING,
    )


async def test_the_demo_is_made_once_even_when_a_first_try_was_killed(
    books: demo.Books, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path)
    await demo.prepare(books, settings, AT)
    (tmp_path / "credentials.json").unlink()  # as if killed before it was written
    await demo.prepare(books, settings, AT)
    tenant = await books.tenancy.tenant("demo")
    assert (await books.ledger.balance(tenant.id)).total == demo.CREDIT
    file = tmp_path / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = json.loads(file.read_text())["api_key"]
    grant = await books.tenancy.find_key(books.tenancy.digest(secret))
    assert grant is not None
    assert grant.tenant_id == tenant.id


async def test_another_port_keeps_the_key(books: demo.Books, tmp_path: Path) -> None:
    await demo.prepare(books, settings_of(tmp_path), AT)
    before = json.loads((tmp_path / "credentials.json").read_text())
    await demo.prepare(books, replace(settings_of(tmp_path), port=9090), AT)
    after = json.loads((tmp_path / "credentials.json").read_text())
    assert after == {**before, "base_url": "http://127.0.0.1:9090/v1"}


async def test_a_model_without_prices_gets_the_demos(books: demo.Books, tmp_path: Path) -> None:
    await demo.prepare(books, replace(settings_of(tmp_path), served_name="other"), AT)
    await demo.prepare(books, replace(settings_of(tmp_path), served_name="other"), AT)
    book = await books.prices.book()
    assert book.row("other", "USD", AT).standard == book.row("smollm2-135m-instruct", "USD", AT).standard


async def test_the_demo_carries_deepseeks_price_history_and_leaves_the_operators_prices_alone(
    books: demo.Books, tmp_path: Path
) -> None:
    history = toml.shipped("deepseek").rows
    own = replace(history[0], model="own", effective_from=AT)
    await books.prices.publish(PriceBook((own,)), "operator", AT)
    await demo.prepare(books, replace(settings_of(tmp_path), served_name="own"), AT)
    published = (await books.prices.book()).rows
    assert set(history) <= set(published)
    assert [row for row in published if row.model == "own"] == [own]


async def test_the_demos_model_answers_to_usual_names_and_the_operators_aliases_stay(
    books: demo.Books, tmp_path: Path
) -> None:
    async def named() -> dict[str, str]:
        return {row.pattern: row.model for row in (await books.aliasing.aliases()).rows}

    await books.aliasing.set_alias(Alias("gpt-*", "mine", AT, "operator"))
    await demo.prepare(books, settings_of(tmp_path), AT)
    served = settings_of(tmp_path).served_name
    assert await named() == {"claude-*": served, "deepseek-*": served, "gpt-*": "mine"}
    await books.aliasing.remove_alias("deepseek-*", "operator", AT)
    await demo.prepare(books, replace(settings_of(tmp_path), served_name="other"), AT)
    assert await named() == {"claude-*": "other", "gpt-*": "mine"}
