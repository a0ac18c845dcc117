"""A client that leaves stops the generation and pays, once, for what had been received until then."""

import asyncio
from dataclasses import replace

from engine.api import TokenChunk
from gateway.pump import Pump
from gateway.reading import understood
from gateway.routes.chat import SURFACE
from gateway.routes.inference import order_of
from tests.gateway.conftest import CREDIT, OPTIONS, ROW, House, furnish, served, until
from tests.gateway.doubles import END, Play, says

PROMPT = "user:Hi\n"


async def unread(house: House) -> Pump:
    """A stream that nobody reads yet."""
    grant = await house.desk.keys.grant(house.key)
    body = b'{"model": "%b", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'
    body %= house.parts.recipe.served_name.encode()
    asked = await understood(house.desk, grant, SURFACE, body, None)
    return house.desk.pumps.start(order_of(house.desk, grant, SURFACE, asked))


async def ended(house: House) -> None:
    """Nothing is held, nothing runs, the books agree."""
    held = await house.held()
    assert (held.holds, held.held) == ({}, 0)
    assert house.engine.running == 0
    assert await house.admission.check_integrity(house.tenant_id) == []
    assert await house.parts.ledger.check_integrity() == []
    assert held.balance == await house.balance()


async def test_a_stream_left_half_way_is_billed_for_what_the_gateway_had_received(house: House) -> None:
    """BerriAI/litellm#14457, QuantumNous/new-api#5235: one row, for what was received."""
    house.engine.play = Play([says("abc"), says("de"), asyncio.Event()], hit_tokens=4)
    async with house.chat(stream=True) as answer:
        read = b""
        while b'"de"' not in read:
            read += await answer.content.readany()
    (row,) = await house.settled()
    assert (row.status, row.cache_hit, row.cache_miss, row.output) == ("aborted", 4, 4, 5)
    rates = ROW.standard
    assert row.charge == 4 * rates.hit + 4 * rates.miss + 5 * rates.output
    assert await house.balance() == CREDIT - row.charge
    await ended(house)


async def test_a_slow_reader_that_leaves_ends_the_generation_and_pays_for_what_was_received(
    database_url: str, valkey_url: str
) -> None:
    """BerriAI/litellm#36008: at once, and never for more than is attested."""
    patient = replace(OPTIONS, channel_frames_max=2)
    async with served(await furnish(database_url, valkey_url, patient)) as house:
        house.engine.play = Play([says(letter) for letter in "abcdefghij"] + [asyncio.Event()])
        pump = await unread(house)
        read = (await pump.channel.receive(5) or b"").count(b'"finish_reason"') - 1  # the first has no letter
        (generation,) = house.engine.generations

        async def waiting() -> bool:
            return pump.channel.full and not generation.cancelled.is_set()

        await until(waiting)
        pump.channel.leave()
        await asyncio.wait_for(generation.cancelled.wait(), 5)
        (row,) = await house.settled()
        assert row.status == "aborted"
        assert read + 2 <= row.output <= read + 3  # two fit, one waited
        assert row.output <= generation.attempts[-1].output_to
        assert row.charge == len(PROMPT) * ROW.standard.miss + row.output * ROW.standard.output
        await ended(house)


async def test_one_that_leaves_after_the_prefill_pays_for_the_prompt_alone(house: House) -> None:
    house.engine.play = Play([asyncio.Event()])
    async with house.chat(stream=True) as answer:
        assert await answer.content.readline() == b": ping\n"
    (row,) = await house.settled()
    assert (row.status, row.cache_miss, row.output) == ("aborted", len(PROMPT), 0)
    await ended(house)


async def test_one_that_leaves_before_any_worker_answered_pays_nothing(house: House) -> None:
    house.engine.play = Play(prefill=asyncio.Event())
    async with house.chat(stream=True) as answer:
        assert await answer.content.readline() == b": ping\n"
    (row,) = await house.settled()
    assert (row.status, row.charge, row.cache_miss) == ("aborted", 0, 0)
    assert await house.balance() == CREDIT
    await ended(house)


async def test_a_client_that_waits_for_a_whole_answer_may_leave_too(house: House) -> None:
    house.engine.play = Play([says("abc"), asyncio.Event()])
    asking = asyncio.create_task(house.chat().__aenter__())
    await until(lambda: generating(house))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    (row,) = await house.settled()
    assert (row.status, row.output) == ("aborted", 3)
    await ended(house)


async def generating(house: House) -> bool:
    return bool(house.engine.generations) and house.engine.generations[0].yielded > 0


async def test_leaving_after_the_last_token_changes_nothing(house: House) -> None:
    async with house.chat(stream=True) as answer:
        await answer.content.readline()
    (row,) = await house.settled()
    assert (row.status, row.output) == ("completed", 6)
    await ended(house)


async def test_many_clients_leaving_at_once_leave_one_event_each(house: House) -> None:
    house.engine.play = Play([says("a"), asyncio.Event()])

    async def leave() -> None:
        async with house.chat(stream=True) as answer:
            await answer.content.readline()

    await asyncio.gather(*(leave() for _ in range(20)))
    rows = await house.settled(20)
    assert len({row.request_id for row in rows}) == 20
    assert {(row.status, row.output) for row in rows} == {("aborted", 1)}
    await ended(house)


async def test_an_answer_left_unread_to_the_deadline_is_billed_and_ends_with_an_error(
    impatient_house: House,
) -> None:
    house = impatient_house
    house.engine.play = Play([says(letter) for letter in "abcdef"] + [TokenChunk((END,), "stop")])
    pump = await unread(house)
    (row,) = await house.settled()
    assert row.status == "aborted"
    assert 2 <= row.output <= 3  # two frames fit, a third waits
    frames = b""
    while (frame := await pump.channel.receive(1)) is not None:
        frames += frame
    assert b"reader_stalled" in frames
    assert b"[DONE]" not in frames
    await ended(house)
