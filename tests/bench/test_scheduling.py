"""What the benches of scheduling make of their times."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.worker.pacer import STEP_LOG
from tests.bench import burst, fairness, mixed, steps
from tests.bench.burst import PROMPT_TOKENS, Burst
from tests.bench.fairness import Delays
from tests.bench.mixed import Measured, Round
from tests.bench.steps import WARM_UP_STEPS, StepTime
from tests.bench.timing import Timed, quantile, timed


def answers(*first_token_s: float, gaps_s: tuple[float, ...] = (0.01,)) -> list[Timed]:
    return [Timed(first_s, gaps_s) for first_s in first_token_s]


def test_an_answer_has_one_gap_less_than_tokens() -> None:
    async def three() -> AsyncIterator[int]:
        for token in range(3):
            yield token

    answer = asyncio.run(timed(three(), 0.0))
    assert (answer.tokens, len(answer.gaps_s)) == (3, 2)
    assert answer.first_token_s > 0 <= min(answer.gaps_s)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 6), (0.95, 10), (1.0, 10)])
def test_a_quantile_is_one_of_the_values(share: float, value: int) -> None:
    assert quantile(range(10, 0, -1), share) == value


def test_the_burst_is_judged_by_its_mean_and_by_its_latest_long_prompt() -> None:
    count = len(PROMPT_TOKENS)
    in_turn = Burst(answers(*[2.0] * count))
    first_long = PROMPT_TOKENS.index(900)
    late = [1.0] * count
    late[first_long] = 2.5
    short_is_late = [1.0] * count
    short_is_late[PROMPT_TOKENS.index(60)] = 99.0
    assert Burst(answers(*short_is_late)).latest_long_s == 1.0
    *_, mean, latest = burst.rows([Burst(answers(*late))], [in_turn])
    assert mean.value == pytest.approx((count - 1 + 2.5) / (2 * count))
    assert (mean.kept, latest.kept) == (True, False)


def test_a_short_prompt_may_be_delayed_by_its_share_and_a_step() -> None:
    alone = answers(0.3, 0.3)
    (equal, double) = fairness.rows(
        [Delays(1.0, alone, answers(1.09, 1.09)), Delays(2.0, alone, answers(1.09, 1.09))]
    )
    assert equal.value == pytest.approx(0.79 / 0.8)
    assert double.value == pytest.approx(0.79 / 0.65)
    assert (equal.kept, double.kept) == (True, False)


def test_ratios_to_stock_are_taken_round_by_round() -> None:
    slow, fast = answers(2.0, gaps_s=(0.4,)), answers(1.0, gaps_s=(0.1,))
    stock = Measured("stock", [Round(fast, fast), Round(slow, slow), Round(slow, slow)])
    ours = Measured("pair", [Round(slow, fast), Round(fast, slow), Round(fast, slow)])
    itl, ttft = mixed.rows(stock, [ours])[-2:]
    assert (itl.value, ttft.value) == (1.0, 1.0)
    assert (itl.kept, ttft.kept) == (False, True)


def test_steps_are_read_from_a_workers_log_and_the_first_are_left_out() -> None:
    line = STEP_LOG % (160, 0.0931, 0.095, 0.051, 1.0)
    slow = STEP_LOG % (64, 0.9, 0.1, 0.3, 1.25)
    log = "\n".join([f'{{"message": "{slow}"}}'] * WARM_UP_STEPS + [line] * 19 + [slow] * 2)
    found = StepTime.all_of(log)
    assert len(found) == 21
    assert found[0] == StepTime(0.0931, 0.095, 0.051)
    (row,) = steps.rows("prompts", found, budget_s=0.1)
    assert row.value == pytest.approx(3.0)
    assert not row.kept
