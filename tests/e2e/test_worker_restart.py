"""`kvitto restart` while a stream runs there: it ends as it would have, others are served meanwhile."""

import subprocess
import sys
from decimal import Decimal
from typing import Any

MODEL = "smollm2-135m-instruct"
CHUNKS_BEFORE_RESTART = 5
ANSWER_TOKENS = 300


def test_a_worker_restarted_under_a_running_stream_loses_nothing(stack: Any, tenant: Any) -> None:
    before = stack.parts()["decode-1"]
    raw = tenant.client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me a very long story about a ferry and its captain."}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=ANSWER_TOKENS,
    )
    stream = iter(raw.parse())
    chunks = [next(stream) for _ in range(CHUNKS_BEFORE_RESTART)]
    command = [sys.executable, "-m", "admin.cli.main", "restart", "decode-1"]
    restarting = subprocess.Popen(
        [*command, "--data-dir", str(stack.data_dir)],
        env=stack.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        stack.until(lambda: stack.parts()["decode-1"]["draining"], "a draining worker")
        beside = stack.ask(tenant, "Name a colour.", max_tokens=4)
        chunks += list(stream)
        said = restarting.communicate(timeout=240)[0]
    finally:
        restarting.kill()
        restarting.communicate()
    assert restarting.returncode == 0, said
    assert "not said" not in said
    assert beside.output > 0

    finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert len(finishes) == 1
    usage = [chunk.usage for chunk in chunks if chunk.usage][-1]
    event = stack.event(tenant, raw.headers["x-request-id"])
    assert event["status"] == "completed"
    assert event["output"] == usage.completion_tokens

    after = stack.parts()["decode-1"]
    assert after["pid"] != before["pid"]
    assert (after["state"], after["draining"], after["restarts"]) == ("ready", False, before["restarts"] + 1)
    assert stack.ask(tenant, "Name a town.", max_tokens=4).output > 0
    spent = sum(Decimal(row["charge"]) for row in stack.usage(tenant))
    assert stack.balance(tenant) == tenant.credit - spent
    assert stack.requests_in_workers() == 0
