"""The organisation over REST: its nouns, its pages, its refusals, and that it is nobody else's."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Any

import msgspec
import pytest

from billing.audit.service import Audit
from billing.db.access import SETTLER
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.top_ups import PaidIn, top_up_document
from billing.ledger.credit import Grant
from billing.money import Femto, decimal_of, femto_of
from billing.pricing.book import PriceBook
from billing.pricing.publication import LEAD
from billing.pricing.rates import Rates
from billing.pricing.window import Window
from billing.tenancy.api_key import KeyTerms
from billing.tenancy.limits import Limit
from billing.tenancy.rules.rule import Owner
from tests.deployment import signer
from tests.gateway.conftest import EPOCH, ROW, House, until

# Method, path, body; the status and the parameter that the refusal names.
MEANINGLESS: tuple[tuple[str, str, Any, int, str | None], ...] = (
    ("POST", "/projects", {}, 400, None),
    ("POST", "/projects", {"name": ""}, 400, "name"),
    ("POST", "/projects", {"name": "a\0b"}, 400, "name"),
    ("POST", "/projects", {"name": "a", "colour": "red"}, 400, None),
    ("POST", "/projects", ["a"], 400, None),
    ("POST", "/projects", {"name": "default"}, 409, "name"),
    ("PATCH", "/projects/default", {"name": "other"}, 422, "project"),
    ("POST", "/keys", {"name": "k", "scopes": []}, 422, "scopes"),
    ("POST", "/keys", {"name": "k", "scopes": ["all"]}, 400, "scopes[0]"),
    ("POST", "/keys", {"name": "k", "scopes": ["inference", "management"]}, 422, "scopes"),
    ("POST", "/keys", {"name": "k", "networks": ["10.0.0.1/8"]}, 422, "networks"),
    ("POST", "/keys", {"name": "k", "expires_at": "2020-01-01T00:00:00Z"}, 422, "expires_at"),
    ("POST", "/keys", {"name": "k", "expires_at": "2100-01-01T00:00:00"}, 400, "expires_at"),
    ("POST", "/keys", {"name": "k", "max_tokens": 0}, 422, "max_tokens"),
    ("POST", "/keys", {"name": "k", "max_tokens": 10**12}, 422, "max_tokens"),
    ("POST", "/users", {"email": "nobody", "role": "owner"}, 422, "email"),
    ("POST", "/users", {"email": "a@b.se", "role": "king"}, 400, "role"),
    ("POST", "/limits", {"measure": "concurrent", "amount": -1, "key_id": "k"}, 422, None),
    ("POST", "/limits", {"measure": "concurrent", "amount": 1, "key_id": "k"}, 404, None),
    ("POST", "/limits", {"measure": "concurrent", "amount": 2**53, "key_id": "k"}, 422, None),
    ("POST", "/budgets", {"amount": "1e3", "period": "daily"}, 422, "amount"),
    ("POST", "/budgets", {"amount": 1.5, "period": "daily"}, 400, "amount"),
    ("POST", "/budgets", {"amount": "1", "period": "daily", "key_id": "a", "project_id": "b"}, 422, None),
    ("GET", "/keys?limit=0", None, 400, "limit"),
    ("GET", "/keys?limit=many", None, 400, "limit"),
    ("GET", "/keys/key_nobody", None, 404, None),
    ("GET", "/robots", None, 404, None),
    ("GET", "/keys/%00", None, 400, None),
    ("GET", "/keys?after=%00", None, 400, None),
    ("POST", "/keys", {"name": "k", "models": ["\0"]}, 400, None),
)
MANAGEMENT = KeyTerms(scopes=frozenset({"management"}))


@dataclass(frozen=True)
class Manager:
    """A management key at work."""

    house: House
    key: str
    key_id: str

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        url = f"{self.house.url}/v1/organization{path}"
        headers = {"authorization": f"Bearer {self.key}"}
        async with self.house.session.request(method, url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def made(self, path: str, body: Any) -> Any:
        status, shown = await self("POST", path, body)
        assert status == 201, shown
        return shown


async def manager_of(house: House, tenant_id: str) -> Manager:
    issued = await house.parts.tenancy.create_key(tenant_id, "boss", EPOCH, terms=MANAGEMENT)
    return Manager(house, issued.secret, issued.key.id)


@pytest.fixture
async def manage(house: House) -> Manager:
    return await manager_of(house, house.tenant_id)


async def test_projects_are_made_renamed_listed_and_archived(manage: Manager) -> None:
    made = await manage.made("/projects", {"name": "search"})
    assert (made["object"], made["status"], made["archived_at"]) == ("organization.project", "active", None)
    path = f"/projects/{made['id']}"
    assert await manage("GET", path) == (200, made)
    assert await manage("GET", "/projects/search") == (200, made)
    status, renamed = await manage("PATCH", path, {"name": "find"})
    assert (status, renamed) == (200, {**made, "name": "find"})
    assert [each["name"] for each in (await manage("GET", "/projects"))[1]["data"]] == ["default", "find"]
    status, archived = await manage("DELETE", path)
    assert (status, archived["status"]) == (200, "archived")
    assert (await manage("POST", "/keys", {"name": "k", "project": "find"}))[0] == 404


async def test_a_key_is_made_with_terms_and_its_secret_is_shown_once(house: House, manage: Manager) -> None:
    wanted = {
        "name": "ci",
        "scopes": ["inference"],
        "models": ["b", "a"],
        "networks": ["10.0.0.0/8"],
        "expires_at": "2100-01-01T00:00:00Z",
        "traffic_class": "agent",
        "traffic_classes": [],
        "max_tokens": 9,
    }
    made = await manage.made("/keys", wanted)
    secret = made.pop("secret")
    assert secret.startswith("kv_live_")
    assert {name: made[name] for name in wanted} == {**wanted, "models": ["a", "b"]}
    status, shown = await manage("GET", f"/keys/{made['id']}")
    assert (status, shown) == (200, made)
    assert secret not in str(await manage("GET", "/keys"))
    grant = await house.parts.tenancy.find_key(house.parts.tenancy.digest(secret))
    assert grant is not None
    assert (grant.key_id, grant.tenant_id) == (made["id"], house.tenant_id)


async def test_a_patch_changes_what_it_names_and_null_takes_away(manage: Manager) -> None:
    made = await manage.made("/keys", {"name": "ci", "models": ["a"], "max_tokens": 9})
    status, changed = await manage("PATCH", f"/keys/{made['id']}", {"models": None, "networks": ["::1"]})
    assert (status, changed["models"], changed["networks"]) == (200, None, ["::1/128"])
    assert (changed["name"], changed["max_tokens"]) == ("ci", 9)


async def test_a_rotated_and_a_revoked_key_hold_at_this_gateway_at_once(
    house: House, manage: Manager
) -> None:
    made = await manage.made("/keys", {"name": "k"})

    async def asks(secret: str) -> int:
        headers = {"authorization": f"Bearer {secret}"}
        async with house.session.get(f"{house.url}/v1/models", headers=headers) as answer:
            return answer.status

    assert await asks(made["secret"]) == 200
    status, rotated = await manage("POST", f"/keys/{made['id']}/rotate", {"grace_s": 600})
    assert (status, rotated["id"]) == (200, made["id"])
    assert [await asks(made["secret"]), await asks(rotated["secret"])] == [200, 200]
    assert (await manage("DELETE", f"/keys/{made['id']}"))[1]["revoked_at"]
    house.desk.keys.forget(made["id"])  # as the message will have it a moment later
    assert [await asks(made["secret"]), await asks(rotated["secret"])] == [401, 401]
    assert (await manage("POST", f"/keys/{made['id']}/rotate", {}))[0] == 422


async def test_users_limits_and_budgets_are_made_changed_and_removed(manage: Manager) -> None:
    key = await manage.made("/keys", {"name": "k"})
    for path, body, patch in (
        ("/users", {"email": "Ada@Example.com", "role": "owner"}, {"role": "viewer"}),
        ("/limits", {"measure": "concurrent", "amount": 3, "key_id": key["id"]}, {"amount": 0}),
        ("/budgets", {"amount": "0.10", "period": "daily", "key_id": key["id"]}, {"amount": "12.5"}),
        ("/budgets", {"amount": "7", "period": "monthly"}, {"hard": False}),
    ):
        made = await manage.made(path, body)
        status, changed = await manage("PATCH", f"{path}/{made['id']}", patch)
        assert (status, changed) == (200, {**made, **patch})
        assert await manage("GET", f"{path}/{made['id']}") == (200, changed)
        assert (await manage("GET", path))[1]["data"] == [changed]
        status, gone = await manage("DELETE", f"{path}/{made['id']}")
        assert (status, gone) == (200, {"id": made["id"], "object": made["object"], "deleted": True})
        assert (await manage("GET", f"{path}/{made['id']}"))[0] == 404


async def test_limits_of_the_whole_organisation_are_its_operators(house: House, manage: Manager) -> None:
    owner = Owner(house.tenant_id)
    rules = house.desk.organization.rules
    kept = await rules.set_limit(owner, Limit("tenant", owner.id, "concurrent", 5), EPOCH, actor="operator")
    assert (await manage("GET", f"/limits/{kept.id}"))[1]["amount"] == 5
    for call in (
        manage("POST", "/limits", {"measure": "concurrent", "amount": 500}),
        manage("PATCH", f"/limits/{kept.id}", {"amount": 500}),
        manage("DELETE", f"/limits/{kept.id}"),
    ):
        status, body = await call
        assert (status, body["error"]["type"]) == (403, "permission_error")
    assert (await rules.limit(kept.id)).limit.amount == 5


async def test_nothing_of_another_organisation_is_there(house: House, manage: Manager) -> None:
    other = await house.parts.tenancy.create_tenant(f"other than {house.tenant_id}", at=EPOCH)
    theirs = await manager_of(house, other.id)
    key = await manage.made("/keys", {"name": "k"})
    rows = {
        "/projects": (await manage.made("/projects", {"name": "p"}), {"name": "mine"}),
        "/keys": (key, {"name": "mine"}),
        "/users": (await manage.made("/users", {"email": "a@b.se", "role": "owner"}), {"role": "viewer"}),
        "/limits": (
            await manage.made("/limits", {"measure": "concurrent", "amount": 3, "key_id": key["id"]}),
            {"amount": 9},
        ),
        "/budgets": (await manage.made("/budgets", {"amount": "1", "period": "daily"}), {"amount": "9"}),
    }
    for path, (row, patch) in rows.items():
        for method, body in (("GET", None), ("PATCH", patch), ("DELETE", None)):
            assert (await theirs(method, f"{path}/{row['id']}", body))[0] == 404, (method, path)
        assert row["id"] not in str(await theirs("GET", path))
    assert (await theirs("POST", f"/keys/{key['id']}/rotate", {}))[0] == 404
    for path, body in (
        ("/limits", {"measure": "concurrent", "amount": 0, "key_id": key["id"]}),
        ("/budgets", {"amount": "0", "period": "daily", "project_id": rows["/projects"][0]["id"]}),
        ("/keys", {"name": "k", "project": rows["/projects"][0]["id"]}),
    ):
        assert (await theirs("POST", path, body))[0] == 404, path


async def test_pages_follow_one_another(manage: Manager) -> None:
    for number in range(5):
        await manage.made("/keys", {"name": str(number)})
    (_, whole) = await manage("GET", "/keys")
    assert (len(whole["data"]), whole["has_more"]) == (7, False)
    found: list[Any] = []
    after, more = "", True
    while more:
        (_, page) = await manage("GET", f"/keys?limit=3{after}")
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        found += page["data"]
        after, more = f"&after={page['last_id']}", page["has_more"]
    assert found == whole["data"]
    empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert await manage("GET", "/users") == (200, empty)


async def test_what_means_nothing_is_refused_in_the_houses_shape(manage: Manager) -> None:
    for method, path, body, status, param in MEANINGLESS:
        answered, shown = await manage(method, path, body)
        assert (answered, shown["error"]["param"]) == (status, param), (path, body, shown)
        assert set(shown["error"]) == {"message", "type", "param", "code"}


async def test_what_was_done_is_recorded_under_the_key_that_did_it(house: House, manage: Manager) -> None:
    await manage.made("/projects", {"name": "search"})
    event = (await Audit(house.parts.database).events(house.tenant_id))[-1]
    assert (event.deed.actor, event.deed.action) == (manage.key_id, "project.create")


async def test_openapi_describes_every_management_route(house: House) -> None:
    async with house.session.get(f"{house.url}/openapi.json") as answer:
        described = await answer.json()
    assert described["openapi"].startswith("3.1")
    served = {
        (method.lower(), route.path_format)
        for route in house.app.routes
        if route.path.startswith("/v1/organization")
        for method in route.methods - {"OPTIONS"}  # type: ignore[attr-defined]  # all are HTTP routes
    }
    paths = {path: item for path, item in described["paths"].items() if path.startswith("/v1/organization")}
    assert {(method, path) for path, item in paths.items() for method in item} == served
    for path, item in paths.items():
        for operation in item.values():
            if operation["tags"] == ["Management"]:
                assert operation["responses"]["default"] == {"$ref": "#/components/responses/Refused"}, path
            signed = path == "/v1/organization/exports/{export_id}/file"
            assert operation["security"] == ([] if signed else [{"key": []}, {"x-api-key": []}])
    assert "secret" not in described["components"]["schemas"]["KeyShown"]["properties"]


async def test_prices_are_shown_as_the_organisation_is_charged_by_them(house: House, manage: Manager) -> None:
    other = await manager_of(house, (await house.parts.tenancy.create_tenant("elsewhere", at=EPOCH)).id)
    tiered = replace(ROW.standard, write=28, flex=Rates(hit=7, miss=14, output=21, write=28))
    night = Window("night", tiered, time(22), time(6), "Asia/Tokyo", frozenset({0, 6}))
    later = datetime(2090, 1, 1, tzinfo=UTC)
    own = replace(ROW, tenant_id=house.tenant_id, effective_from=EPOCH + LEAD)
    coming = replace(own, effective_from=later, standard=tiered, windows=(night,))
    await house.parts.prices.publish(PriceBook((own, coming)), "test", EPOCH)
    await house.desk.prices.refresh()
    (public,) = (await other("GET", "/prices"))[1]["data"]
    assert (public["id"], public["rated_when"], public["window"]) == (ROW.id, "admitted", "standard")
    rates = {"hit_per_mtok": "0.000014", "miss_per_mtok": "0.00014", "output_per_mtok": "0.00028"}
    assert public["tiers"] == {"standard": {**rates, "write_per_mtok": None}}
    (ours,) = (await manage("GET", "/prices"))[1]["data"]
    assert ours == {**public, "id": own.id, "effective_from": "2025-01-01T00:00:10Z"}
    status, listed = await manage("GET", f"/prices?at={int(later.timestamp()) + 14 * 3600}")
    (shown,) = listed["data"]
    assert (status, shown["id"], shown["tiers"]["flex"]["write_per_mtok"]) == (200, coming.id, "0.000000028")
    (window,) = shown["windows"]
    assert (window["hours"], window["zone"], window["days"]) == ("22:00-06:00", "Asia/Tokyo", ["mon", "sun"])
    assert shown["window"] == "night"  # 23 o'clock on a Sunday in Tokyo
    assert (await manage("GET", f"/prices?after={own.id}"))[1]["data"] == []
    for at in ("soon", "-1", "4102444801", "2090-01-01T00:00:00Z"):
        assert (await manage("GET", f"/prices?at={at}"))[0] == 400


async def test_credit_is_shown_and_nobody_gives_himself_any(house: House, manage: Manager) -> None:
    paid = Grant(femto_of("0.000000000000001"), "topped_up", "paid", "ann", idempotency_key="pay-1")
    await house.parts.ledger.post(house.tenant_id, paid, EPOCH + LEAD)
    assert await manage("GET", "/credit") == (200, {
        "object": "organization.credit", "currency": "USD", "billing_mode": "prepaid", "credit_limit": "0",
        "granted": "1", "topped_up": "0.000000000000001", "receivable": "0", "spendable": "1.000000000000001",
    })  # fmt: skip
    status, page = await manage("GET", "/credit/movements?limit=1")
    (first,) = page["data"]
    assert (status, page["has_more"], first["amount"], first["remaining"]) == (200, True, "1", "1")
    _, page = await manage("GET", f"/credit/movements?limit=1&after={page['last_id']}")
    (second,) = page["data"]
    assert (page["has_more"], second["kind"], second["reason"]) == (False, "credit", "paid")
    assert "pay-1" not in str(second)
    for path in ("/credit", "/credit/movements", "/prices"):
        assert (await manage("POST", path, {"amount": "1"}))[0] == 405
    other = await manager_of(house, (await house.parts.tenancy.create_tenant("poor", at=EPOCH)).id)
    assert (await other("GET", "/credit/movements"))[1]["data"] == []
    assert (await other("GET", "/credit"))[1]["spendable"] == "0"


async def test_documents_are_shown_as_they_were_signed_and_to_nobody_else(
    house: House, manage: Manager
) -> None:
    signing = signer()
    async with house.parts.database.transaction(SETTLER) as connection:
        for number in range(2):
            paid = PaidIn(house.tenant_id, 1_000 + number, f"pay-{number}", EPOCH + LEAD, "test")
            made = await top_up_document(connection, signing, paid)
    status, page = await manage("GET", "/invoices?limit=1")
    (first,) = page["data"]
    assert (status, page["has_more"], first["document"], first["total_cents"]) == (200, True, "top_up", 1_000)
    _, page = await manage("GET", f"/invoices?limit=1&after={page['last_id']}")
    assert [each["id"] for each in page["data"]] == [made.number]
    status, shown = await manage("GET", f"/invoices/{made.number}")
    assert (status, shown["state"], shown["lines"][0]["cents"]) == (200, "paid", 1_001)
    _, signed = await manage("GET", f"/invoices/{made.number}/document")
    text = msgspec.json.encode(signed, order="sorted").decode()
    assert InvoiceDocument.verify(text, signing.ring).number == made.number
    other = await manager_of(house, (await house.parts.tenancy.create_tenant("rich", at=EPOCH)).id)
    assert (await other("GET", "/invoices"))[1]["data"] == []
    for path in (f"/invoices/{made.number}", f"/invoices/{made.number}/document", "/invoices/NONE-1"):
        assert (await other("GET", path))[0] == 404
        assert (await manage("POST", path, {}))[0] == 405


async def refused(house: House) -> tuple[int, Any]:
    """Status and error of the first request that is not answered: gateways follow within two seconds."""
    found: list[tuple[int, Any]] = []

    async def asked() -> bool:
        async with house.chat() as answer:
            if answer.status != 200:
                found.append((answer.status, (await answer.json())["error"]))
            return bool(found)

    await until(asked)
    return found[0]


async def test_a_limit_set_over_rest_refuses_requests_and_is_named_until_it_is_removed(
    house: House, manage: Manager
) -> None:
    async with house.chat() as answer:  # the gateway knows the key, without the limit
        assert answer.status == 200
    limit = {"measure": "requests_per_minute", "amount": 1, "key_id": house.key_id}
    made = await manage.made("/limits", limit)
    status, error = await refused(house)
    assert (status, error["code"], error["param"]) == (429, "rate_limit_exceeded", "key.requests_per_minute")
    assert "requests_per_minute" in error["message"]
    assert (await manage("DELETE", f"/limits/{made['id']}"))[0] == 200

    async def answered() -> bool:
        async with house.chat() as answer:
            return bool(answer.status == 200)

    await until(answered)


async def test_a_budget_set_over_rest_counts_what_its_project_has_spent(
    house: House, manage: Manager
) -> None:
    async with house.chat() as answer:
        await answer.read()
    (row,) = await house.settled()
    worst = len("user:Hi\n") * ROW.standard.miss + 100 * ROW.standard.output
    (project,) = (await manage("GET", "/projects"))[1]["data"]
    amount = decimal_of(Femto(row.charge + worst - 1))
    body = {"amount": amount, "period": "lifetime", "project_id": project["id"]}
    made = await manage.made("/budgets", body)
    house.desk.keys.forget(house.key_id)  # as the announcement does, at an instant we know
    async with house.chat() as answer:
        assert answer.status == 402
        error = (await answer.json())["error"]
    assert error["code"] == "insufficient_quota"
    assert made["id"] in error["message"]
    raised = {"amount": decimal_of(Femto(row.charge + worst))}
    assert (await manage("PATCH", f"/budgets/{made['id']}", raised))[0] == 200
    house.desk.keys.forget(house.key_id)
    async with house.chat() as answer:
        assert answer.status == 200
