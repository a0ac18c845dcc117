"""All routes: who may, what passes admission, what every answer carries."""

import asyncio
import re
from collections.abc import Iterator

from litestar.routes import HTTPRoute

from billing.ledger.balance import BillingTerms
from billing.money import Femto, decimal_of
from billing.tenancy.api_key import KeyTerms
from engine.api import TokenChunk
from gateway import paths
from tests.gateway.conftest import CREDIT, EPOCH, ROW, House
from tests.gateway.doubles import END, MODEL, Play, says

Route = tuple[str, str, bool]  # method, path, whether a stream is asked for

ANSWERING = {*paths.CHAT, *paths.MESSAGES, *paths.RESPONSES, *paths.COMPLETIONS}
WITNESSED = {*paths.RECEIPT_LOG, *paths.LOG_HEADS, *paths.LOG_CONSISTENCY, *paths.LOG_CERTIFICATES}
LINKED = f"/v1/organization/exports/{MODEL}/file"  # its link is its key
OPEN = {*paths.LIVE, *paths.READY, *paths.METRICS, *paths.DESCRIPTION, *paths.REFERENCE, *WITNESSED, LINKED}
# What keys of inference may not do, though they may read what they have used.
MANAGED = re.compile("/v1/organization/(?!usage|costs|exports)")


def routes(house: House) -> Iterator[tuple[str, str]]:
    """Each method and path, parameters filled in."""
    for route in house.app.routes:
        assert isinstance(route, HTTPRoute)
        for method in sorted(route.methods - {"OPTIONS", "HEAD"}):
            yield method, re.sub(r"\{\w+\}", MODEL, route.path_format)


async def test_every_route_but_the_open_ones_asks_for_a_key(house: House) -> None:
    for method, path in routes(house):
        async with house.session.request(method, house.url + path, json={}) as answer:
            assert (answer.status == 401) == (path not in OPEN), path
            assert answer.headers["x-request-id"]


async def ask(house: House, route: Route, key: str) -> int:
    """Status of a route for this key, asked with a body that it could take for a request of inference."""
    method, path, stream = route
    said = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "max_tokens": 100}
    if "/responses" in path:
        said = {"input": "Hi", "max_output_tokens": 100}
    sent = None if method == "GET" else {"model": MODEL, "stream": stream, **said}
    headers = {"authorization": f"Bearer {key}"}
    async with house.session.request(method, house.url + path, json=sent, headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_every_route_that_reaches_the_engine_passes_admission(house: House) -> None:
    """maximhq/bifrost#2873: what makes the engine work for a tenant with money is refused without."""
    every = [(*route, stream) for route in routes(house) for stream in (False, True)]
    reaching = set()
    for route in every:
        before = len(house.engine.generations)
        await ask(house, route, house.key)
        if len(house.engine.generations) > before:
            reaching.add(route)
    assert {path for _, path, _ in reaching} == ANSWERING
    worked = len(house.engine.generations)
    await house.settled(worked)
    await house.spend(leaving=0)
    refused = {route for route in every if await ask(house, route, house.key) == 402}
    assert refused == reaching
    assert len(house.engine.generations) == worked


async def test_each_route_is_for_one_kind_of_key(house: House) -> None:
    """A management key cannot call inference, and no other key can manage; those that read usage read it."""
    terms = KeyTerms(scopes=frozenset({"management", "usage_read"}))
    issued = await house.parts.tenancy.create_key(house.tenant_id, "boss", EPOCH, terms=terms)
    for method, path in routes(house):
        managing = MANAGED.match(path) is not None
        assert (await ask(house, (method, path, False), house.key) == 403) == managing, path
        inferring = path in {*ANSWERING, *paths.COUNT_TOKENS, *paths.INPUT_TOKENS}
        assert (await ask(house, (method, path, False), issued.secret) == 403) == inferring, path


async def test_requests_in_flight_hold_the_balance_and_the_next_is_told_to_come_back(house: House) -> None:
    gate = asyncio.Event()
    house.engine.play = Play([says("a"), gate, TokenChunk((END,), "stop")])
    async with house.chat(stream=True, max_tokens=50) as first:
        await first.content.readline()
        await house.spend(leaving=(await house.held()).held)
        async with house.chat(max_tokens=50) as second:
            assert second.status == 402
            assert (await second.json())["error"]["code"] == "balance_held"
            assert 0 < int(second.headers["retry-after"]) <= 60
        gate.set()
        await first.read()


async def test_unknown_paths_and_methods_answer_in_the_same_shape(house: House) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", "/v1/chat/completions", 405)):
        async with house.session.request(method, house.url + path) as answer:
            assert answer.status == status
            assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}
            assert answer.headers["x-request-id"]


async def test_models_are_listed_and_shown_by_name(house: House) -> None:
    for path in ("/models", "/v1/models"):
        async with house.session.get(house.url + path, headers=house.headers) as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == [MODEL]
    async with house.session.get(f"{house.url}/v1/models/{MODEL}", headers=house.headers) as answer:
        assert (await answer.json())["id"] == MODEL
    async with house.session.get(f"{house.url}/v1/models/other", headers=house.headers) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")


