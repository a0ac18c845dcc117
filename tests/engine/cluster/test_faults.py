"""Whatever workers do in whatever order: each token once, each accepted call once, and the right finish."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api import (
    Deadlines,
    EngineError,
    EngineFailed,
    EngineUnavailable,
    GenerateRequest,
    TokenChunk,
    WorkerAnswerInvalid,
)
from engine.proof.attestation import read_attestation
from engine.proof.certificate import worker_ring
from engine.proof.coverage import grade, output_tokens

TOKENS = tuple(range(1000, 1010))
BRIEF = Deadlines(prefill_s=2, first_token_s=2, token_gap_s=0.3, health_interval_s=0.01)

# What happens to a call: a refusal, a lie or silence about its prompt, or death after so many tokens.
Fate = str | int
fates = st.lists(st.sampled_from(["busy", "lie", "mute"]) | st.integers(0, 6), max_size=5)


@dataclasses.dataclass(frozen=True)
class Plan:
    fates: tuple[Fate, ...]
    max_tokens: int
    stop_at: int | None
    stateful: bool
    options: dict[str, bool]

    @property
    def expected(self) -> list[TokenChunk]:
        """The whole answer, a token a chunk."""
        stop = self.stop_at is not None and self.stop_at < self.max_tokens
        length = self.stop_at + 1 if self.stop_at is not None and stop else self.max_tokens
        chunks = [TokenChunk((token_id,)) for token_id in TOKENS[:length]]
        return [*chunks[:-1], dataclasses.replace(chunks[-1], finish="stop" if stop else "length")]

    def of(self, request: GenerateRequest) -> GenerateRequest:
        sampling = dataclasses.replace(
            request.sampling,
            max_tokens=self.max_tokens,
            stop_token_ids=() if self.stop_at is None else (TOKENS[self.stop_at],),
            seed=1 if self.stateful else None,
        )
        return dataclasses.replace(request, sampling=sampling)


plans = st.builds(
    Plan,
    fates.map(tuple),
    st.integers(1, 6),
    st.none() | st.integers(0, 6),
    st.booleans(),
    st.fixed_dictionaries({"first_token": st.booleans(), "elastic": st.booleans()}),
)


class Fated:
    """Gives each call its fate, in the order in which calls come."""

    def __init__(self, double: Any, left: list[Fate]) -> None:
        self._double = double
        self._left = left
        double.tokens, double.chunk_tokens = TOKENS, 1
        double.on_prefill = double.on_decode = self

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        double, stage = self._double, body["kv_transfer_params"]["stage"]
        fate = self._left.pop(0) if self._left else None
        match fate, stage:
            case None, "prefill":
                return await double.attested(request, body)
            case None, _:
                return await double.answered(request, body)
            case "lie", "prefill":
                text = double.attestation(body, hit_tokens=0, hit_store_tokens=0, memo="x").sign(double.key)
                return web.json_response(double.prefill_answer(text))
            case int() as tokens, "decode" | "both":
                if stage == "both":
                    double.keep(double.attestation(body))
                lines = [double.chunk([token_id]) for token_id in double.drawn(body)[0][:tokens]]
                return await double.streaming_then(lines, die=True)(request, body)
            case "lie" | "mute", "both":
                if fate == "lie":
                    double.keep(double.attestation(body, memo="x"))
                return await double.streaming_then([double.chunk([7])], die=False)(request, body)
        return web.Response(status=503)


async def outcome(plan: Plan, open_engine: Any, doubles: list[Any], request: GenerateRequest) -> None:
    left = list(plan.fates)
    for double in doubles:
        Fated(double, left)
    seen: list[TokenChunk] = []
    failure: EngineError | None = None
    async with open_engine(*doubles, deadlines=BRIEF, **plan.options) as engine:
        generation = engine.submit(plan.of(request))
        try:
            async for chunk in generation:
                seen.append(chunk)  # noqa: PERF401 -- what came before a failure counts
        except EngineError as error:
            failure = error
        attempts = generation.attempts
        prefilled = await generation.prefilled() if attempts else None
    tokens = [token_id for chunk in seen for token_id in chunk.token_ids]
    expected = [token_id for chunk in plan.expected for token_id in chunk.token_ids]
    if failure is None:
        assert (tokens, seen[-1].finish) == (expected, plan.expected[-1].finish)
    else:
        assert tokens == expected[: len(tokens)]
        assert not any(chunk.finish for chunk in seen)
        assert isinstance(failure, EngineFailed if tokens else EngineUnavailable | WorkerAnswerInvalid)
        assert len(plan.fates) > 1 or (plan.stateful and tokens), "one fault costs a retry, not the answer"
    assert output_tokens(attempts) == len(tokens)
    bodies = [body for double in doubles for body in double.bodies]
    calls = sorted(body["kv_transfer_params"]["attempt"] for body in bodies)
    assert calls == list(range(len(calls))), "no number is given twice"
    assert len(calls) <= 4, "at most one retry of the prompt and one of its output"
    ring = worker_ring([double.certificate for double in doubles], doubles[0].deployment.public)
    attestations = [read_attestation(line.attestation, ring) for double in doubles for line in double.lines]
    named = {(attempt.attempt, attempt.worker) for attempt in attempts}
    mine = [one for one in attestations if (one.attempt, one.worker) in named]
    assert grade(attempts, mine) in {"attested", "gateway-counted", "unattested"}
    assert (prefilled is None) == (attempts == ())


@given(plans)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])  # they make, only
def test_each_token_comes_once_whatever_fails(
    open_engine: Any, make_worker: Callable[..., Any], generate_request: GenerateRequest, plan: Plan
) -> None:
    roles = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode"}
    doubles = [make_worker(name, role) for name, role in roles.items()]
    asyncio.run(outcome(plan, open_engine, doubles, generate_request))
