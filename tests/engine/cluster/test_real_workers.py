"""The cluster over real vLLM workers: one prefill, one decode, the default model, a prefix store on disk."""

import asyncio
import contextlib
import dataclasses
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tokenizers import Tokenizer

from engine.api import (
    Attested,
    Constraint,
    ConstraintRefused,
    Deadlines,
    Engine,
    EngineError,
    EngineFailed,
    EngineOptions,
    EngineUnavailable,
    GenerateRequest,
    Generation,
    Journals,
    PromptRefused,
    Role,
    Sampling,
    WorkerAddress,
)
from engine.proof import signed
from engine.proof.attestation import DecodeAttestation
from engine.proof.certificate import DeploymentKey
from engine.proof.coverage import grade, output_tokens
from engine.proof.ring import DeploymentRing
from engine.shapes.render import worker_command
from engine.shapes.shape import WorkerSpec, default_cores

ROLES: dict[str, Role] = {"p0": "prefill", "d0": "decode"}
SHUTDOWN_TIMEOUT_S = 3
TEXT = (
    "The harbour of the old town wakes before the sun. Fishermen carry their nets to the boats, the baker "
    "opens his door, and the first train of the morning leaves the station with three passengers. "
) * 6


@dataclass(frozen=True)
class Pair:
    """Two running workers, and an engine's options over them."""

    processes: dict[str, subprocess.Popen[bytes]]
    options: EngineOptions

    @contextlib.asynccontextmanager
    async def engine(self, **changes: Any) -> AsyncIterator[Engine]:
        """Each role its own stage and every token from decode, unless ``changes`` say otherwise."""
        plain: dict[str, Any] = {"elastic": False, "first_token": False}
        engine = Engine(dataclasses.replace(self.options, **{**plain, **changes}))
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()

    async def running(self, name: str) -> float:
        """Requests that vLLM itself counts as running or waiting on a worker."""
        (address,) = (worker for worker in self.options.workers if worker.name == name)
        connector = aiohttp.UnixConnector(path=str(address.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://worker/metrics") as response,
        ):
            lines = (await response.text()).splitlines()
        counters = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(counters))

    async def attested(self, *request_ids: str) -> list[Attested]:
        """What the workers' journals hold of some requests; everything else in them is dropped."""
        kept: list[Attested] = []

        async def keep(batch: Sequence[Attested]) -> None:
            kept.extend(one for one in batch if one.attestation.request_id in request_ids)

        journals = Journals(self.options)
        await journals.open()
        drained = await journals.drain(keep)
        await journals.close()
        assert drained.refused == 0
        return kept

    async def until_idle(self, name: str) -> None:
        while await self.running(name):
            await asyncio.sleep(0.05)


def start(name: str, role: Role, spec: WorkerSpec, log: Path) -> subprocess.Popen[bytes]:
    spec_file = spec.socket.with_suffix(".json")
    spec.write(spec_file)
    command = worker_command(spec_file, spec)
    with log.open("wb") as written:
        return subprocess.Popen(
            command.argv,
            env={**os.environ, **command.environment},
            cwd=Path(__file__).parents[3],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )


async def until_ready(
    options: EngineOptions, processes: dict[str, subprocess.Popen[bytes]], logs: Path
) -> None:
    engine = Engine(options)
    await engine.open()
    async with asyncio.timeout(180):
        while not engine.ready:
            for name, process in processes.items():
                assert process.poll() is None, (logs / f"{name}.log").read_text()[-4000:]
            await asyncio.sleep(0.2)
    await engine.close()


@pytest.fixture(scope="module")
def pair(short_folder: Path, model_dir: Path) -> Iterator[Pair]:
    folder = short_folder / "pair"
    (folder / "store").mkdir(parents=True)
    deployment = DeploymentKey.generate()
    secret = secrets.token_bytes(32)
    (folder / "call.secret").write_text(secret.hex())
    processes: dict[str, subprocess.Popen[bytes]] = {}
    addresses = []
    try:
        for name, role in ROLES.items():
            key = Ed25519PrivateKey.generate()
            (folder / f"{name}.pem").write_bytes(signed.private_pem(key))
            (folder / f"{name}.certificate").write_text(
                deployment.certify(name, key.public_key(), 1_790_000_000)
            )
            spec = WorkerSpec(
                name=name,
                role=role,
                model_dir=model_dir,
                served_name="m",
                socket=folder / f"{name}.sock",
                store_dir=folder / "store",
                journal_dir=folder / f"{name}.journal",
                key_file=folder / f"{name}.pem",
                certificate_file=folder / f"{name}.certificate",
                call_secret_file=folder / "call.secret",
                context_tokens=2048,
                shutdown_timeout_s=SHUTDOWN_TIMEOUT_S,
                cpu_cores=default_cores(role, os.cpu_count() or 1),
            )
            processes[name] = start(name, role, spec, folder / f"{name}.log")
            addresses.append(WorkerAddress(name, role, spec.socket))
        options = EngineOptions(
            workers=tuple(addresses),
            salt_secret=b"s" * 32,
            deployment=DeploymentRing.of(deployment.public),
            deadlines=Deadlines(health_interval_s=0.2),
            call_secret=secret,
            now_s=lambda: int(time.time()),
            elastic=False,
        )
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, until_ready(options, processes, folder)).result()
        yield Pair(processes, options)
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        for process in processes.values():
            process.wait(60)


