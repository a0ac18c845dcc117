"""Names that clients use: what answers to them, and what is billed, limited and allowed then."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from billing.catalog.alias import Alias
from billing.catalog.service import Aliasing
from billing.errors import StoreUnavailable
from billing.tenancy.api_key import KeyTerms
from gateway.models import Catalog
from gateway.snapshot import AliasSnapshot
from tests.gateway.conftest import EPOCH, ROW, House, until
from tests.gateway.doubles import MODEL


@pytest.fixture(autouse=True)
async def nothing_left(house: House) -> AsyncIterator[None]:
    """The database is the module's."""
    yield
    aliasing = Aliasing(house.parts.database)
    for row in (await aliasing.aliases()).rows:
        await aliasing.remove_alias(row.pattern, "test", EPOCH)


async def alias(house: House, pattern: str, model: str = MODEL) -> None:
    await Aliasing(house.parts.database).set_alias(Alias(pattern, model, EPOCH, "test"))
    await house.desk.catalog.aliases.refresh()


async def test_what_answers_is_billed_shown_and_named_in_the_answer(house: House) -> None:
    await alias(house, "gpt-*")
    async with house.chat(model="gpt-5-mini") as answer:
        assert (answer.status, (await answer.json())["model"]) == (200, MODEL)
    (row,) = await house.settled()
    assert (row.model, row.charge > 0) == (MODEL, True)


async def test_a_keys_list_of_models_is_asked_about_the_one_that_answers(house: House) -> None:
    await alias(house, "gpt-*")
    for models, status in (({MODEL}, 200), ({"gpt-5"}, 403)):
        issued = await house.parts.tenancy.create_key(
            house.tenant_id, "one", EPOCH, terms=KeyTerms(models=frozenset(models))
        )
        house.key = issued.secret
        async with house.chat(model="gpt-5") as answer:
            assert answer.status == status
        assert len((await listed(house, "/v1/models"))["data"]) == (status == 200)


async def test_a_name_that_nobody_answers_to_is_unknown_and_says_whose_alias_it_is(house: House) -> None:
    await alias(house, "claude-*", "elsewhere")
    for name, said in (
        ("claude-opus", "the model 'claude-opus' is an alias of 'elsewhere', which is not served here"),
        ("cloud-opus", "the model 'cloud-opus' does not exist"),
    ):
        async with house.chat(model=name) as answer:
            assert answer.status == 404
            error = (await answer.json())["error"]
            assert (error["message"], error["code"], error["param"]) == (said, "model_not_found", "model")


async def test_a_served_name_is_that_models_whatever_aliases_say(house: House) -> None:
    await alias(house, MODEL, "elsewhere")
    await alias(house, f"{MODEL[:5]}*", "elsewhere")
    async with house.chat() as answer:
        assert answer.status == 200


async def test_an_alias_is_in_force_within_the_interval_and_through_an_outage(house: House) -> None:
    quick = AliasSnapshot(Aliasing(house.parts.database), refresh_interval_s=0.01)
    catalog = Catalog(house.desk.catalog.models, quick)
    with pytest.raises(StoreUnavailable):  # nothing read yet: nobody can say that the name is unknown
        catalog.find("o1")
    assert catalog.find(MODEL).name == MODEL
    quick.start()
    await Aliasing(house.parts.database).set_alias(Alias("o1", MODEL, EPOCH, "test"))

    async def known() -> bool:
        return quick._last is not None and quick.aliases.resolve("o1") == MODEL

    await until(known)
    await quick.close()
    quick._read = unreachable
    await quick.attempt()
    assert catalog.find("o1").name == MODEL


async def listed(house: House, path: str, **headers: str) -> Any:
    async with house.session.get(house.url + path, headers={**house.headers, **headers}) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_whole_names_are_listed_beside_the_models_in_both_shapes_and_beginnings_are_not(
    house: House,
) -> None:
    await alias(house, "claude-*")
    await alias(house, "claude-haiku")
    await alias(house, "elsewhere", "nobody")
    for path in ("/v1/models", "/models", "/beta/models"):
        models = (await listed(house, path))["data"]
        assert [model["id"] for model in models] == [MODEL, "claude-haiku"]
        assert {model["created"] for model in models} == {int(ROW.effective_from.timestamp())}
    version = {"anthropic-version": "2023-06-01"}
    for path, headers in (("/anthropic/v1/models", {}), ("/v1/models", version)):
        assert await listed(house, path, **headers) == {
            "data": [
                {
                    "type": "model",
                    "id": name,
                    "display_name": name,
                    "created_at": "2025-01-01T00:00:00Z",
                }
                for name in (MODEL, "claude-haiku")
            ],
            "has_more": False,
            "first_id": MODEL,
            "last_id": "claude-haiku",
        }


async def test_who_answers_to_a_name_is_shown_under_its_own_also_for_names_with_slashes(house: House) -> None:
    await alias(house, "org/*")
    for name in (MODEL, "org/team/model", "org%2Fmodel"):
        assert (await listed(house, f"/v1/models/{name}"))["id"] == MODEL
        shown = await listed(house, f"/anthropic/v1/models/{name}")
        assert (shown["type"], shown["id"]) == ("model", MODEL)
    async with house.session.get(f"{house.url}/v1/models/other/model", headers=house.headers) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")


async def unreachable() -> None:
    raise StoreUnavailable("away")
