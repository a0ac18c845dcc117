"""vLLM's real scheduler under the policy, without a model: a double of the model runner answers each step.

Also the contract: what is leaned on in vLLM, pinned to the version it was read in.
"""

import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from engine.cost import CHUNK_FLOOR_TOKENS, CostLaw, Work
from engine.policy import FairOrder, Prompt, StepBudget, stretched
from engine.wire import OUTPUT_FROM, TENANT, WEIGHT
from engine.worker.pacer import PACE_CONFIG, Pacer, Step, StepPlan
from engine.worker.scheduler import AsyncTailScheduler, PacedMixin, TailScheduler, tail_scheduler

BLOCK = 64
CHUNK_MAX = 512
BUDGET_S = 0.02
STEP_S = stretched(BUDGET_S, 0.0, waited_for=False)  # of prompts alone
CLASSES = [TailScheduler, AsyncTailScheduler]


class SteadyPacer(Pacer):
    """Does not learn: the model's double takes no time, and soon everything would fit into one step."""

    def measured(self, step: Step, seconds: float) -> None:
        pass


@dataclass
class Bench:
    """A scheduler, and what it scheduled step by step."""

    scheduler: Any
    hasher: Callable[[Request], list[Any]]
    steps: list[dict[str, int]] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    def request(self, name: str, tokens: int, tenant: str = "a", **params: Any) -> Request:
        # Two prompts share no block: the first token of each is its own.
        first = 1 + sum(name.encode())
        return Request(
            name,
            [first, *[2] * (tokens - 1)],
            SamplingParams(
                max_tokens=3,
                ignore_eos=True,
                extra_args={"kv_transfer_params": {TENANT: tenant, **params}},
            ),
            None,
            arrival_time=float(len(self.steps)),
            block_hasher=self.hasher,
        )

    def add(self, name: str, tokens: int, tenant: str = "a", **params: Any) -> None:
        self.scheduler.add_request(self.request(name, tokens, tenant, **params))

    def step(self) -> dict[str, int]:
        output = self.scheduler.schedule()
        scheduled = dict(output.num_scheduled_tokens)
        names = list(scheduled)
        sampled = [[] if self.scheduler.requests[name].is_prefill_chunk else [7] for name in names]
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        for outputs in self.scheduler.update_from_output(output, answer).values():
            self.finished += [each.request_id for each in outputs.outputs if each.finish_reason is not None]
        self.steps.append(scheduled)
        return scheduled

    def run(self, steps_max: int = 400) -> None:
        while self.scheduler.requests:
            self.step()
            assert len(self.steps) < steps_max, self.steps[-3:]


Make = Callable[..., Bench]


