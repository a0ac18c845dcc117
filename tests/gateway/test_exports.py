"""Exports over REST: asked for, shown, fetched by a signed link, deleted; and nobody else's."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from billing.tenancy.api_key import KeyTerms
from tests.gateway.conftest import EPOCH, OPTIONS, House, furnish, served
from tests.gateway.test_management import Manager, manager_of

WANTED = {"content": "requests", "since": "2024-01-01T00:00:00Z", "until": "2099-01-01T00:00:00Z"}


@pytest.fixture
async def keeper(database_url: str, valkey_url: str, tmp_path: Path) -> AsyncIterator[House]:
    """A house whose gateway reaches the folder of exports."""
    house = await furnish(database_url, valkey_url, OPTIONS)
    house.parts = replace(house.parts, exports_folder=tmp_path / "exports")
    async with served(house) as house:
        yield house


@pytest.fixture
async def manage(keeper: House) -> Manager:
    return await manager_of(keeper, keeper.tenant_id)


async def made(house: House, manage: Manager, **wanted: Any) -> Any:
    """An export that is done, as it is shown."""
    asked = await manage.made("/exports", {**WANTED, **wanted})
    await house.desk.organization.exports.make(asked["id"])
    status, shown = await manage("GET", f"/exports/{asked['id']}")
    assert (status, shown["status"]) == (200, "done")
    return shown


async def fetched(house: House, url: str) -> tuple[int, bytes, Any]:
    async with house.session.get(house.url + url) as answer:
        return answer.status, await answer.read(), answer.headers


async def test_an_export_is_asked_for_and_fetched_by_its_link_without_a_key(
    keeper: House, manage: Manager
) -> None:
    async with keeper.chat():
        await keeper.settled()
    asked = await manage.made(
        "/exports", {**WANTED, "zone": "Asia/Tokyo", "models": [keeper.desk.catalog.models[0].name]}
    )
    assert (asked["status"], asked["url"], asked["rows"]) == ("waiting", None, None)
    shown = await made(keeper, manage, zone="Asia/Tokyo")
    status, content, headers = await fetched(keeper, shown["url"])
    assert status == 200
    assert hashlib.sha256(content).hexdigest() == shown["sha256"]
    assert len(content) == shown["size_bytes"] == int(headers["content-length"])
    assert content.startswith(b"request_id,")
    assert b"rated_at[Asia/Tokyo]" in content
    assert shown["rows"] == 1 == content.count(b"\r\n") - 1
    assert headers["content-type"].startswith("text/csv")
    assert shown["file_name"] in headers["content-disposition"]
    assert headers["cache-control"] == "private, no-store"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (("signature=", "signature=&other="), 403),
        (("signature=", "signature=0"), 400),
        (("expires=", "expires=9"), 403),
        (("/exp_", "/exp_0"), 403),
        (("signature=", "sig="), 400),
        (("expires=", "expires=x"), 400),
    ],
)
async def test_a_link_that_is_not_ours_fetches_nothing(
    keeper: House, manage: Manager, change: tuple[str, str], status: int
) -> None:
    url = (await made(keeper, manage))["url"].replace(*change)
    answered, content, _ = await fetched(keeper, url)
    assert answered == status
    assert b"request_id," not in content


async def test_a_link_of_an_export_that_was_deleted_ends_with_it(keeper: House, manage: Manager) -> None:
    shown = await made(keeper, manage, content="totals", by=["day", "key"], format="jsonl")
    path = f"/exports/{shown['id']}"
    assert await manage("DELETE", path) == (
        200,
        {"id": shown["id"], "object": "organization.export", "deleted": True},
    )
    assert (await fetched(keeper, shown["url"]))[0] == 404
    for method in ("GET", "DELETE"):
        assert (await manage(method, path))[0] == 404
    assert (await manage("GET", "/exports"))[1]["data"] == []


async def test_another_organisation_finds_no_export_of_ours(keeper: House, manage: Manager) -> None:
    shown = await made(keeper, manage)
    other = await manager_of(keeper, (await keeper.parts.tenancy.create_tenant("eve", at=EPOCH)).id)
    assert (await other("GET", "/exports"))[1]["data"] == []
    for method in ("GET", "DELETE"):
        assert (await other(method, f"/exports/{shown['id']}"))[0] == 404
    (listed,) = (await manage("GET", "/exports"))[1]["data"]
    assert (listed["id"], listed["file_name"]) == (shown["id"], shown["file_name"])


async def test_a_key_that_reads_usage_may_export_and_one_that_infers_may_not(keeper: House) -> None:
    for scope, status in (("usage_read", 201), ("inference", 403)):
        terms = KeyTerms(scopes=frozenset({scope}))  # type: ignore[arg-type]  plain texts
        issued = await keeper.parts.tenancy.create_key(keeper.tenant_id, scope, EPOCH, terms=terms)
        headers = {"authorization": f"Bearer {issued.secret}"}
        url = f"{keeper.url}/v1/organization/exports"
        async with keeper.session.post(url, json=WANTED, headers=headers) as answer:
            assert answer.status == status


@pytest.mark.parametrize(
    ("wrong", "status", "param"),
    [
        ({"content": "all"}, 400, "content"),
        ({"format": "xlsx"}, 400, "format"),
        ({"zone": "Mars/Olympus"}, 422, None),
        ({"until": "2023-01-01T00:00:00Z"}, 422, None),
        ({"since": "2024-01-01T00:00:00"}, 400, "since"),
        ({"by": ["colour"]}, 400, "by[0]"),
        ({"by": ["key"]}, 422, "by"),
        ({"statuses": ["lost"]}, 422, "statuses"),
        ({"models": ["m"] * 101}, 422, "models"),
        ({"colour": 1}, 400, None),
    ],
)
async def test_what_means_nothing_is_refused_by_its_name(
    keeper: House, manage: Manager, wrong: Any, status: int, param: str | None
) -> None:
    answered, body = await manage("POST", "/exports", {**WANTED, **wrong})
    assert (answered, body["error"]["param"]) == (status, param), body


async def test_a_sixth_export_waits_for_one_of_five(keeper: House, manage: Manager) -> None:
    for _ in range(5):
        await manage.made("/exports", WANTED)
    status, body = await manage("POST", "/exports", WANTED)
    assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")


async def test_a_gateway_that_does_not_reach_the_folder_says_so_by_404(house: House) -> None:
    manage = await manager_of(house, house.tenant_id)
    asked = await manage.made("/exports", WANTED)
    signature = house.desk.organization.links.sign(asked["id"], 2**33)
    url = f"/v1/organization/exports/{asked['id']}/file?expires={2**33}&signature={signature}"
    assert (await fetched(house, url))[0] == 404
