"""SDKs ask again without a key: what was charged and never arrived is given once, everything else is new."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from sqlalchemy import text

from billing.db.access import OWNER
from engine.api import TokenChunk
from gateway.pump import Pump
from tests.gateway.conftest import CREDIT, EPOCH, House, until
from tests.gateway.doubles import END, MODEL, Play, says


def body(**more: Any) -> bytes:
    document = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **more}
    return json.dumps(document).encode()


def post(house: House, count: int, sent: bytes, path: str = "/v1/chat/completions") -> Any:
    headers = {
        **house.headers,
        "content-type": "application/json",
        "x-stainless-retry-count": str(count),
    }
    return house.session.post(house.url + path, data=sent, headers=headers)


async def read(house: House, count: int, sent: bytes, **more: Any) -> tuple[int, bool, bytes]:
    """Status, whether it was given again, and the answer."""
    async with post(house, count, sent, **more) as answer:
        return answer.status, "idempotent-replayed" in answer.headers, await answer.read()


def pump_of(house: House) -> Pump:
    (pump,) = house.desk.pumps._running.values()
    return pump


@asynccontextmanager
async def settling(house: House) -> AsyncIterator[None]:
    """Nothing of the tenant is settled within: its balance is locked."""
    async with house.parts.database.transaction(OWNER) as connection:
        await connection.execute(
            text("SELECT 1 FROM balance WHERE tenant_id = :tenant FOR UPDATE"), {"tenant": house.tenant_id}
        )
        yield


async def undelivered(house: House, sent: bytes) -> None:
    """A request that is completed and charged after its client has left."""
    async with settling(house):
        asking = asyncio.create_task(read(house, 0, sent))

        async def generated() -> bool:
            return bool(house.engine.generations) and house.engine.generations[-1].cancelled.is_set()

        await until(generated)
        pump = pump_of(house)
        asking.cancel()
        with suppress(asyncio.CancelledError, aiohttp.ClientError):
            await asking
        async with asyncio.timeout(5):
            await pump.channel.over.wait()
    await until(lambda: kept(house, 1))


async def kept(house: House, count: int) -> bool:
    sample = house.desk.telemetry.answers_kept.labels("undelivered")
    return bool(sample._value.get() >= count)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_not_delivered_is_given_to_the_retry_once(
    house: House, stream: bool
) -> None:
    sent = body(stream=stream)
    await undelivered(house, sent)
    (row,) = await house.settled()
    assert row.status == "completed"
    status, again, content = await read(house, 1, sent)
    assert (status, again) == (200, True)
    assert str(row.request_id).encode() in content
    assert len(await house.settled()) == 1
    assert await house.balance() == CREDIT - row.charge
    assert (await read(house, 2, sent))[:2] == (200, False)
    assert len(await house.settled(2)) == 2


async def test_what_was_not_delivered_is_for_the_same_key_user_path_and_body_alone(house: House) -> None:
    sent = body()
    await undelivered(house, sent)
    for other in (body(temperature=0.5), body(user_id="somebody"), sent + b" "):
        assert (await read(house, 1, other))[:2] == (200, False)
    assert (await read(house, 1, sent, path="/chat/completions"))[:2] == (200, False)
    assert (await read(house, 0, sent))[:2] == (200, False)
    own, issued = house.key, await house.parts.tenancy.create_key(house.tenant_id, "other", EPOCH)
    house.key = issued.secret
    assert (await read(house, 1, sent))[:2] == (200, False)
    house.key = own
    assert (await read(house, 1, sent))[:2] == (200, True)


async def test_eight_identical_calls_of_one_program_are_eight_requests(house: House) -> None:
    answers = await asyncio.gather(*(read(house, 0, body(temperature=1)) for _ in range(8)))
    assert {answer[:2] for answer in answers} == {(200, False)}
    rows = await house.settled(8)
    assert len({row.request_id for row in rows}) == len({answer[2] for answer in answers}) == 8


async def test_what_was_delivered_is_not_given_again(house: House) -> None:
    for stream in (False, True):
        assert (await read(house, 0, body(stream=stream)))[:2] == (200, False)
        assert (await read(house, 1, body(stream=stream)))[:2] == (200, False)
    assert len(await house.settled(4)) == 4


async def test_a_refused_original_is_not_matched(house: House) -> None:
    await house.spend(leaving=0)
    assert (await read(house, 0, body()))[0] == 402
    await house.spend(leaving=CREDIT)
    assert (await read(house, 1, body()))[:2] == (200, False)
    assert len(await house.settled()) == 1


async def test_a_client_that_leaves_half_way_is_billed_for_that_and_its_retry_is_new(house: House) -> None:
    house.engine.play = Play([says("Hel"), asyncio.Event()])
    async with post(house, 0, body(stream=True)) as answer:
        await answer.content.readany()
    (row,) = await house.settled()
    assert (row.status, row.output) == ("aborted", 3)
    house.engine.play = Play()
    assert (await read(house, 1, body(stream=True)))[:2] == (200, False)
    assert len(await house.settled(2)) == 2


async def test_without_an_sdks_mark_nothing_is_kept(house: House) -> None:
    async with settling(house):
        house.engine.play = Play([says("Hi"), TokenChunk((END,), "stop")])
        async with house.chat(stream=True) as answer:
            await answer.content.readany()
        (pump,) = house.desk.pumps._running.values()
        async with asyncio.timeout(5):
            await pump.channel.over.wait()
    (row,) = await house.settled()
    assert row.status == "completed"
    assert (await read(house, 1, body(stream=True)))[:2] == (200, False)


class Torn(httpx.AsyncHTTPTransport):
    """A network that tears the first connection when the gateway has sent nothing back yet."""

    def __init__(self, house: House) -> None:
        super().__init__()
        self._house = house
        self.counts: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.counts.append(request.headers["x-stainless-retry-count"])
        if len(self.counts) == 1:
            await undelivered(self._house, request.content)
            raise httpx.ReadError("torn")
        return await super().handle_async_request(request)


async def test_the_openai_package_retries_silently_and_pays_once(house: House) -> None:
    network = Torn(house)
    async with openai.AsyncOpenAI(
        base_url=f"{house.url}/v1", api_key=house.key, http_client=httpx.AsyncClient(transport=network)
    ) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}]
        )
    (row,) = await house.settled()
    assert answer.id == f"chatcmpl-{row.request_id}"
    assert network.counts == ["0", "1"]
    assert await house.balance() == CREDIT - row.charge