@pytest.fixture(scope="module")
def engine_config(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A whole configuration of vLLM, from arguments like a worker's."""
    kept = dict(os.environ)
    pace = {"step_budget_s": BUDGET_S, "law_dir": str(tmp_path_factory.mktemp("law")), "model": "m"}
    try:
        yield EngineArgs(
            model=str(model_dir),
            skip_tokenizer_init=True,
            enforce_eager=True,
            block_size=BLOCK,
            max_num_batched_tokens=CHUNK_MAX,
            max_num_seqs=8,
            max_model_len=4096,
            kv_cache_memory_bytes=2**28,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256_cbor",
            additional_config={PACE_CONFIG: pace},
        ).create_engine_config()
    finally:
        os.environ.clear()
        os.environ.update(kept)


@pytest.fixture
def make(engine_config: Any, tmp_path: Path) -> Make:
    """Makes a scheduler with a pacer that does not learn, or with another, or with none."""
    hash_function = get_hash_fn_by_name("sha256_cbor")
    init_none_hash(hash_function)

    def made(
        of: Callable[..., Any] = TailScheduler, pacer: type[Pacer] | None = SteadyPacer, blocks: int = 400
    ) -> Bench:
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=3, head_size=64, dtype=torch.float16)
        engine_config.cache_config.num_gpu_blocks = blocks
        scheduler = of(
            vllm_config=engine_config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(engine_config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        scheduler._pacer = None if pacer is None else pacer(BUDGET_S, tmp_path / "law.json")
        return Bench(scheduler, get_request_block_hasher(BLOCK, hash_function))

    return made


def test_the_contract_is_of_this_version() -> None:
    """Another version: read its `schedule()` again, then the tests below, then change this line."""
    assert vllm.__version__.split("+")[0] == "0.32.0"


@pytest.mark.parametrize("of", [Scheduler, AsyncScheduler])
def test_vllm_still_has_the_hooks_with_their_parameters(of: type) -> None:
    assert list(inspect.signature(of.schedule).parameters) == ["self", "throttle_prefills"]
    assert list(inspect.signature(of._reserve_prefill_lookahead).parameters) == [
        "self",
        "request",
        "num_computed_tokens",
        "num_new_tokens",
    ]
    assert list(inspect.signature(of.update_from_output).parameters) == [
        "self",
        "scheduler_output",
        "model_runner_output",
    ]
    assert inspect.getsource(of.schedule).count("self._reserve_prefill_lookahead(") == 2
    assert list(inspect.signature(of._get_local_prefix_cache_hit).parameters) == ["self", "request"]


@pytest.mark.parametrize("of", CLASSES)
def test_vllm_still_keeps_what_the_policy_reads(make: Make, of: type) -> None:
    scheduler = make(of).scheduler
    assert isinstance(scheduler.waiting, FCFSRequestQueue)
    assert isinstance(scheduler.kv_holding_waiting, FCFSRequestQueue)
    assert scheduler.running == []
    assert scheduler.finished_recving_kv_req_ids == set()
    assert scheduler.max_num_scheduled_tokens == CHUNK_MAX
    assert (scheduler.max_num_active_reqs, scheduler.num_waiting_for_streaming_input) == (8, 0)
    assert scheduler.need_mamba_block_aligned_split is False
    for status in ("WAITING_FOR_REMOTE_KVS", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"):
        assert scheduler._is_blocked_waiting_status(RequestStatus[status])


def test_the_pacer_comes_from_the_workers_configuration(engine_config: Any, make: Make) -> None:
    bench = make()
    assert bench.scheduler._make_pacer() is not None
    assert bench.scheduler.policy_faults == 0
    kept, engine_config.additional_config = engine_config.additional_config, {}
    assert bench.scheduler._make_pacer() is None
    engine_config.additional_config = kept


@pytest.mark.parametrize(("overlapping", "of"), [(False, TailScheduler), (True, AsyncTailScheduler)])
def test_vllms_configuration_decides_whether_steps_overlap(
    engine_config: Any, make: Make, monkeypatch: pytest.MonkeyPatch, overlapping: bool, of: type
) -> None:
    assert engine_config.scheduler_config.async_scheduling is False, "the platform is a CPU"
    monkeypatch.setattr(
        engine_config.scheduler_config, "scheduler_cls", "engine.worker.scheduler.tail_scheduler"
    )
    monkeypatch.setattr(engine_config.scheduler_config, "async_scheduling", overlapping)
    assert engine_config.scheduler_config.get_scheduler_cls() is tail_scheduler
    assert type(make(tail_scheduler).scheduler) is of


def test_without_a_budget_chunks_are_vllms_and_the_first_comes_first(make: Make) -> None:
    bench = make(pacer=None)
    bench.add("long", 1300)
    bench.add("short", 60)
    assert bench.step() == {"long": 512}
    assert bench.step() == {"long": 512}
    assert bench.step() == {"long": 1280 - 1024, "short": 60}, "the tail waits for a step of its own"
    assert bench.step() == {"long": 20, "short": 1}
    bench.run()


@pytest.mark.parametrize("of", CLASSES)
@pytest.mark.parametrize(
    ("prompt", "carried", "steps"),
    [
        (700, 0, [512, 128, 60]),
        (700, 1, [512, 128, 60, 1]),
        (640, 1, [512, 64, 64, 1]),
        (640, 0, [512, 64, 64]),
        (700, 100, [512, 128, 60, 68, 32]),
        (60, 3, [60, 3]),
    ],
)
def test_what_was_generated_elsewhere_is_computed_behind_the_prompts_end(
    make: Make, of: type, prompt: int, carried: int, steps: list[int]
) -> None:
    bench = make(of, pacer=None)
    bench.add("continued", prompt + carried, **{OUTPUT_FROM: carried})
    bench.run()
    assert [step["continued"] for step in bench.steps if step][: len(steps)] == steps
    assert all(step["continued"] == 1 for step in bench.steps[len(steps) :] if step)


@pytest.mark.parametrize("nonsense", [None, "1", -1, 700, 1.5, [], True])
def test_what_cannot_have_been_generated_is_prompt(make: Make, nonsense: Any) -> None:
    bench = make(pacer=None)
    bench.add("odd", 700, **{OUTPUT_FROM: nonsense, WEIGHT: nonsense})
    bench.run()
    assert sum(step["odd"] for step in bench.steps[:3]) >= 699
    assert bench.finished == ["odd"]


@pytest.mark.parametrize("of", CLASSES)
def test_a_long_prompt_is_cut_to_the_budget_and_a_short_one_passes_it(make: Make, of: type) -> None:
    bench = make(of)
    bench.add("long", 2000)
    first = bench.step()["long"]
    bench.add("short", 60)
    second = bench.step()
    law, context = CostLaw(), 0
    assert second["short"] == 60
    assert second["long"] < first
    bench.run()
    for step in bench.steps:
        if chunk := step.get("long", 0):
            work = Work.chunk(context, chunk)
            assert chunk <= CHUNK_FLOOR_TOKENS or law.step_s(work) <= STEP_S
            context += chunk
    assert bench.finished == ["short", "long"]


@pytest.mark.parametrize("of", CLASSES)
def test_the_last_step_of_a_paced_prompt_starts_at_its_last_full_block(make: Make, of: type) -> None:
    bench = make(of)
    bench.add("prompt", 1000)
    bench.run()
    prefill = [step["prompt"] for step in bench.steps][:-2]
    assert sum(prefill) == 1000
    assert prefill[-1] == 1000 - 960


def test_decoding_requests_are_never_cut(make: Make) -> None:
    bench = make()
    for index in range(4):
        bench.add(f"decoding-{index}", 20)
    bench.step()
    bench.add("long", 2000)
    scheduled = bench.step()
    assert [scheduled[f"decoding-{index}"] for index in range(4)] == [1] * 4
    assert scheduled["long"] < CHUNK_MAX


@pytest.mark.parametrize("of", CLASSES)
def test_beside_a_burst_another_tenants_prompt_and_its_tail_have_steps_of_their_own(
    make: Make, of: type
) -> None:
    """What is ahead of its share fills no step that it would only make longer, be it running or waiting."""
    bench = make(of)
    for index in range(20):
        bench.add(f"burst-{index}", 1000, "a")
    bench.step()
    bench.add("mine", 100, "b")
    assert [bench.step(), bench.step()] == [{"mine": 64}, {"mine": 36}]
    assert "burst-0" in bench.step()
    bench.run()


def test_a_tenant_of_twice_the_weight_is_served_twice_as_much(make: Make) -> None:
    bench = make()
    for index in range(6):
        bench.add(f"a-{index}", 2000, "a", **{WEIGHT: 2.0})
        bench.add(f"b-{index}", 2000, "b")
    for _ in range(60):
        bench.step()
    got = {
        tenant: sum(count for step in bench.steps for name, count in step.items() if name.startswith(tenant))
        for tenant in "ab"
    }
    assert got["a"] / got["b"] == pytest.approx(2, rel=0.15)


@dataclass
class Foresight:
    """As much of our connector as the policy asks: what the store would bring."""

    stored_tokens: dict[str, int]
    supports_divergent_local_hybrid_hits: bool = False

    @property
    def planner(self) -> "Foresight":
        return self

    def foresee(self, request: Request, device_tokens: int) -> int:
        return max(device_tokens, self.stored_tokens.get(request.request_id, 0))


def test_a_long_prompt_that_is_stored_is_queued_by_what_is_left_of_it(make: Make) -> None:
    bench = make()
    scheduler = bench.scheduler
    bench.add("cold", 300)
    bench.add("warm", 2000)
    assert [prompt.request_id for prompt in order_of(scheduler, {})] == ["cold", "warm"]
    ordered = order_of(scheduler, {"warm": 1984})
    assert [(prompt.request_id, prompt.loads) for prompt in ordered] == [("warm", True), ("cold", False)]


def test_what_the_device_holds_of_a_waiting_prompt_counts_as_computed(make: Make) -> None:
    bench = make()
    bench.add("first", 2000)
    bench.run()
    bench.scheduler.add_request(bench.request("first", 2000))
    bench.add("cold", 300)
    again, cold = order_of(bench.scheduler, {})
    assert (again.request_id, again.computed_tokens, again.loads) == ("first", 1984, False)
    assert (cold.request_id, cold.computed_tokens) == ("cold", 0)


def order_of(scheduler: Any, stored_tokens: dict[str, int]) -> list[Prompt]:
    """The plan of the next step, which is not taken."""
    scheduler.connector = Foresight(stored_tokens)
    scheduler._arrange(scheduler._pacer)
    scheduler.connector = None
    return list(scheduler._plan.ordered)


def test_loaded_prompts_give_way_for_a_step_and_are_not_lost(make: Make) -> None:
    """What holds loaded blocks comes first in vLLM; the policy keeps it back where another tenant is due."""
    bench = make()
    scheduler = bench.scheduler
    for index in range(3):
        loaded = bench.request(f"loaded-{index}", 2000, "a")
        loaded.num_computed_tokens = 640
        scheduler.requests[loaded.request_id] = loaded
        scheduler.kv_holding_waiting.add_request(loaded)
    bench.add("mine", 100, "b")
    assert bench.step() == {"loaded-0": 32, "mine": 64}, "what is left of the step goes to a loaded one"
    assert [request.request_id for request in scheduler.kv_holding_waiting] == ["loaded-1", "loaded-2"]
    bench.run()
    assert sorted(bench.finished) == ["loaded-0", "loaded-1", "loaded-2", "mine"]


def test_who_loads_blocks_does_not_wait_for_a_long_step(make: Make) -> None:
    bench = make()
    scheduler = bench.scheduler
    bench.add("long", 2000)
    assert bench.step()["long"] > CHUNK_FLOOR_TOKENS
    loading = bench.request("loading", 2000, "b")
    loading.num_computed_tokens, loading.status = 640, RequestStatus.WAITING_FOR_REMOTE_KVS
    scheduler.requests["loading"] = loading
    scheduler.kv_holding_waiting.add_request(loading)
    assert bench.step()["long"] == CHUNK_FLOOR_TOKENS
    scheduler.finish_requests("loading", RequestStatus.FINISHED_ABORTED)
    assert bench.step()["long"] > CHUNK_FLOOR_TOKENS


ENTRIES = [
    (Pacer, "plan"),
    (Pacer, "scheduled"),
    (Pacer, "measured"),
    (FairOrder, "order"),
    (FairOrder, "charge"),
    (StepPlan, "chunk"),
    (StepBudget, "offer"),
    (StepBudget, "spend"),
    (PacedMixin, "_arrange"),
    (PacedMixin, "_account"),
    (PacedMixin, "_measure"),
    (PacedMixin, "_queued"),
]


@pytest.mark.parametrize("of", CLASSES)
@pytest.mark.parametrize(("owner", "entry"), ENTRIES)
def test_a_fault_anywhere_in_the_policy_is_counted_and_ends_no_request(
    make: Make, monkeypatch: pytest.MonkeyPatch, of: type, owner: type, entry: str
) -> None:
    bench = make(of, pacer=Pacer)
    monkeypatch.setattr(owner, entry, broken)
    free = bench.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    for index in range(4):
        bench.add(f"long-{index}", 1300, "ab"[index % 2])
        bench.step()
    bench.add("short", 60)
    bench.run()
    assert sorted(bench.finished) == ["long-0", "long-1", "long-2", "long-3", "short"]
    assert bench.scheduler.policy_faults >= 2
    assert bench.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free


@pytest.mark.parametrize("of", CLASSES)
def test_without_a_plan_every_step_is_the_one_that_vllm_would_take(
    make: Make, monkeypatch: pytest.MonkeyPatch, of: type
) -> None:
    monkeypatch.setattr(Pacer, "plan", broken)
    benches = make(of, pacer=Pacer), make(of, pacer=None)
    for bench in benches:
        for index in range(4):
            bench.add(f"long-{index}", 1300, "ab"[index % 2])
            bench.step()
        bench.add("short", 60)
        bench.run()
    faulty, stock = benches
    assert faulty.steps == stock.steps
    assert faulty.scheduler.policy_faults == len(faulty.steps)


def broken(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError


def test_a_prompt_for_which_there_is_no_memory_does_not_stop_the_running_one(make: Make) -> None:
    bench = make(blocks=40)
    bench.add("long", 2300)
    while sum(step.get("long", 0) for step in bench.steps) < 1500:
        bench.step()
    bench.add("cheaper", 1300)
    for _ in range(8):
        bench.step()
    assert sum("long" in step for step in bench.steps[-8:]) >= 3
    bench.run()
    assert bench.finished == ["long", "cheaper"]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.integers(1, 2200)), min_size=1, max_size=12
    ),
    of=st.sampled_from(CLASSES),
    blocks=st.integers(40, 120),
)
def test_whatever_comes_all_prompts_end_and_all_blocks_return(
    make: Make, prompts: list[tuple[int, str, int]], of: type, blocks: int
) -> None:
    bench = make(of, blocks=blocks)
    free = bench.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    for number in range(21):
        for index, (at, tenant, tokens) in enumerate(prompts):
            if at == number:
                bench.add(f"{index}", tokens, tenant)
        bench.step()
    bench.run(steps_max=2000)
    assert sorted(bench.finished) == sorted(f"{index}" for index in range(len(prompts)))
    assert bench.scheduler.policy_faults == 0
    assert bench.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free


def test_steps_are_measured_learned_and_kept(make: Make, tmp_path: Path) -> None:
    bench = make(pacer=Pacer)
    bench.add("long", 2000)
    bench.run()
    learned = bench.scheduler._pacer.law
    assert learned.step_s(Work.chunk(0, 512)) < CostLaw().step_s(Work.chunk(0, 512))
    bench.scheduler.shutdown()
    assert CostLaw.read(tmp_path / "law.json") == learned
    assert json.loads((tmp_path / "law.json").read_text())["base_s"] == learned.base_s
    assert CostLaw.read(tmp_path / "law.decode.json") != CostLaw(), "its output was decoded"