@pytest.fixture(scope="module")
def prompt_ids(model_dir: Path) -> tuple[int, ...]:
    return tuple(Tokenizer.from_file(str(model_dir / "tokenizer.json")).encode(TEXT).ids)


def asked(request_id: str, prompt_ids: tuple[int, ...], max_tokens: int = 16) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        tenant="ten_0123456789abcdef01234567",
        scope="",
        prompt_ids=prompt_ids,
        sampling=Sampling(max_tokens=max_tokens, temperature=0.0),
        retention_class="chat",
        nonce=b"n" * 32,
        memo="memo",
    )


async def answer(engine: Engine, request: GenerateRequest) -> tuple[int, list[int]]:
    """Return hit tokens and the generated token ids."""
    generation = engine.submit(request)
    chunks = [chunk async for chunk in generation]
    attestation, _ = await generation.prefilled()
    assert chunks[-1].finish == "length"
    return attestation.hit_tokens, [token for chunk in chunks for token in chunk.token_ids]


async def test_a_prompt_hits_the_second_time_for_its_own_tenant_and_scope_only(
    pair: Pair, prompt_ids
) -> None:
    first = asked("r-1", prompt_ids)
    async with pair.engine() as engine:
        cold, tokens = await answer(engine, first)
        warm, again = await answer(engine, dataclasses.replace(first, request_id="r-2"))
        stranger, _ = await answer(engine, dataclasses.replace(first, request_id="r-3", tenant="ten_other"))
        scoped, _ = await answer(engine, dataclasses.replace(first, request_id="r-4", scope="user"))
    assert (cold, stranger, scoped) == (0, 0, 0)
    assert warm == (len(prompt_ids) - 1) // 64 * 64
    assert len(tokens) == 16
    assert again == tokens, "greedy answers do not depend on where the prompt's blocks came from"


async def test_a_stop_token_ends_the_answer_and_is_delivered(pair: Pair, prompt_ids) -> None:
    request = asked("r-5", prompt_ids)
    async with pair.engine() as engine:
        _, tokens = await answer(engine, request)
        stop = tokens[3]
        sampling = dataclasses.replace(request.sampling, stop_token_ids=(stop,))
        generation = engine.submit(dataclasses.replace(request, request_id="r-6", sampling=sampling))
        chunks = [chunk async for chunk in generation]
    assert chunks[-1].finish == "stop"
    assert [token for chunk in chunks for token in chunk.token_ids] == tokens[: tokens.index(stop) + 1]


async def test_a_cancelled_stream_leaves_the_worker_with_nothing_running(pair: Pair, prompt_ids) -> None:
    async with pair.engine() as engine:
        generation = engine.submit(asked("r-7", prompt_ids, max_tokens=1000))
        async for _ in generation:
            assert await pair.running("d0") == 1
            await generation.cancel()
        await asyncio.wait_for(pair.until_idle("d0"), 5)


async def test_a_prompt_beyond_the_context_is_refused_by_the_worker(pair: Pair, prompt_ids) -> None:
    long = (prompt_ids * 20)[:2100]
    async with pair.engine() as engine:
        with pytest.raises(PromptRefused, match="2048"):
            await engine.submit(asked("r-8", long)).prefilled()
        assert engine.ready, "a refusal says nothing about the worker"


async def whole(generation: Generation) -> list[int]:
    return [token async for chunk in generation for token in chunk.token_ids]


