"""Cancelling at every stage: the worker is told, nothing keeps running, and it may be done twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.api import Engine, Generation, GenerationCancelled, TokenChunk
from engine.proof.coverage import Attempt


async def idle(engine: Engine) -> bool:
    return not any(worker.running for worker in engine.snapshot())


async def test_cancel_before_anything_was_sent(open_engine, prefiller, decoder, generate_request) -> None:
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        await generation.cancel()
        with pytest.raises(GenerationCancelled):
            await generation.prefilled()
        assert [chunk async for chunk in generation] == []
        assert await idle(engine)
    assert not prefiller.bodies


async def test_cancel_during_prefill_closes_the_connection_and_tells_the_worker(
    open_engine, prefiller, decoder, generate_request
) -> None:
    prefiller.on_prefill = prefiller.hang
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        await prefiller.entered.wait()
        await generation.cancel()
        with pytest.raises(GenerationCancelled):
            await generation.prefilled()
        await prefiller.left.wait()
        assert await idle(engine)
    assert prefiller.aborted == [f"generate-tokens-{generate_request.request_id}-prefill-0"]
    assert not decoder.bodies


async def test_cancel_while_decode_has_not_answered(
    open_engine, prefiller, decoder, generate_request
) -> None:
    decoder.on_decode = decoder.hang
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        await decoder.entered.wait()
        await generation.cancel()
        attestation, _ = await generation.prefilled()
        assert attestation.prompt_tokens == len(generate_request.prompt_ids), (
            "what was attested stays attested"
        )
        assert [chunk async for chunk in generation] == []
        await decoder.left.wait()
        assert await idle(engine)
    assert decoder.aborted == [f"generate-tokens-{generate_request.request_id}-decode-1"]


async def test_cancel_mid_stream_ends_the_iteration_quietly(
    open_engine, prefiller, decoder, generate_request
) -> None:
    decoder.on_decode = decoder.streaming_then([decoder.chunk([11])], die=False)
    decoder.left.clear()
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        seen: list[TokenChunk] = []
        async for chunk in generation:
            seen.append(chunk)
            await generation.cancel()
        assert seen == [TokenChunk((11,))]
        await decoder.left.wait()
        assert await idle(engine)
    assert decoder.aborted


async def test_cancel_from_another_task_wakes_the_reader(
    open_engine, prefiller, decoder, generate_request
) -> None:
    decoder.on_decode = decoder.hang
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        reader = asyncio.create_task(collect(generation))
        asker = asyncio.create_task(generation.prefilled())
        await decoder.entered.wait()
        await asyncio.gather(generation.cancel(), generation.cancel())
        assert await reader == []
        await asker
    assert len(decoder.aborted) == 1, "told once"


async def test_cancel_after_the_end_tells_nobody_and_loses_nothing(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        await generation.task
        await generation.cancel()
        await generation.cancel()
        chunks = [chunk async for chunk in generation]
    assert chunks[-1].finish == "stop"
    assert not decoder.aborted


async def test_cancel_returns_when_the_worker_is_dead(
    open_engine, prefiller, decoder, generate_request
) -> None:
    decoder.on_decode = decoder.streaming_then([decoder.chunk([11])], die=False)
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        reading = aiter(generation)
        assert await anext(reading) == TokenChunk((11,))
        decoder.address.socket.unlink()
        await asyncio.wait_for(generation.cancel(), 1)
        assert await anext(reading, None) is None


async def test_a_cancelled_caller_of_cancel_does_not_keep_the_worker_busy(
    open_engine, prefiller, decoder, generate_request
) -> None:
    decoder.on_decode = decoder.hang
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        await decoder.entered.wait()
        caller = asyncio.create_task(generation.cancel())
        await asyncio.sleep(0)
        caller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caller
        await generation.cancel()
        assert await idle(engine)
    assert decoder.aborted


async def test_a_cancelled_reader_leaves_the_generation_alone(
    open_engine, prefiller, decoder, generate_request
) -> None:
    may_answer = asyncio.Event()

    async def late(request: Any, body: dict[str, Any]) -> Any:
        await may_answer.wait()
        return await prefiller.attested(request, body)

    prefiller.on_prefill = late
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        asker = asyncio.create_task(generation.prefilled())
        await prefiller.entered.wait()
        asker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asker
        may_answer.set()
        attestation, _ = await generation.prefilled()
        assert attestation.request_id == generate_request.request_id
        assert (await collect(generation))[-1].finish == "stop"


async def test_closing_the_engine_cancels_what_runs(
    open_engine, prefiller, decoder, generate_request
) -> None:
    decoder.on_decode = decoder.hang
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        await decoder.entered.wait()
        await engine.close()
        assert [chunk async for chunk in generation] == []
        assert await idle(engine)
    assert decoder.aborted


STAGES = {
    "prefilling": ("prefill", []),
    "handing over": ("decode", []),
    "decoding": ("decode", [11]),
    "doing both": ("both", []),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_the_worker_is_told_within_100_ms(open_engine, make_worker, generate_request, stage) -> None:
    """The median of five: a busy machine may be late once or twice."""
    role, tokens = STAGES[stage]
    busy = make_worker("w0", role)
    others = {"prefill": ["decode"], "decode": ["prefill"], "both": []}[role]
    busy.on_prefill = busy.hang
    busy.on_decode = busy.streaming_then([busy.chunk(tokens)] if tokens else [], die=False)
    now_s = asyncio.get_running_loop().time
    late_s = []
    async with open_engine(busy, *(make_worker(f"w-{other}", other) for other in others)) as engine:
        for _ in range(5):
            busy.entered.clear()
            busy.left.clear()
            busy.told.clear()
            generation = engine.submit(generate_request)
            await busy.entered.wait()
            if tokens:
                assert await anext(aiter(generation)) == TokenChunk((11,))
            begun_s = now_s()
            cancelling = asyncio.create_task(generation.cancel())
            await asyncio.gather(busy.told.wait(), busy.left.wait())
            late_s.append(now_s() - begun_s)
            await cancelling
        assert await idle(engine)
    assert sorted(late_s)[2] < 0.1


async def test_a_ledger_that_is_slow_to_let_go_does_not_keep_the_worker_waiting(
    open_engine, prefiller, decoder, generate_request
) -> None:
    may_let_go = asyncio.Event()
    decoder.on_decode = decoder.hang
    async with open_engine(prefiller, decoder) as engine:
        placed = engine._router.placed

        @contextlib.asynccontextmanager
        async def slowly(*asked: Any) -> AsyncIterator[Any]:
            async with placed(*asked) as placement:
                try:
                    yield placement
                finally:
                    await may_let_go.wait() if placement.stage == "decode" else None

        engine._router.placed = slowly
        generation = engine.submit(generate_request)
        await decoder.entered.wait()
        cancelling = asyncio.create_task(generation.cancel())
        await asyncio.wait_for(decoder.told.wait(), 1)
        assert await collect(generation) == [], "nor its reader"
        may_let_go.set()
        await cancelling


async def test_what_the_owner_took_is_what_its_attempts_cover(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder, first_token=True) as engine:
        generation = engine.submit(generate_request)
        await generation.task
        assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 0),), "all has come, nothing was taken"
        reading = aiter(generation)
        await anext(reading)
        assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 1),)
        await anext(reading)
        await generation.cancel()
        assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 1), Attempt(1, "decode", "d0", 1, 2))


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_cancel_at_any_turn_of_the_loop_leaves_nothing_running(
    open_engine, prefiller, decoder, generate_request, turns
) -> None:
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        for _ in range(turns):
            await asyncio.sleep(0)
        await generation.cancel()
        chunks = await asyncio.wait_for(collect(generation), 1)
        assert await idle(engine)
        assert generation.task.done()
    assert chunks == [] or chunks[-1].finish == "stop"


async def collect(generation: Generation) -> list[Any]:
    return [chunk async for chunk in generation]
