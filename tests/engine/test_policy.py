"""The policy on a simulated worker: each step takes the order, hands out chunks and charges tenants.

As in the scheduler, what is behind a prompt's last full block is a step of its own.
"""

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cost import CHUNK_FLOOR_TOKENS, CostLaw, Work
from engine.policy import AGEING, FairOrder, Order, Prompt, StepBudget, share_step, stretched

LAW = CostLaw()
STEP_S = 0.1
BLOCK_TOKENS = 64


@dataclass
class Simulated:
    """A worker without decoding; ``served`` says who got how many seconds of prefill, step by step."""

    fair: FairOrder = field(default_factory=FairOrder)
    step_s: float = STEP_S
    prompts: list[Prompt] = field(default_factory=list)
    served: list[dict[str, float]] = field(default_factory=list)
    now_s: float = 0.0
    finished_s: dict[str, float] = field(default_factory=dict)

    def step(self) -> dict[str, int]:
        budget = StepBudget(LAW, self.step_s - LAW.base_s, 10_000)
        order = self.fair.order(self.prompts, LAW, budget.quantum_s)
        chunks = share_step([before_tail(prompt) for prompt in order.prompts[: order.together]], budget)
        spent: dict[str, float] = {}
        left = []
        self.now_s += LAW.base_s
        for prompt in self.prompts:
            chunk = chunks.get(prompt.request_id, 0)
            cost_s = LAW.work_s(Work.chunk(prompt.computed_tokens, chunk))
            self.now_s += cost_s
            spent[prompt.tenant] = spent.get(prompt.tenant, 0.0) + cost_s
            rest = dataclasses.replace(prompt, computed_tokens=prompt.computed_tokens + chunk)
            if rest.computed_tokens < rest.total_tokens:
                left.append(rest)
        for prompt in self.prompts:
            if prompt.request_id not in {rest.request_id for rest in left}:
                self.finished_s[prompt.request_id] = self.now_s
        self.prompts = left
        self.served.append(spent)
        for tenant, seconds in spent.items():
            self.fair.charge(tenant, seconds)
        return chunks

    def add(self, name: str, tokens: int, tenant: str = "a", weight: float = 1.0) -> Prompt:
        prompt = Prompt(name, tenant, self.now_s, 0, tokens, weight)
        self.prompts.append(prompt)
        return prompt

    def run(self) -> None:
        while self.prompts:
            self.step()


def before_tail(prompt: Prompt) -> Prompt:
    """What a step may compute of it."""
    end = (prompt.total_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    return dataclasses.replace(prompt, total_tokens=end) if prompt.computed_tokens < end else prompt


def names(order: Order) -> list[str]:
    return [prompt.request_id for prompt in order.prompts]


def test_the_cheapest_goes_first_and_equals_go_in_order_of_arrival() -> None:
    long, early, late = (
        Prompt("long", "a", 0.0, 0, 2000),
        Prompt("early", "a", 0.0, 0, 100),
        Prompt("late", "a", 1e-9, 0, 100),
    )
    assert names(FairOrder().order([long, late, early], LAW, STEP_S)) == ["early", "late", "long"]


def test_a_prompt_that_is_nearly_done_goes_before_a_shorter_one() -> None:
    nearly, short = Prompt("nearly", "a", 0.0, 1970, 2000), Prompt("short", "a", 0.0, 0, 100)
    assert names(FairOrder().order([short, nearly], LAW, STEP_S)) == ["nearly", "short"]


def test_a_short_prompt_passes_a_long_one_that_runs() -> None:
    worker = Simulated()
    worker.add("long", 4000)
    worker.step()
    worker.add("short", 60)
    chunks = worker.step()
    assert chunks["short"] == 60
    worker.run()
    assert worker.finished_s["short"] < worker.finished_s["long"]


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.integers(1, 4000),
    later=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 4000)), max_size=30),
)
def test_a_prompt_is_passed_only_by_what_came_soon_after_it(
    tokens: int, later: list[tuple[float, int]]
) -> None:
    waiting = Prompt("waiting", "a", 0.0, 0, tokens)
    bound_s = LAW.work_s(waiting.remaining) / AGEING
    others = [Prompt(f"{index}", "a", after_s, 0, count) for index, (after_s, count) in enumerate(later)]
    ordered = FairOrder().order([*others, waiting], LAW, STEP_S).prompts
    passed_by = ordered[: ordered.index(waiting)]
    assert all(prompt.arrived_s <= bound_s for prompt in passed_by)


