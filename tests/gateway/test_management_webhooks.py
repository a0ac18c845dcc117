"""Webhooks over REST: what is shown, what once, what is refused, and that nobody else's are there."""

from datetime import timedelta
from typing import Any

import pytest

from billing.db.access import SETTLER
from billing.notify.notice import Notice
from billing.notify.service import emit
from tests.gateway.conftest import EPOCH, House
from tests.gateway.test_management import Manager, manager_of

URL = "https://example.com/hook"


@pytest.fixture
async def manage(house: House) -> Manager:
    return await manager_of(house, house.tenant_id)


async def told(house: House, at: Any = EPOCH) -> str:
    async with house.parts.database.transaction(SETTLER) as connection:
        made = await emit(connection, Notice(house.tenant_id, "balance.low", at, {"balance": "0.50"}))
    assert made
    return made


async def test_a_webhook_is_added_and_its_secret_is_shown_once(manage: Manager) -> None:
    made = await manage.made("/webhooks", {"url": URL, "kinds": ["key.expiring", "balance.low"]})
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert (made["kinds"], made["enabled"]) == (["balance.low", "key.expiring"], True)
    assert await manage("GET", f"/webhooks/{made['id']}") == (200, made)
    assert (await manage("GET", "/webhooks"))[1]["data"] == [made]
    status, rotated = await manage("POST", f"/webhooks/{made['id']}/rotate", {})
    assert status == 200
    assert rotated.pop("secret") not in (secret, None)
    assert rotated == made


async def test_a_webhook_is_changed_disabled_and_removed(manage: Manager) -> None:
    made = await manage.made("/webhooks", {"url": URL, "kinds": ["balance.low"]})
    path = f"/webhooks/{made['id']}"
    status, changed = await manage("PATCH", path, {"kinds": None, "enabled": False})
    assert (status, changed["kinds"], changed["enabled"], changed["url"]) == (200, None, False, URL)
    assert (await manage("POST", f"{path}/test", {}))[0] == 422
    assert (await manage("DELETE", path))[1]["deleted"] is True
    assert (await manage("GET", path))[0] == 404


async def test_deliveries_and_replays_name_notices_by_their_id(house: House, manage: Manager) -> None:
    made = await manage.made("/webhooks", {"url": URL})
    path = f"/webhooks/{made['id']}"
    first, second = [await told(house, EPOCH + timedelta(hours=hour)) for hour in (0, 1)]
    status, tested = await manage("POST", f"{path}/test", {})
    assert (status, tested["kind"], tested["state"]) == (201, "webhook.test", "pending")
    status, page = await manage("GET", f"{path}/deliveries?limit=2")
    assert [each["id"] for each in page["data"]] == [tested["id"], second]
    assert page["has_more"] is True
    assert page["data"][0]["attempts"] == []
    status, page = await manage("GET", f"{path}/deliveries?after={page['last_id']}")
    assert [each["id"] for each in page["data"]] == [first]
    assert await manage("POST", f"{path}/replay", {"notice_id": first}) == (
        200,
        {"deliveries": 1, "object": "organization.webhook.replay"},
    )
    until = (EPOCH + timedelta(hours=1)).isoformat()
    status, replayed = await manage("POST", f"{path}/replay", {"since": EPOCH.isoformat(), "until": until})
    assert (status, replayed["deliveries"]) == (200, 1)


async def test_notices_are_there_without_a_webhook_too(house: House, manage: Manager) -> None:
    notice_id = await told(house)
    (shown,) = (await manage("GET", "/notices"))[1]["data"]
    assert (shown["id"], shown["kind"], shown["data"]) == (notice_id, "balance.low", {"balance": "0.50"})


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/webhooks", {}, 400, None),
        ("/webhooks", {"url": ""}, 400, "url"),
        ("/webhooks", {"url": "http://example.com"}, 422, "url"),
        ("/webhooks", {"url": "https://127.0.0.1/"}, 422, "url"),
        ("/webhooks", {"url": "https://[::ffff:169.254.169.254]/"}, 422, "url"),
        ("/webhooks", {"url": "https://u:p@example.com/"}, 422, "url"),
        ("/webhooks", {"url": URL, "kinds": []}, 422, "kinds"),
        ("/webhooks", {"url": URL, "kinds": ["all"]}, 400, "kinds[0]"),
        ("/webhooks/{id}/replay", {}, 422, "since"),
        ("/webhooks/{id}/replay", {"notice_id": "ntc_1", "since": "2025-01-01T00:00:00Z"}, 422, "since"),
        ("/webhooks/{id}/replay", {"notice_id": "ntc_1"}, 404, None),
        (
            "/webhooks/{id}/replay",
            {"since": "2025-01-02T00:00:00Z", "until": "2025-01-01T00:00:00Z"},
            422,
            None,
        ),
        ("/webhooks/{id}/rotate", {"grace_s": -1}, 400, "grace_s"),
        ("/webhooks/whk_none/rotate", {}, 404, None),
        ("/webhooks/whk_none/test", {}, 404, None),
    ],
)
async def test_what_means_nothing_is_refused(
    manage: Manager, path: str, body: Any, status: int, param: str | None
) -> None:
    made = await manage.made("/webhooks", {"url": URL})
    answered, shown = await manage("POST", path.replace("{id}", made["id"]), body)
    assert (answered, shown["error"]["param"]) == (status, param), shown


async def test_another_organisations_webhook_is_not_there(house: House, manage: Manager) -> None:
    made = await manage.made("/webhooks", {"url": URL})
    other = await house.parts.tenancy.create_tenant(f"hooks beside {house.tenant_id}", at=EPOCH)
    theirs = await manager_of(house, other.id)
    path = f"/webhooks/{made['id']}"
    for method, where, body in (
        ("GET", path, None),
        ("PATCH", path, {"enabled": False}),
        ("DELETE", path, None),
        ("POST", f"{path}/rotate", {}),
        ("POST", f"{path}/test", {}),
        ("POST", f"{path}/replay", {"since": "2025-01-01T00:00:00Z"}),
        ("GET", f"{path}/deliveries", None),
    ):
        assert (await theirs(method, where, body))[0] == 404, (method, where)
    assert made["id"] not in str(await theirs("GET", "/webhooks"))


async def test_a_threshold_of_the_balance_is_set_shown_and_taken_away(manage: Manager) -> None:
    nothing = {"balance_below": None, "currency": "USD", "object": "organization.alerts"}
    assert await manage("GET", "/alerts") == (200, nothing)
    wanted = {**nothing, "balance_below": "12.5"}
    assert await manage("PUT", "/alerts", {"balance_below": "12.50"}) == (200, wanted)
    assert await manage("GET", "/alerts") == (200, wanted)
    for body, status in (({"balance_below": "-1"}, 422), ({"balance_below": 5}, 400), ({}, 400)):
        assert (await manage("PUT", "/alerts", body))[0] == status
    assert await manage("PUT", "/alerts", {"balance_below": None}) == (200, nothing)