async def test_greedy_answers_do_not_depend_on_the_way_through_the_workers(pair: Pair, prompt_ids) -> None:
    little = prompt_ids[:100]
    answers: dict[str, list[int]] = {}
    ways: dict[str, dict[str, Any]] = {
        "decode draws": {},
        "prefill draws": {"first_token": True},
        "one does both": {"first_token": True, "elastic": True},
    }
    for number, (way, changes) in enumerate(ways.items()):
        async with pair.engine(**changes) as engine:
            generation = engine.submit(asked(f"r-2{number}", little))
            answers[way] = await whole(generation)
        attempts = generation.attempts
        assert [attempt.stage for attempt in attempts] == (
            ["both"] if way == "one does both" else ["prefill", "decode"]
        )
        assert attempts[0].output_to == {"decode draws": 0, "prefill draws": 1, "one does both": 16}[way]
        attested = [one.attestation for one in await pair.attested(f"r-2{number}")]
        assert grade(attempts, attested) == "attested"
        assert len(attested) == 2
    assert len(set(map(tuple, answers.values()))) == 1, answers
    assert len(answers["decode draws"]) == 16


async def test_a_held_answer_is_drawn_by_decode_behind_what_prefill_has_computed(
    pair: Pair, prompt_ids, model_dir: Path
) -> None:
    request = asked("r-95", prompt_ids, 40)
    sampling = dataclasses.replace(
        request.sampling, stop_token_ids=(0, 2), constraint=Constraint("regex", "[0-9]{3}-(red|green)")
    )
    async with pair.engine(first_token=True) as engine:
        generation = engine.submit(dataclasses.replace(request, sampling=sampling))
        tokens = await whole(generation)
        unsound = dataclasses.replace(sampling, constraint=Constraint("regex", "("))
        with pytest.raises(ConstraintRefused, match="regex"):
            await whole(engine.submit(dataclasses.replace(asked("r-96", prompt_ids), sampling=unsound)))
        assert engine.ready
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert re.fullmatch("[0-9]{3}-(red|green)", tokenizer.decode(tokens[:-1]))
    assert [(one.stage, one.output_from) for one in generation.attempts] == [("prefill", 0), ("decode", 0)]
    attested = [one.attestation for one in await pair.attested("r-95")]
    assert grade(generation.attempts, attested) == "attested"


async def test_log_probabilities_come_along_both_ways_of_the_first_token(pair: Pair, prompt_ids) -> None:
    told = []
    for number, first_token in enumerate((True, False)):
        request = asked(f"r-97{number}", prompt_ids, 6)
        sampling = dataclasses.replace(request.sampling, logprobs=3)
        async with pair.engine(first_token=first_token) as engine:
            chunks = [c async for c in engine.submit(dataclasses.replace(request, sampling=sampling))]
        logprobs = [each for chunk in chunks for each in chunk.logprobs]
        assert [each.token_id for each in logprobs] == [
            token for chunk in chunks for token in chunk.token_ids
        ]
        assert all(each.top[0] == (each.token_id, each.logprob) and len(each.top) == 3 for each in logprobs)
        told.append([(each.token_id, round(each.logprob, 2)) for each in logprobs])
    assert told[0] == told[1]