def test_a_long_prompt_under_a_stream_of_short_ones_is_not_starved() -> None:
    """The short ones alone fill every step; the long one ends within its ageing bound and its own time."""
    worker = Simulated()
    long = worker.add("long", 1500)
    bound_s = LAW.work_s(long.remaining) / AGEING
    steps = 0
    while "long" not in worker.finished_s:
        for index in range(2):
            worker.add(f"short-{steps}-{index}", 90)
        worker.step()
        steps += 1
        assert worker.now_s < 3 * bound_s


@settings(deadline=None, max_examples=60)
@given(
    weights=st.dictionaries(st.sampled_from("abcd"), st.floats(0.25, 4), min_size=2),
    bursts=st.lists(st.integers(200, 3000), min_size=20, max_size=50),
    tokens=st.integers(1, 1500),
    warm_steps=st.integers(1, 30),
)
def test_a_burst_delays_another_tenants_prompt_by_its_share_and_one_step(
    weights: dict[str, float], bursts: list[int], tokens: int, warm_steps: int
) -> None:
    """The step that runs when the prompt comes counts in full."""
    worker = Simulated()
    others, last = sorted(weights)[:-1], max(weights)
    for tenant in others:
        for index, count in enumerate(bursts):
            worker.add(f"{tenant}-{index}", count, tenant, weights[tenant])
    for _ in range(warm_steps):
        worker.step()
    del worker.served[:-1]
    mine = worker.add("mine", tokens, last, weights[last])
    cost_s = LAW.work_s(mine.remaining)
    while "mine" not in worker.finished_s:
        worker.step()
    for tenant in others:
        got_s = sum(step.get(tenant, 0.0) for step in worker.served)
        assert got_s <= cost_s * weights[tenant] / weights[last] + STEP_S


@settings(deadline=None, max_examples=60)
@given(tokens=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2000)), min_size=1, max_size=20))
def test_backlogged_tenants_are_served_alike(tokens: list[tuple[str, int]]) -> None:
    worker = Simulated()
    for index, (tenant, count) in enumerate(tokens):
        worker.add(f"{index}", count, tenant)
    got = {"a": 0.0, "b": 0.0}
    while {prompt.tenant for prompt in worker.prompts} == {"a", "b"}:
        assert abs(got["a"] - got["b"]) <= 2 * STEP_S
        worker.step()
        for tenant, seconds in worker.served[-1].items():
            got[tenant] += seconds


def test_a_step_is_not_filled_with_what_is_ahead_of_another_tenants_prompt_in_it() -> None:
    """`b` was served alone for a step; as soon as it is no more ahead, they share again."""
    fair = FairOrder()
    short, long = Prompt("short", "a", 0.0, 0, 60), Prompt("long", "b", 0.0, 0, 2000)
    fair.order([long], LAW, STEP_S)
    fair.charge("b", STEP_S)
    order = fair.order([long, short], LAW, STEP_S)
    assert (names(order), order.together) == (["short", "long"], 1)
    fair.charge("a", STEP_S)
    assert fair.order([long, short], LAW, STEP_S).together == 2


def test_prompts_of_one_tenant_always_share_a_step() -> None:
    fair = FairOrder()
    prompts = [Prompt(f"{index}", "a", 0.0, 0, 60) for index in range(9)]
    assert fair.order(prompts, LAW, STEP_S).together == 9


def test_the_weight_that_came_last_counts() -> None:
    fair = FairOrder()
    first, second = Prompt("1", "a", 0.0, 0, 2000, weight=4.0), Prompt("2", "a", 1.0, 0, 2000, weight=0.5)
    other = Prompt("3", "b", 0.0, 0, 2000)
    fair.order([second, first, other], LAW, STEP_S)
    fair.charge("a", 1.0)
    fair.charge("b", 1.5)
    ordered = fair.order([second, first, other], LAW, STEP_S).prompts
    assert ordered[0] is other, "1 s at half the weight are 2 s"