async def test_the_balance_is_the_ledgers_in_exact_decimals(house: House) -> None:
    """BerriAI/litellm#8867: what is shown is exact, never binary noise."""
    async with house.session.get(f"{house.url}/user/balance", headers=house.headers) as answer:
        assert await answer.json() == {
            "is_available": True,
            "balance_infos": [
                {
                    "currency": "USD",
                    "total_balance": "1.00",
                    "granted_balance": "1.00",
                    "topped_up_balance": "0.00",
                }
            ],
        }
    async with house.chat() as answer:
        await answer.read()
    (row,) = await house.settled()
    async with house.session.get(f"{house.url}/user/balance", headers=house.headers) as answer:
        (shown,) = (await answer.json())["balance_infos"]
    whole, fraction = shown["total_balance"].split(".")
    assert int(whole) * 10**15 + int(fraction.ljust(15, "0")) == 10**15 - row.charge


async def test_a_postpaid_tenant_is_shown_what_it_owes_and_is_served_up_to_its_credit_limit(
    house: House,
) -> None:
    rates = ROW.standard
    cost = len("user:Hi\n") * rates.miss + 6 * rates.output
    worst = len("user:Hi\n") * rates.miss + 100 * rates.output
    terms = BillingTerms("postpaid", Femto(cost + worst))
    await house.admission.project(await house.parts.ledger.agree(house.tenant_id, terms, EPOCH, actor="test"))
    for status in (200, 200, 402):
        async with house.chat() as answer:
            assert answer.status == status, await answer.text()
    async with house.session.get(f"{house.url}/user/balance", headers=house.headers) as answer:
        shown = await answer.json()
    assert shown == {
        "is_available": True,
        "balance_infos": [
            {
                "currency": "USD",
                "total_balance": decimal_of(Femto(CREDIT - 2 * cost)),
                "granted_balance": "1.00",
                "topped_up_balance": decimal_of(Femto(-2 * cost)),
            }
        ],
    }
    assert await house.parts.ledger.check_integrity() == []


async def test_what_a_postpaid_tenant_may_spend_is_read_from_the_books_where_valkey_does_not_know(
    house: House,
) -> None:
    worst = len("user:Hi\n") * ROW.standard.miss + 100 * ROW.standard.output
    for limit, status in ((worst - 1, 402), (worst, 200)):
        await house.parts.ledger.agree(
            house.tenant_id, BillingTerms("postpaid", Femto(limit)), EPOCH, actor="test"
        )
        await house.admission.forget(house.tenant_id)
        async with house.chat() as answer:
            assert answer.status == status, await answer.text()


async def test_the_root_answers_probes_without_a_key(house: House) -> None:
    for method in ("GET", "HEAD"):
        async with house.session.request(method, house.url + "/") as answer:
            assert (answer.status, await answer.read()) == (200, b"")


async def test_readiness_names_what_is_missing(house: House) -> None:
    async with house.session.get(f"{house.url}/readyz") as answer:
        assert answer.status == 200
    house.engine.ready = False
    async with house.session.get(f"{house.url}/readyz") as answer:
        assert answer.status == 503
        assert (await answer.json())["parts"] == {"valkey": True, "database": True, "engine": False}
        assert "retry-after" in answer.headers


async def test_metrics_count_tokens_by_bucket_and_name_no_tenant(house: House) -> None:
    house.engine.play = Play(hit_tokens=4)
    async with house.chat() as answer:
        await answer.read()
    async with house.session.get(f"{house.url}/metrics") as answer:
        text = await answer.text()
    assert 'kvitto_tokens_total{bucket="cache_hit"} 4.0' in text
    assert 'kvitto_settled_total{status="completed"} 1.0' in text
    assert "kvitto_in_flight 0.0" in text
    assert "kvitto_placements_unshared_total 0.0" in text
    assert house.tenant_id not in text
    assert house.key_id not in text


async def test_what_a_user_has_sent_is_encoded_once_and_found_by_no_other(house: House) -> None:
    for user_id in ("ann", "ann", "bob"):
        async with house.chat(user_id=user_id) as answer:
            await answer.read()
    async with house.session.get(f"{house.url}/metrics") as answer:
        text = await answer.text()
    memo = house.parts.recipe.memo
    assert f"kvitto_encode_memo_bytes {memo.counts.bytes_held}.0" in text
    assert 'kvitto_encode_memo_segments_total{outcome="found"} 1.0' in text
    assert 'kvitto_encode_memo_segments_total{outcome="missed"} 2.0' in text
    for scope, found in ((f"{house.tenant_id}/ann", 1), (f"{house.tenant_id}/bob", 1), ("other/ann", 0)):
        before = memo.counts.found
        memo.ids(scope, ["user:Hi\n"], lambda _: [])
        assert memo.counts.found - before == found, scope


async def test_metrics_show_what_the_router_counts_as_it_counts(house: House) -> None:
    counts = house.engine.counts
    counts.placements["prefill", "queue"] += 2
    counts.retries["decode"] += 1
    counts.refusals["full"] += 3
    counts.unshared += 4
    counts.unestimated += 5
    async with house.session.get(f"{house.url}/metrics") as answer:
        text = await answer.text()
    for line in (
        'kvitto_placements_total{reason="queue",stage="prefill"} 2.0',
        'kvitto_placement_retries_total{stage="decode"} 1.0',
        'kvitto_placement_refusals_total{reason="full"} 3.0',
        "kvitto_placements_unshared_total 4.0",
        "kvitto_placements_unestimated_total 5.0",
    ):
        assert line in text
