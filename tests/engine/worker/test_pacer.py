"""The policy of one worker between steps: what it learns from them, and what it plans then."""

from pathlib import Path

import pytest

from engine.cost import CHUNK_FLOOR_TOKENS, CostLaw, Work
from engine.policy import Prompt
from engine.worker.pacer import Pacer, Step, StepPlan

# A machine whose steps cost more before they compute anything than the default law expects.
TRUTH, DECODE_TRUTH = CostLaw(0.045, 6e-4, 3e-7), CostLaw(0.045, 4e-4, 3e-6)
BUDGET_S = 0.1
STREAMS = Work(8, 8 * 200.0)


def plan(pacer: Pacer, context_tokens: int) -> StepPlan:
    prompt = Prompt("long", "ten_a", 0.0, context_tokens, 100_000)
    return pacer.plan([prompt], [], STREAMS, 2048)


def run(pacer: Pacer, steps: int) -> list[int]:
    """Steps beside streams, each as long as the machine takes for it; answers their chunks."""
    chunks: list[int] = []
    for _ in range(steps):
        planned = plan(pacer, sum(chunks) % 2000)
        chunk = planned.placed["long"]
        work = Work.chunk(sum(chunks) % 2000, chunk)
        seconds = TRUTH.step_s(work) + DECODE_TRUTH.work_s(STREAMS)
        pacer.measured(Step(work, chunk, STREAMS, planned.least_s), seconds)
        chunks.append(chunk)
    return chunks


@pytest.fixture
def pacer(tmp_path: Path) -> Pacer:
    return Pacer(BUDGET_S, tmp_path / "law.json")


def test_decoding_tells_what_chunks_of_one_size_cannot(pacer: Pacer) -> None:
    assert run(pacer, 60)[-1] == CHUNK_FLOOR_TOKENS
    for _ in range(20):
        pacer.measured(Step(Work(), 0, STREAMS, 0.0), DECODE_TRUTH.step_s(STREAMS))
    assert run(pacer, 60)[-1] > CHUNK_FLOOR_TOKENS
    assert pacer.fixed_s(STREAMS) == pytest.approx(DECODE_TRUTH.step_s(STREAMS), rel=0.2)


def test_the_law_of_chunks_does_not_learn_what_decoding_beside_them_costs(pacer: Pacer) -> None:
    """Many long streams, which take longer than any chunk."""
    many = Work(64, 64 * 2000.0)
    for streams in (STREAMS, many) * 20:
        pacer.measured(Step(Work(), 0, streams, 0.0), DECODE_TRUTH.step_s(streams))
    for tokens in (64, 128, 256, 512) * 10:
        work = Work.chunk(0, tokens)
        pacer.measured(Step(work, tokens, many, 0.0), TRUTH.step_s(work) + DECODE_TRUTH.work_s(many))
    assert pacer.law.step_s(Work.chunk(0, 512)) == pytest.approx(TRUTH.step_s(Work.chunk(0, 512)), rel=0.05)


def test_both_laws_are_kept_between_starts(pacer: Pacer, tmp_path: Path) -> None:
    for tokens in (64, 128, 256, 512) * 10:
        work = Work.chunk(0, tokens)
        pacer.measured(Step(work, tokens, Work(), 0.0), TRUTH.step_s(work))
        pacer.measured(Step(Work(), 0, STREAMS, 0.0), DECODE_TRUTH.step_s(STREAMS))
    pacer.close()
    again = Pacer(BUDGET_S, tmp_path / "law.json")
    assert (again.law, again.fixed_s(STREAMS)) == (pacer.law, pacer.fixed_s(STREAMS))


def test_a_step_kept_short_for_a_prompt_that_was_not_admitted_is_followed_by_a_full_one(pacer: Pacer) -> None:
    """Its look-up may not have been answered, or there was no memory for it: nobody idles for it twice."""
    burst, mine = Prompt("burst", "ten_a", 0.0, 0, 1500), Prompt("mine", "ten_b", 1.0, 0, 60)
    pacer.scheduled(pacer.plan([], [burst], Work(), 2048), {"burst": Work.chunk(0, 512)})
    planned = pacer.plan([], [burst, mine], Work(), 2048)
    assert (planned.chunk("mine", 0, 60), planned.chunk("burst", 0, 1500)) == (60, 0)
    pacer.scheduled(planned, {})
    assert pacer.plan([], [burst, mine], Work(), 2048).chunk("burst", 0, 1500) > 0


def test_a_step_in_which_others_begin_to_load_their_blocks_is_not_stretched(pacer: Pacer) -> None:
    burst, warm = Prompt("burst", "ten_a", 0.0, 64, 1500), Prompt("warm", "ten_a", 0.0, 960, 1000, loads=True)
    alone = pacer.plan([burst], [], Work(), 2048).placed["burst"]
    assert pacer.plan([burst], [warm], Work(), 2048).placed["burst"] < alone / 2
