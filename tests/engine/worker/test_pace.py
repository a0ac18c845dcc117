"""One real vLLM worker with a step budget, whose step could hold the whole of a long prompt."""

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from engine.cost import CostLaw, Work

from .conftest import Answer, Ask, Place, Worker, wait_a_little

Prose = Callable[[str, int], list[int]]
LONG_TOKENS = 3000
STEP_S = 0.1


def test_with_a_step_budget_a_short_prompt_passes_a_long_one_and_the_law_is_kept(
    place: Place, prose: Prose
) -> None:
    worker = place.worker("prefill-0", "prefill")
    worker.spec = dataclasses.replace(worker.spec, batched_tokens_max=4096, step_budget_s=STEP_S)
    long, short = Ask(prose("specialnames", LONG_TOKENS)), Ask(prose("with", 60), tenant="ten_other")
    try:
        worker.start().wait_ready()
        worker.ask(Ask(prose("types", 60)))
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(timed, worker, long)
            while worker.running() < 1:
                assert not first.done()
                wait_a_little(worker.process)
            second = threads.submit(timed, worker, short)
            (long_answer, long_end_s), (short_answer, short_end_s) = first.result(), second.result()
        log = worker.log.read_text()
    finally:
        worker.stop()
    assert short_end_s < long_end_s
    assert (long_answer.attested.prompt_tokens, short_answer.attested.prompt_tokens) == (LONG_TOKENS, 60)
    assert "policy failed" not in log
    (law_file,) = (path for path in (place.folder / "cost").iterdir() if ".decode" not in path.name)
    law = CostLaw.read(law_file)
    assert law != CostLaw()
    assert law.step_s(Work.chunk(0, LONG_TOKENS)) > 3 * STEP_S, "it was cut into many steps"


def timed(worker: Worker, ask: Ask) -> tuple[Answer, float]:
    answer = worker.ask(ask)
    return answer, time.monotonic()
