import json
from pathlib import Path
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cost import CHUNK_FLOOR_TOKENS, CostFit, CostLaw, Work

LAWS = st.builds(
    CostLaw,
    base_s=st.floats(1e-4, 0.1),
    token_s=st.floats(1e-6, 2e-3),
    pair_s=st.floats(0, 2e-6),
)
CONTEXTS = st.integers(0, 100_000)
# Chunks and contexts that a worker meets in its first minutes.
MET = [(tokens, context) for tokens in (32, 64, 128, 256, 512) for context in (0, 512, 1024, 2048, 4000)]


def seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311 -- noise that can be repeated, no secret


def measure(law: CostLaw, random_: Random, rounds: int, outliers: float = 0.0) -> list[tuple[Work, float]]:
    """Steps of a noisy machine: 5 % of noise, and a share of stalls of two to ten times."""
    steps = []
    for _ in range(rounds):
        for tokens, context in random_.sample(MET, len(MET)):
            work = Work.chunk(context, tokens)
            stall = random_.uniform(2, 10) if random_.random() < outliers else 1.0
            steps.append((work, law.step_s(work) * random_.gauss(1, 0.05) * stall))
    return steps


def worst_error(fitted: CostLaw, law: CostLaw) -> float:
    works = [Work.chunk(context, tokens) for tokens, context in MET]
    return max(abs(fitted.step_s(work) / law.step_s(work) - 1) for work in works)


def learned(prior: CostLaw, steps: list[tuple[Work, float]]) -> CostLaw:
    fit = CostFit(prior)
    for work, seconds in steps:
        fit.learn(work, seconds)
    return fit.law


def test_work_of_two_chunks_is_the_work_of_one() -> None:
    assert Work.chunk(100, 30) + Work.chunk(130, 70) == Work.chunk(100, 100)


@given(law=LAWS, step_s=st.floats(0, 2), context=CONTEXTS, wanted=st.integers(1, 100_000))
def test_a_chunk_fills_the_budget_and_does_not_exceed_it(
    law: CostLaw, step_s: float, context: int, wanted: int
) -> None:
    left_s = step_s - law.base_s
    chunk = law.chunk(left_s, context, wanted, 0)
    assert chunk == wanted or chunk % 32 == 0
    if chunk:
        assert law.step_s(Work.chunk(context, chunk)) <= step_s * (1 + 1e-9)
    if chunk < wanted:
        assert law.step_s(Work.chunk(context, chunk + 32)) > step_s * (1 - 1e-9)


@given(law=LAWS, left_s=st.floats(-5, 5), context=CONTEXTS, wanted=st.integers(1, 4096))
def test_a_chunk_is_never_below_the_floor_nor_above_what_is_wanted(
    law: CostLaw, left_s: float, context: int, wanted: int
) -> None:
    chunk = law.chunk(left_s, context, wanted, CHUNK_FLOOR_TOKENS)
    assert min(wanted, CHUNK_FLOOR_TOKENS) <= chunk <= wanted


def test_without_time_there_are_no_tokens() -> None:
    assert CostLaw().tokens_within(0.0, 0) == CostLaw().tokens_within(-1.0, 10) == 0


def some_law(random_: Random) -> CostLaw:
    return CostLaw(random_.uniform(1e-4, 0.1), random_.uniform(1e-6, 2e-3), random_.uniform(0, 2e-6))


def test_the_law_of_an_unknown_machine_is_found_among_outliers() -> None:
    """One step in ten takes several times as long. An estimate from noise has no hard bound.

    Of a hundred machines, the worst prediction over all that was met is off by less than 10 % for half of
    them and by less than 20 % for nineteen in twenty (of 1,500 others: 6 % and 16 %, the worst 26 %).
    """
    errors = []
    for seed in range(100):
        random_ = seeded(seed)
        law = some_law(random_)
        errors.append(worst_error(learned(CostLaw(), measure(law, random_, rounds=12, outliers=0.1)), law))
    assert median(errors) < 0.1
    assert sorted(errors)[94] < 0.2


@settings(derandomize=True, max_examples=40)
@given(seed=st.integers(0, 2**32), stall=st.floats(5, 1000))
def test_two_outliers_hardly_move_the_law_of_a_noisy_machine(seed: int, stall: float) -> None:
    law = CostLaw()
    steps = measure(law, seeded(seed), rounds=4)
    before = learned(law, steps)
    work = Work.chunk(2048, 256)
    after = learned(law, [*steps, *[(work, law.step_s(work) * stall)] * 2])
    assert worst_error(after, before) < 0.15


