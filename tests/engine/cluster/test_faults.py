"""Whatever workers do in whatever order: each token once, each accepted call once, and the right finish."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from aiohttp import web
from hypothesis import HealthCheck, example, given, settings
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

# A call's fate: nothing, a refusal, a lie or silence about its prompt, or death after so many tokens.
Fate = str | int | None
fates = st.lists(st.none() | st.sampled_from(["busy", "lie", "mute"]) | st.integers(0, 6), max_size=5)
SHAPES = {"split": ["prefill", "prefill", "decode", "decode"], "mono": ["both", "both", "both"]}


@dataclasses.dataclass(frozen=True)
class Plan:
    fates: tuple[Fate, ...]
    max_tokens: int
    stop_at: int | None
    stateful: bool
    first_token: bool = False
    shape: str = "split"

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
    st.booleans(),
    st.sampled_from(list(SHAPES)),
)


class Fated:
    """Gives each call its fate, in the order in which calls come; notes which half of a request it broke."""

    def __init__(self, doubles: list[Any], plan: Plan) -> None:
        self._left = list(plan.fates)
        self._max_tokens = plan.max_tokens
        self.broken: list[str] = []
        for double in doubles:
            double.tokens, double.chunk_tokens = TOKENS, 1
            double.on_prefill = double.on_decode = functools.partial(self._meet, double)

    async def _meet(self, double: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        params = body["kv_transfer_params"]
        stage = params["stage"]
        asked = 1 if stage == "prefill" else self._max_tokens - params["output_from"]
        assert body["sampling_params"]["max_tokens"] == asked > 0
        fate = self._left.pop(0) if self._left else None
        if fate is not None:
            begun = stage == "both" and fate in range(1, 7)
            self.broken.append("output" if begun or stage == "decode" else "prompt")
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
    fated = Fated(doubles, plan)
    seen: list[TokenChunk] = []
    failure: EngineError | None = None
    async with open_engine(*doubles, deadlines=BRIEF, first_token=plan.first_token) as engine:
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
        twice = any(fated.broken.count(half) > 1 for half in ("prompt", "output"))
        assert twice or (plan.stateful and tokens), "one fault of each half costs a retry, not the answer"
    assert output_tokens(attempts) == len(tokens)
    bodies = [body for double in doubles for body in double.bodies]
    calls = sorted(body["kv_transfer_params"]["attempt"] for body in bodies)
    assert calls == list(range(len(calls))), "no number is given twice"
    assert max(fated.broken.count(half) for half in ("prompt", "output")) <= 2, "a half is retried once"
    ring = worker_ring([double.certificate for double in doubles], doubles[0].deployment.public)
    attestations = [read_attestation(line.attestation, ring) for double in doubles for line in double.lines]
    named = {(attempt.attempt, attempt.worker) for attempt in attempts}
    mine = [one for one in attestations if (one.attempt, one.worker) in named]
    assert grade(attempts, mine) in {"attested", "gateway-counted", "unattested"}
    assert (prefilled is None) == (attempts == ())


@given(plans)
@example(Plan(("busy", None, 2), 3, None, stateful=False))
@example(Plan(("lie", None, 0), 1, None, stateful=False, first_token=True))
@example(Plan((None, 1, 1, 1), 6, None, stateful=False))
@example(Plan((3,), 3, None, stateful=False, shape="mono"))
@example(Plan((0, 2, 1), 6, 4, stateful=False, shape="mono"))
@example(Plan((2,), 3, None, stateful=True, shape="mono"))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])  # they make, only
def test_each_token_comes_once_whatever_fails(
    open_engine: Any, make_worker: Callable[..., Any], generate_request: GenerateRequest, plan: Plan
) -> None:
    doubles = [make_worker(f"w{number}", role) for number, role in enumerate(SHAPES[plan.shape])]
    asyncio.run(outcome(plan, open_engine, doubles, generate_request))
