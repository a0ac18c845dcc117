"""Who lives: readiness follows the workers, and a dead worker costs a retry at most."""

import asyncio
import dataclasses
import time
from typing import Any

import pytest

from engine.api import Engine, EngineOptions, EngineUnavailable
from engine.mac import MAC_HEADER, holds
from engine.wire import REPORT_PATH, WorkerReport

REPORT = WorkerReport(1, 0, 70, 0, draining=False, namespace="5" * 64, law=(0.01, 0.001, 1e-7))
STRICT: dict[str, Any] = {"elastic": False}


async def until_ready(engine: Engine, expected: bool) -> None:
    deadline = time.monotonic() + 5
    while engine.ready is not expected:
        assert time.monotonic() < deadline, engine.snapshot()
        await asyncio.sleep(0.01)


async def test_an_engine_of_strict_roles_is_ready_when_both_stages_have_a_live_worker(
    open_engine, prefiller, decoder
) -> None:
    decoder.healthy = False
    async with open_engine(prefiller, decoder, **STRICT) as engine:
        assert not engine.ready
        assert [worker.ready for worker in engine.snapshot()] == [True, False]
        decoder.healthy = True
        await until_ready(engine, True)


async def test_an_elastic_engine_is_ready_when_any_worker_lives(open_engine, prefiller, decoder) -> None:
    decoder.healthy = False
    async with open_engine(prefiller, decoder, elastic=True) as engine:
        assert engine.ready
        prefiller.healthy = False
        await until_ready(engine, False)


async def test_a_worker_that_comes_back_is_found_again(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder, **STRICT) as engine:
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
    async with open_engine(prefiller, decoder, deadlines=rarely, **STRICT) as engine:
        await prefiller.stop()
        assert engine.ready, "nobody has noticed"
        with pytest.raises(EngineUnavailable):
            await engine.submit(generate_request).prefilled()
        assert not engine.ready


async def test_a_worker_that_hangs_its_health_check_is_not_ready(
    open_engine, prefiller, decoder, deadlines
) -> None:
    brief = dataclasses.replace(deadlines, health_s=0.05)
    async with open_engine(prefiller, decoder, deadlines=brief, **STRICT) as engine:
        decoder.stalled = True
        await until_ready(engine, False)


async def test_a_draining_worker_says_that_it_is_healthy_and_is_not_ready(
    open_engine, prefiller, decoder
) -> None:
    prefiller.report = decoder.report = REPORT
    async with open_engine(prefiller, decoder, **STRICT) as engine:
        assert engine.ready
        decoder.report = dataclasses.replace(REPORT, draining=True)
        await until_ready(engine, False)
        assert [worker.draining for worker in engine.snapshot()] == [False, True]
        decoder.report = REPORT
        await until_ready(engine, True)


async def test_the_last_report_stays_when_a_worker_says_nothing_more(open_engine, prefiller, decoder) -> None:
    prefiller.report = REPORT
    async with open_engine(prefiller, decoder) as engine:
        (worker, other) = engine._workers
        assert worker.report == REPORT
        assert worker.load.running == 1
        assert other.report is None, "as an engine without our routes: healthy, and no more is known"
        assert other.ready
        prefiller.report = None
        while worker.load.running:
            await asyncio.sleep(0.01)
        assert worker.report == REPORT, "its name for its blocks is still good"


async def test_calls_carry_the_mac_and_a_worker_that_does_not_take_it_is_not_ready(
    open_engine, prefiller, decoder
) -> None:
    secret, seen = b"c" * 32, []
    prefiller.report = decoder.report = REPORT
    prefiller.on_report = lambda request: seen.append(request.headers[MAC_HEADER])
    signed: dict[str, Any] = {"call_secret": secret, "now_s": lambda: 1_790_000_000}
    async with open_engine(prefiller, decoder, **signed, **STRICT) as engine:
        assert engine.ready
        assert holds(secret, seen[0], "GET", REPORT_PATH, b"", 1_790_000_000)
        assert not holds(b"d" * 32, seen[0], "GET", REPORT_PATH, b"", 1_790_000_000)
        prefiller.report_status = 401
        await until_ready(engine, False)


def test_a_call_secret_needs_a_clock(prefiller) -> None:
    with pytest.raises(ValueError, match="clock"):
        EngineOptions((prefiller.address,), b"s" * 32, b"", call_secret=b"c" * 32)
    with pytest.raises(ValueError, match="32 bytes"):
        EngineOptions((prefiller.address,), b"s" * 32, b"", call_secret=b"c", now_s=lambda: 1)