def test_a_prompt_whose_blocks_are_stored_goes_by_what_is_left_and_takes_no_chunk() -> None:
    warm, cold = Prompt("warm", "a", 0.0, 1984, 2000, loads=True), Prompt("cold", "a", 0.0, 0, 200)
    order = FairOrder().order([cold, warm], LAW, STEP_S)
    assert names(order) == ["warm", "cold"]
    chunks = share_step(order.prompts, StepBudget(LAW, STEP_S - LAW.base_s, 512))
    assert list(chunks) == ["cold"]


def test_a_tenant_saves_nothing_up_by_being_idle() -> None:
    worker = Simulated()
    for index in range(40):
        worker.add(f"a-{index}", 1000, "a")
    for _ in range(50):
        worker.step()
    del worker.served[:]
    for index in range(40):
        worker.add(f"b-{index}", 1000, "b")
    for _ in range(40):
        worker.step()
    got = [sum(step.get(tenant, 0.0) for step in worker.served) for tenant in "ab"]
    assert got[0] == pytest.approx(got[1], rel=0.1)


def test_a_tenant_cannot_shed_what_it_was_served_by_a_short_pause() -> None:
    """While another tenant waits on, a pause of a step does not put a tenant back to the front."""
    fair = FairOrder()
    long_a, long_b = Prompt("a", "a", 0.0, 0, 2000), Prompt("b", "b", 0.0, 0, 2000)
    fair.order([long_a, long_b], LAW, STEP_S)
    fair.charge("a", 5.0)
    fair.order([long_b], LAW, STEP_S)
    assert names(fair.order([Prompt("a2", "a", 0.0, 0, 10), long_b], LAW, STEP_S)) == ["b", "a2"]


def test_the_tenants_of_the_past_are_forgotten() -> None:
    fair = FairOrder()
    for index in range(1000):
        fair.order([Prompt("x", f"tenant-{index}", 0.0, 0, 100)], LAW, STEP_S)
        fair.charge(f"tenant-{index}", 0.1)
    fair.order([], LAW, STEP_S)
    assert not fair._served


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3000)), min_size=1, max_size=12),
    step_s=st.sampled_from([0.0, 1e-9, 0.05, 0.1, 1.0]),
)
def test_every_step_makes_progress_at_any_budget(prompts: list[tuple[str, int]], step_s: float) -> None:
    worker = Simulated(step_s=step_s)
    for index, (tenant, count) in enumerate(prompts):
        worker.add(f"{index}", count, tenant)
    while worker.prompts:
        before = {prompt.request_id: prompt for prompt in worker.prompts}
        chunks = worker.step()
        first = before[next(iter(chunks))]
        assert chunks[first.request_id] >= min(CHUNK_FLOOR_TOKENS, before_tail(first).remaining.tokens)
        floor_s = LAW.step_s(Work.chunk(first.computed_tokens, CHUNK_FLOOR_TOKENS))
        assert LAW.base_s + sum(worker.served[-1].values()) <= max(step_s, floor_s) * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(
    decode=st.integers(0, 64),
    tokens_max=st.integers(1, 512),
    counts=st.lists(st.integers(1, 900), max_size=9),
)
def test_a_step_is_never_larger_than_vllm_lets_it_be(decode: int, tokens_max: int, counts: list[int]) -> None:
    budget = StepBudget(LAW, 100.0, tokens_max - decode)
    prompts = [Prompt(f"{index}", "a", 0.0, 0, count) for index, count in enumerate(counts)]
    assert sum(share_step(prompts, budget).values()) <= max(tokens_max - decode, 0)


@pytest.mark.parametrize(("fixed_s", "step_s"), [(0.01, 0.1), (0.02, 0.1), (0.024, 0.12), (0.04, 0.15)])
def test_a_step_is_stretched_where_it_is_dear_or_hurts_nobody(fixed_s: float, step_s: float) -> None:
    assert stretched(0.1, fixed_s, waited_for=True) == pytest.approx(step_s)
    assert stretched(0.1, fixed_s, waited_for=False) == pytest.approx(0.5)
