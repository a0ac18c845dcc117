"""Requests asked again with an idempotency key: one answer, one charge, whatever happened to the first."""

import asyncio
import json
import secrets
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from billing.db.access import OWNER
from billing.pricing.book import PriceBook
from billing.pricing.rating import rate
from billing.receipts.memo import Memo
from billing.request_id import RANDOM_BYTES, instant_of, mint
from billing.settlement.event import UsageEvent
from billing.usage import TokenUsage
from engine.api import EngineFailed, TokenChunk
from engine.proof.coverage import Attempt
from gateway.instant import ValkeyClock
from gateway.kept import Absent, Ask, Claimed, Kept
from gateway.retries import Answering, Sent
from gateway.vault import Vault
from tests.gateway.conftest import CREDIT, EPOCH, OPTIONS, PEPPER, ROW, House, furnish, served, until
from tests.gateway.doubles import END, MODEL, Play, says

KEY = "order-66"


def body(**more: Any) -> bytes:
    document = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **more}
    return json.dumps(document).encode()


@asynccontextmanager
async def asked(house: House, key: str = KEY, path: str = "/v1/chat/completions", **more: Any) -> Any:
    """A request with an idempotency key, in flight."""
    headers = {**house.headers, "idempotency-key": key, "content-type": "application/json"}
    async with house.session.post(house.url + path, data=body(**more), headers=headers) as answer:
        yield answer


async def read(house: House, key: str = KEY, **more: Any) -> tuple[int, bytes, str]:
    async with asked(house, key, **more) as answer:
        content = (await answer.read()).replace(b": ping\n", b"")
        return answer.status, content, answer.headers["x-request-id"]


async def code(house: House, key: str = KEY, **more: Any) -> tuple[int, str]:
    status, content, _ = await read(house, key, **more)
    return status, json.loads(content)["error"]["code"]


async def ask_of(house: House, key: str = KEY, **more: Any) -> Ask:
    grant = await house.desk.keys.grant(house.key)
    sent = Sent({"idempotency-key": key}, "/v1/chat/completions", grant, "", body(**more))
    ask = await house.desk.retries.ask(sent)
    assert ask is not None
    return ask


async def wiped(house: House) -> None:
    await house.parts.valkey.call("FLUSHALL")


async def one_charge(house: House) -> None:
    """One request was charged, and the books say so everywhere."""
    charged = [row for row in await house.settled() if row.charge]
    assert len(charged) == 1
    assert await house.balance() == CREDIT - charged[0].charge
    assert await house.parts.ledger.check_integrity() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_again_gets_the_same_bytes_and_costs_nothing(house: House, stream: bool) -> None:
    first = await read(house, stream=stream)
    assert first[0] == 200
    assert await read(house, stream=stream) == first
    async with asked(house, stream=stream) as again:
        assert again.headers["idempotent-replayed"] == "true"
    assert len(house.engine.generations) == 1
    await one_charge(house)


async def test_another_body_or_path_is_409_while_the_first_runs_and_afterwards(house: House) -> None:
    """Money in, the row of the Idempotency-Key; the same body joins the first (design, Retries)."""
    gate = asyncio.Event()
    house.engine.play = Play([says("Hel"), gate, says("lo"), TokenChunk((END,), "stop")])
    async with asked(house, stream=True) as first:
        await first.content.readany()
        assert await code(house, temperature=0.5) == (409, "idempotency_key_reused")
        gate.set()
        await first.read()
    assert await code(house) == (409, "idempotency_key_reused")
    assert await code(house, stream=True, path="/chat/completions") == (409, "idempotency_key_reused")
    await one_charge(house)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_does_not_stop_its_request_and_finds_the_answer(
    house: House, stream: bool
) -> None:
    gate = asyncio.Event()
    house.engine.play = Play([says("Hel"), gate, says("lo"), TokenChunk((END,), "stop")])
    asking = asyncio.create_task(read(house, stream=stream))

    async def generating() -> bool:
        return bool(house.engine.generations) and house.engine.generations[0].yielded > 0

    await until(generating)
    (pump,) = house.desk.pumps._running.values()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(5):
        await pump.channel.over.wait()  # the gateway knows that nobody reads
    gate.set()
    (row,) = await house.settled()
    assert (row.status, row.output) == ("completed", 6)
    status, content, request_id = await read(house, stream=stream)
    assert (status, request_id) == (200, str(row.request_id))
    assert (b'"Hel"' in content and content.endswith(b"data: [DONE]\n\n")) if stream else b"Hello" in content
    await one_charge(house)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_while_the_first_runs_joins_it(house: House, stream: bool) -> None:
    gate = asyncio.Event()
    house.engine.play = Play([says("Hel"), gate, says("lo"), TokenChunk((END,), "stop")])
    both = [asyncio.create_task(read(house, stream=stream)) for _ in range(2)]
    retries = house.desk.telemetry.retries.labels("joined")

    async def joined() -> bool:
        return bool(retries._value.get())

    await until(joined)
    gate.set()
    one, other = await asyncio.gather(*both)
    assert one == other
    assert len(house.engine.generations) == 1
    await one_charge(house)


