"""Calls to workers besides the answer: who proves to whom that it may, and who takes no more."""

import asyncio
import dataclasses
from typing import Any

import pytest
from aiohttp import web

from engine.api import EngineUnavailable, Journals, WorkerAnswerInvalid
from engine.wire import WorkerReport

SECRET = b"c" * 32
SIGNED: dict[str, Any] = {"call_secret": SECRET, "now_s": lambda: 1_790_000_000}
REPORT = WorkerReport(0, 0, 0, 0, draining=False, namespace="5" * 64)


async def test_every_call_but_the_health_check_is_signed(
    open_engine, prefiller, make_worker, generate_request
) -> None:
    both = make_worker("w0", "both")
    both.secret = SECRET
    both.report = REPORT
    async with open_engine(both, **SIGNED) as engine:
        generation = engine.submit(generate_request)
        assert [chunk async for chunk in generation][-1].finish == "stop"
        both.on_decode = both.hang
        both.entered.clear()
        generation = engine.submit(generate_request)
        await both.entered.wait()
        await generation.cancel()
        await engine.drain("w0")
    assert both.aborted
    assert both.draining == [True]


@pytest.mark.parametrize("known", [None, b"d" * 32], ids=["no secret", "another secret"])
async def test_a_worker_that_does_not_take_our_calls_says_what_to_do(
    open_engine, make_worker, generate_request, known
) -> None:
    both = make_worker("w0", "both")
    async with open_engine(both, **({} if known is None else {**SIGNED, "call_secret": known})) as engine:
        both.secret = SECRET
        while engine.ready:
            await asyncio.sleep(0.01)
        with pytest.raises(WorkerAnswerInvalid, match="call_secret_file"):
            await engine.drain("w0")
        engine._workers[0].ready = True
        with pytest.raises(WorkerAnswerInvalid, match="call_secret_file"):
            await engine.submit(generate_request).prefilled()


async def test_journals_are_drained_with_the_secret(journal_options, make_worker) -> None:
    worker = make_worker("w0", "both")
    worker.secret = SECRET
    await worker.start()
    for options, unreachable in ((SIGNED, ()), ({}, ("w0",))):
        journals = Journals(dataclasses.replace(journal_options(worker), **options))
        await journals.open()
        assert (await journals.drain(_kept_nowhere)).unreachable == unreachable
        await journals.close()
    await worker.stop()


async def _kept_nowhere(_batch: Any) -> None: ...


async def test_a_drained_worker_gets_nothing_more_and_everything_again_afterwards(
    open_engine, prefiller, make_worker, generate_request
) -> None:
    decoders = [make_worker(f"d{n}", "decode") for n in range(2)]
    for decoder in decoders:
        decoder.report = REPORT
    async with open_engine(prefiller, *decoders) as engine:
        await engine.drain("d0")
        assert [worker.draining for worker in engine.snapshot()] == [False, True, False]
        for _ in range(4):
            assert [chunk async for chunk in engine.submit(generate_request)]
        assert not decoders[0].bodies
        assert engine.ready
        await engine.drain("d0", draining=False)
        assert not any(worker.draining for worker in engine.snapshot())
        await engine.drain("d1")
        assert [chunk async for chunk in engine.submit(generate_request)]
    assert len(decoders[0].bodies) == 1
    assert decoders[0].draining == [True, False]


async def test_draining_a_worker_that_cannot_be_told_is_an_error(open_engine, prefiller, decoder) -> None:
    async with open_engine(prefiller, decoder) as engine:
        await decoder.stop()
        with pytest.raises(EngineUnavailable, match="d0"):
            await engine.drain("d0")
        with pytest.raises(KeyError):
            await engine.drain("nobody")


async def test_a_worker_that_takes_no_more_is_passed_over_but_not_taken_for_dead(
    open_engine, prefiller, decoder, make_worker, deadlines, generate_request
) -> None:
    async def refusing(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "draining"}}, status=503)

    decoder.on_decode = refusing
    spare = make_worker("d1", "decode")
    rarely = dataclasses.replace(deadlines, health_interval_s=60)
    async with open_engine(prefiller, decoder, spare, deadlines=rarely) as engine:
        assert [chunk async for chunk in engine.submit(generate_request)][-1].finish == "stop"
        assert all(worker.ready for worker in engine.snapshot())
    assert (len(decoder.bodies), len(spare.bodies)) == (1, 1)


async def test_a_request_carries_its_tenants_weight(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder) as engine:
        async for _ in engine.submit(dataclasses.replace(generate_request, weight=2.5)):
            pass
    assert [body["kv_transfer_params"]["weight"] for body in prefiller.bodies + decoder.bodies] == [2.5, 2.5]
    for weight in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight"):
            dataclasses.replace(generate_request, weight=weight)