async def test_decode_finds_each_full_block_of_what_prefill_has_answered_for_under_load(
    pair: Pair, prompt_ids
) -> None:
    """Eight prompts at once, while streams decode: an answer before its last block would show here."""
    lengths = {f"r-7{number}": 300 + 67 * number for number in range(8)}
    async with pair.engine(first_token=True) as engine:
        streams = [engine.submit(asked(f"r-8{number}", prompt_ids[number:], 120)) for number in range(2)]
        generations = [
            engine.submit(asked(request_id, (prompt_ids[tokens % 61 :] * 5)[:tokens], 24))
            for request_id, tokens in lengths.items()
        ]
        await asyncio.gather(*map(whole, (*streams, *generations)))
    attested = [one.attestation for one in await pair.attested(*lengths)]
    handed = {one.request_id: one.handoff_tokens for one in attested if isinstance(one, DecodeAttestation)}
    assert handed == {request_id: (tokens - 1) // 64 * 64 for request_id, tokens in lengths.items()}


@pytest.mark.parametrize("stage", ["prefill", "decode", "both"])
async def test_a_call_that_is_cancelled_ends_at_once_and_is_attested(pair: Pair, prompt_ids, stage) -> None:
    name = "p0" if stage == "prefill" else "d0"
    request = asked(f"r-3-{stage}", prompt_ids[:90] if stage == "both" else prompt_ids * 4, max_tokens=1000)
    request = dataclasses.replace(request, tenant=f"ten_{stage}")  # nothing of it is stored
    async with pair.engine(elastic=stage == "both") as engine:
        generation = engine.submit(request)
        if stage != "prefill":
            await anext(aiter(generation))
        while not await pair.running(name):
            await asyncio.sleep(0.01)
        await generation.cancel()
        begun_s = time.monotonic()
        await asyncio.wait_for(pair.until_idle(name), 5)
        print(f"{stage}: idle {time.monotonic() - begun_s:.3f} s after the cancel")
    attempts = generation.attempts
    attested = [one.attestation for one in await pair.attested(request.request_id)]
    assert output_tokens(attempts) == (0 if stage == "prefill" else 1)
    if stage == "prefill":
        (aborted,) = attested
        assert not aborted.computed, "nothing of it is billable"
    else:
        assert grade(attempts, attested) == "attested"
        (decode,) = (one for one in attested if isinstance(one, DecodeAttestation))
        assert decode.ended == "abort"
        assert 1 <= decode.output_to < 1000


async def test_a_drained_worker_ends_what_it_has_and_gets_nothing_more(pair: Pair, prompt_ids) -> None:
    async with pair.engine(elastic=True, first_token=True) as engine:
        running = engine.submit(asked("r-40", prompt_ids[:100], max_tokens=200))
        reading = aiter(running)
        await anext(reading)
        await engine.drain("d0")
        assert [worker.draining for worker in engine.snapshot()] == [False, True]
        other = engine.submit(asked("r-41", prompt_ids[:100]))
        assert len(await whole(other)) == 16
        assert {attempt.worker for attempt in other.attempts} == {"p0"}
        rest = [token async for chunk in reading for token in chunk.token_ids]
        assert len(rest) == 199
        assert {attempt.worker for attempt in running.attempts} == {"d0"}
        await engine.drain("d0", draining=False)
        assert engine.ready


async def test_a_stream_whose_worker_is_killed_goes_on_elsewhere_with_the_same_tokens(
    pair: Pair, prompt_ids
) -> None:
    """Last in the module but two: it leaves the pair without its decode worker."""
    async with pair.engine(elastic=True) as engine:
        undisturbed = await whole(engine.submit(asked("r-50", prompt_ids, max_tokens=100)))
        with_state = dataclasses.replace(asked("r-51", prompt_ids, max_tokens=1000))
        with_state = dataclasses.replace(
            with_state, sampling=dataclasses.replace(with_state.sampling, seed=1, temperature=1.0)
        )
        doomed = aiter(engine.submit(with_state))
        await anext(doomed)
        generation = engine.submit(asked("r-52", prompt_ids, max_tokens=100))
        tokens: list[int] = []
        async for chunk in generation:
            tokens += chunk.token_ids
            if len(tokens) == 20:
                pair.processes["d0"].kill()
        with pytest.raises(EngineFailed, match="d0"):
            _ = [chunk async for chunk in doomed]
    assert tokens == undisturbed
    before, killed, after = generation.attempts
    assert (before.worker, killed.worker, after.worker) == ("p0", "d0", "p0")
    assert (killed.output_from, killed.output_to, after.output_to) == (0, after.output_from, 100)
    assert output_tokens(generation.attempts) == 100
    journals = await pair.attested("r-52")
    assert grade(generation.attempts, [one.attestation for one in journals]) == "gateway-counted"


async def test_strict_roles_without_a_decode_worker_refuse(pair: Pair, prompt_ids) -> None:
    """Last in the module but one."""
    async with pair.engine() as engine:
        reading = aiter(engine.submit(asked("r-60", prompt_ids)))
        with pytest.raises(EngineUnavailable):
            await anext(reading)
        assert not engine.ready


async def test_a_stopped_worker_finishes_what_it_can_and_what_it_aborts_is_no_end(
    pair: Pair, prompt_ids
) -> None:
    """Last in the module: it stops the worker that is left."""
    pair.processes["d0"].kill()  # it is dead already, unless this test runs alone
    impatient = dataclasses.replace(pair.options.deadlines, token_gap_s=4.0)
    async with pair.engine(elastic=True, deadlines=impatient) as engine:
        short, long = (engine.submit(asked(f"r-9{tokens}", prompt_ids, tokens)) for tokens in (12, 1500))
        finishing, reading = aiter(short), aiter(long)
        finished, received = [len((await anext(answer)).token_ids) for answer in (finishing, reading)]
        pair.processes["p0"].terminate()
        stopped_s = time.monotonic()
        late = engine.submit(asked("r-94", prompt_ids))
        assert finished + sum([len(chunk.token_ids) async for chunk in finishing]) == 12
        with pytest.raises(EngineError):
            await whole(late)
        ended: object = None
        try:
            async for chunk in reading:
                received += len(chunk.token_ids)
                ended = chunk.finish
        except EngineError as error:
            ended = error
        assert isinstance(ended, EngineError), "an abort ended the answer as if it were whole"
    assert time.monotonic() - stopped_s < 4 * SHUTDOWN_TIMEOUT_S
    assert 0 < received < 1500
    assert output_tokens(long.attempts) == received, "what the client was sent, for the gateway to judge"
