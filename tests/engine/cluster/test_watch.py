"""Who lives: readiness follows the workers, and a dead worker costs a retry at most."""

import asyncio
import dataclasses
import time

import pytest

from engine.api import Engine, EngineUnavailable


async def until_ready(engine: Engine, expected: bool) -> None:
    deadline = time.monotonic() + 5
    while engine.ready is not expected:
        assert time.monotonic() < deadline, engine.snapshot()
        await asyncio.sleep(0.01)


async def test_an_engine_is_ready_when_both_stages_have_a_live_worker(
    open_engine, prefiller, decoder
) -> None:
    decoder.healthy = False
    async with open_engine(prefiller, decoder) as engine:
        assert not engine.ready
        assert [worker.ready for worker in engine.snapshot()] == [True, False]
        decoder.healthy = True
        await until_ready(engine, True)


async def test_a_worker_that_comes_back_is_found_again(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder) as engine:
        await decoder.stop()
        await until_ready(engine, False)
        with pytest.raises(EngineUnavailable) as caught:
            async for _ in engine.submit(generate_request):
                pass
        assert caught.value.retry_after_s == 7
        await decoder.start()
        await until_ready(engine, True)
        assert [chunk.finish async for chunk in engine.submit(generate_request)][-1] == "stop"


async def test_a_request_that_finds_the_socket_dead_before_the_watch_does_is_refused(
    open_engine, prefiller, decoder, deadlines, generate_request
) -> None:
    rarely = dataclasses.replace(deadlines, health_interval_s=60)
    async with open_engine(prefiller, decoder, deadlines=rarely) as engine:
        await prefiller.stop()
        assert engine.ready, "nobody has noticed"
        with pytest.raises(EngineUnavailable):
            await engine.submit(generate_request).prefilled()
        assert not engine.ready


async def test_a_worker_that_hangs_its_health_check_is_not_ready(
    open_engine, prefiller, decoder, deadlines
) -> None:
    brief = dataclasses.replace(deadlines, health_s=0.05)
    async with open_engine(prefiller, decoder, deadlines=brief) as engine:
        decoder.stalled = True
        await until_ready(engine, False)