def test_a_machine_that_becomes_slower_is_followed() -> None:
    law, slower = CostLaw(), CostLaw(0.02, 1.2e-3, 8e-7)
    steps = [*measure(law, seeded(1), 12), *measure(slower, seeded(2), 12)]
    assert worst_error(learned(law, steps), slower) < 0.1


def test_a_slowdown_of_the_whole_machine_is_believed_after_a_few_steps_of_any_kind() -> None:
    law, work = CostLaw(), Work.chunk(1024, 128)
    steps = [*measure(law, seeded(4), 8), *[(work, 2 * law.step_s(work))] * 6]
    assert worst_error(learned(law, steps), law.times(2)) < 0.15


def test_many_steps_of_one_kind_do_not_wash_out_the_others() -> None:
    law = CostLaw(0.03, 2e-4, 1e-7)
    work = Work.chunk(0, 64)
    steps = [*measure(law, seeded(3), 6), *[(work, law.step_s(work) * 1.05)] * 5000]
    assert worst_error(learned(CostLaw(), steps), law) < 0.15


def late_steps(spread: float, law: CostLaw, rounds: int = 10) -> tuple[float, CostFit]:
    """Fits a machine with this much noise; the share of steps that a budget over its margin is missed by."""
    fit, random_, late, count = CostFit(law), seeded(6), 0, 0
    for _ in range(rounds):
        for tokens, context in random_.sample(MET, len(MET)):
            work = Work.chunk(context, tokens)
            # As if the chunk had been cut to what the law gives for the budget over the margin.
            expected_s = fit.law.step_s(work)
            seconds = law.step_s(work) * (1 + abs(random_.gauss(0, spread)))
            count, late = count + 1, late + (seconds > 1.1 * expected_s * fit.margin)
            fit.learn(work, seconds)
    return late / count, fit


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.15, 0.3])
def test_with_its_margin_one_step_in_twenty_is_late_by_more_than_a_tenth(spread: float) -> None:
    share, fit = late_steps(spread, CostLaw())
    assert share < 0.1
    assert fit.margin == 1.0 or spread > 0.05


def test_a_margin_is_bounded_and_needs_some_steps() -> None:
    fit, work = CostFit(CostLaw()), Work.chunk(0, 64)
    for seconds in [*[0.05] * 9, *[5.0] * 10]:
        fit.learn(work, seconds)
        assert fit.margin == 1.0
    fit.learn(work, 50.0)
    assert fit.margin == 1.5


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_no_clock_can_have_measured_is_ignored(seconds: float) -> None:
    fit = CostFit(CostLaw())
    fit.learn(Work.chunk(0, 64), seconds)
    fit.learn(Work(), 1.0)
    assert fit.law == CostLaw()


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 100_000), st.floats(1e-6, 1e3)), max_size=40)
)
def test_whatever_is_measured_the_law_stays_a_law(steps: list[tuple[int, int, float]]) -> None:
    law = learned(CostLaw(), [(Work.chunk(context, tokens), seconds) for tokens, context, seconds in steps])
    assert 0 < law.step_s(Work.chunk(0, 1)) <= law.step_s(Work.chunk(0, 1000))


def test_a_law_survives_its_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    law, file = CostLaw(0.5, 0.25, 0.0), tmp_path / "cost" / "machine.json"
    law.write(file)
    law.write(file)
    assert CostLaw.read(file) == law
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "\x00",
        json.dumps({"base_s": -1, "token_s": 1, "pair_s": 1}),
        json.dumps({"base_s": 1, "token_s": 0, "pair_s": 1}),
        json.dumps({"base_s": 1, "token_s": None, "pair_s": 1}),
        '{"base_s": NaN, "token_s": 1, "pair_s": 1}',
        '{"base_s": 1e999, "token_s": 1, "pair_s": 1}',
    ],
)
def test_a_file_that_holds_no_law_gives_the_default(tmp_path: Path, text: str) -> None:
    file = tmp_path / "law.json"
    file.write_text(text)
    assert CostLaw.read(file) == CostLaw()
    assert CostLaw.read(tmp_path / "none.json") == CostLaw()