async def test_who_joins_a_stream_hears_heartbeats_until_the_answer_is_there(house: House) -> None:
    gate = asyncio.Event()
    house.engine.play = Play([gate, says("Hello"), TokenChunk((END,), "stop")])
    async with asked(house, stream=True), asked(house, stream=True) as second:
        assert await second.content.readline() == b": ping\n"
        gate.set()
        assert (await second.read()).endswith(b"data: [DONE]\n\n")
    await one_charge(house)


async def test_who_joined_a_request_that_fails_is_told_to_ask_again(house: House) -> None:
    gate = asyncio.Event()
    house.engine.play = Play([says("Hel"), gate, EngineFailed("decode-0", "killed")])
    async with asked(house, stream=True) as first, asked(house, stream=True) as second:
        await first.content.readany()
        gate.set()
        assert b"service_unavailable" in await second.read()
    house.engine.play = Play()
    assert (await read(house, stream=True))[0] == 200
    await one_charge(house)


async def test_a_lost_answer_is_409_and_never_charged_again(house: House) -> None:
    await read(house)
    await wiped(house)
    for _ in range(2):
        assert await code(house) == (409, "idempotency_result_lost")
    assert await code(house, temperature=0.5) == (409, "idempotency_key_reused")
    assert len(house.engine.generations) == 1
    await one_charge(house)


async def test_a_failed_request_is_not_kept(house: House) -> None:
    """BasedHardware/omi#15287: a retry of the same turn is one charge; the failed attempt holds nothing."""
    house.engine.play = Play(prefill=EngineFailed("prefill-0", "killed"))
    assert (await read(house))[0] == 503
    house.engine.play = Play()
    assert (await read(house))[0] == 200
    await one_charge(house)


async def test_a_refused_request_is_not_kept(house: House) -> None:
    await house.spend(leaving=0)
    assert await code(house) == (402, "insufficient_balance")
    await house.spend(leaving=CREDIT)
    assert (await read(house))[0] == 200
    await one_charge(house)


async def test_an_answer_too_long_to_keep_says_so(database_url: str, valkey_url: str) -> None:
    options = replace(OPTIONS, answer_bytes_max=10)
    async with served(await furnish(database_url, valkey_url, options)) as house:
        assert (await read(house))[0] == 200
        status, content, _ = await read(house)
        assert (status, json.loads(content)["error"]["code"]) == (409, "idempotency_result_lost")
        assert b"too long to be kept" in content
        await one_charge(house)


async def test_answers_are_kept_encrypted_for_a_day(house: House) -> None:
    house.engine.play = Play([says("canary"), TokenChunk((END,), "stop")])
    _, content, _ = await read(house)
    assert b"canary" in content
    place = (await ask_of(house)).place
    for key in await house.parts.valkey.call("KEYS", "*"):
        kind = await house.parts.valkey.call("TYPE", key)
        shown = str(await house.parts.valkey.call("HGETALL", key)) if kind == "hash" else ""
        assert "canary" not in shown
        assert KEY not in key + shown
    assert 86_000_000 < await house.parts.valkey.call("PTTL", place) <= 86_400_000


async def test_another_api_key_of_the_tenant_has_keys_of_its_own(house: House) -> None:
    first = await read(house)
    issued = await house.parts.tenancy.create_key(house.tenant_id, "other", EPOCH)
    house.key = issued.secret
    second = await read(house)
    assert first[2] != second[2]
    assert len(await house.settled(2)) == 2


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_a_key_that_is_none_is_400(house: House, key: str) -> None:
    assert (await read(house, key))[0] == 400
    assert await house.nothing_happened()


async def test_a_key_means_nothing_after_a_day(house: House) -> None:
    await read(house)
    await wiped(house)
    async with house.parts.database.transaction(OWNER) as connection:
        await connection.execute(
            text("UPDATE idempotency_record SET expires_at = created_at WHERE tenant_id = :tenant"),
            {"tenant": house.tenant_id},
        )
    assert (await read(house))[0] == 200
    assert len(await house.settled(2)) == 2
    await wiped(house)
    assert await code(house) == (409, "idempotency_result_lost")


