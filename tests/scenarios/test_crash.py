"""A slice of `make chaos`: one short crash storm; what was killed in it has its leases run out at once."""

import asyncio
from pathlib import Path

from tests.e2e.stack import housed, lives
from tests.scenarios import books, crash, verdict

SEED = 7
LASTS_S = 8.0


def test_whatever_dies_each_request_is_charged_once_as_its_client_saw_it(model_dir: Path) -> None:
    with housed(model_dir) as stack:
        stack.up(*crash.SHAPE)
        blown = crash.prepare(stack, SEED)
        asyncio.run(crash.rage(stack, blown, LASTS_S, lambda _: None))
        books.settle(stack, blown, hurried=True)
        found = verdict.findings(blown.errands, books.read(stack, blown))
        processes = stack.processes()
        stack.down()
    assert found == []
    assert [str(process) for process in processes if lives(process)] == []
    struck = {blow.what.partition("-")[0] for blow in blown.blows}
    assert struck == {"killed gateway", "killed postgres", "wiped valkey", "stopped gateway"}
    assert any(seen.ending == "complete" for errand in blown.errands for seen in errand.seen)
