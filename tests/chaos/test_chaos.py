"""A slice of `make chaos`: one worker of each kind is killed once, the store is spoilt."""

import asyncio
from pathlib import Path

from tests.chaos import storm, verdict
from tests.e2e.stack import PAIR, housed, lives

REQUESTS = 16
SEED = 5


def test_a_storm_costs_nobody_a_wrong_answer_or_a_token(model_dir: Path) -> None:
    with housed(model_dir) as stack:
        stack.up(*PAIR, *storm.STEADY)
        blown, texts = storm.prepare(stack, SEED, texts=4)
        asked = storm.questions(blown, texts, REQUESTS)
        asyncio.run(storm.rage(stack, blown, asked, lambda _: None))
        verdict.settle(stack, blown)
        found = verdict.findings(stack, blown)
        processes = stack.processes()
        stack.down()
    assert found == []
    assert [str(process) for process in processes if lives(process)] == []
    struck = {blow.what for blow in blown.blows}
    assert {"killed prefill-1", "killed decode-1"} <= struck
    assert {seen.ending for seen in blown.seen} >= {"complete", "left"}