async def test_of_two_that_answer_one_key_unknowingly_one_is_charged(house: House) -> None:
    """The claim was wiped while the first ran: Postgres takes one answer a key, with its charge."""
    gate = asyncio.Event()
    house.engine.play = Play([says("Hel"), gate, says("lo"), TokenChunk((END,), "stop")])
    async with asked(house, stream=True) as first:
        await first.content.readany()
        await wiped(house)
        house.engine.play = Play()
        second = await read(house, stream=True)
        assert second[0] == 200
        gate.set()
        left = await first.read()
    assert b"idempotency_key_in_use" in left
    assert b"[DONE]" not in left
    assert [row.status for row in await house.settled(2) if not row.charge] == ["failed"]
    assert await read(house, stream=True) == second
    await one_charge(house)


async def died(house: House) -> UUID:
    """The request of a gateway that was admitted under the key, and was killed."""
    kept, ask = Kept(house.parts.valkey, Vault(PEPPER), lease_s=0.001), await ask_of(house)
    dead = mint(await ValkeyClock(house.parts.valkey).now(), secrets.token_bytes(RANDOM_BYTES))
    assert await kept.claim(ask, "dead") == Claimed(None)
    await kept.admitted(ask, "dead", dead)

    async def ran_out() -> bool:
        return await kept.claim(ask, "") == Absent()

    await until(ran_out)
    return dead


async def test_a_request_whose_gateway_died_costs_nothing_once_its_retry_is_served(house: House) -> None:
    dead = await died(house)
    status, _, request_id = await read(house)
    assert (status, request_id != str(dead)) == (200, True)
    rows = {row.request_id: row for row in await house.rows()}
    assert (rows[dead].status, rows[dead].charge) == ("failed", 0)
    await one_charge(house)


async def test_a_request_that_was_swept_before_its_retry_came_is_lost_for_good(house: House) -> None:
    dead, usage = await died(house), TokenUsage(0, 0, 0, cache_miss=8, output=0)
    at = instant_of(dead)
    swept = UsageEvent(
        request_id=dead,
        tenant_id=house.tenant_id,
        key_id=house.key_id,
        model=MODEL,
        status="aborted",
        admitted_at=at,
        rated_at=at,
        usage=usage,
        reasoning_tokens=0,
        charge=rate(PriceBook((ROW,)), MODEL, "USD", usage, at),
        traffic_class="chat",
        attempts=(Attempt(0, "prefill", "p1", 0, 0),),
    )
    await house.parts.settlement.settle(swept)
    for _ in range(2):
        assert await code(house) == (409, "idempotency_result_lost")
    await wiped(house)
    assert await code(house) == (409, "idempotency_result_lost")
    assert not house.engine.generations
    await one_charge(house)


async def test_what_workers_attest_of_a_request_names_the_key_that_it_answers(house: House) -> None:
    """So that a sweeper charges one of those that a wipe has let run beside each other."""
    await read(house)
    ask, (generation,) = await ask_of(house), house.engine.generations
    memo = Memo.read(generation.request.memo)
    assert memo is not None
    assert memo.answers == (ask.name.hex(), ask.body.hex())
    assert KEY not in generation.request.memo


async def test_a_claim_whose_charge_is_unknown_is_left_to_run_out(house: House) -> None:
    ask = await ask_of(house)
    retries = house.desk.retries
    assert await retries.kept.claim(ask, "owner") == Claimed(None)
    await Answering(retries, ask, "owner").ended("unknown")
    held = await house.parts.valkey.call("HGET", ask.place, "owner")
    await Answering(retries, ask, "somebody else").ended("failed")
    assert held == await house.parts.valkey.call("HGET", ask.place, "owner") == "owner"
    await Answering(retries, ask, "owner").ended("failed")
    assert await house.parts.valkey.call("EXISTS", ask.place) == 0


async def test_a_running_claim_is_renewed(database_url: str, valkey_url: str) -> None:
    options = replace(OPTIONS, lease_s=0.3, lease_renew_interval_s=0.05)
    gate = asyncio.Event()
    async with served(await furnish(database_url, valkey_url, options)) as house:
        house.engine.play = Play([says("Hel"), gate, says("lo"), TokenChunk((END,), "stop")])
        async with asked(house, stream=True) as first:
            await first.content.readany()
            place = (await ask_of(house, stream=True)).place
            before = await house.parts.valkey.call("HGET", place, "until_ms")

            async def renewed() -> bool:
                return bool(await house.parts.valkey.call("HGET", place, "until_ms") > before)

            await until(renewed)
            gate.set()
            await first.read()
        assert not house.desk.retries.answering


async def test_what_is_sealed_opens_under_its_name_and_secret_alone() -> None:
    vault = Vault(b"secret")
    for answer in (b"", b"short", b"long" * 100_000):
        sealed = await vault.seal(answer, "name")
        assert await vault.open(sealed, "name") == answer
        assert await vault.open(sealed, "other") is None
        assert await Vault(b"other").open(sealed, "name") is None
    assert vault.digest(b"a", b"bc") != vault.digest(b"ab", b"c")
