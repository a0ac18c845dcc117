"""A gateway killed while it streams: what workers attest is billed within a minute, exactly once."""

import os
import signal
from decimal import Decimal
from typing import Any

import httpx
import openai

from engine.proof.attestation import DecodeAttestation, PrefillAttestation

MODEL = "smollm2-135m-instruct"
CHUNKS_BEFORE_KILL = 20
ANSWER_TOKENS_MAX = 1_500
SETTLED_WITHIN_S = 60.0


def test_what_a_killed_gateway_had_served_is_billed_as_attested_exactly_once(stack: Any, tenant: Any) -> None:
    raw = tenant.client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me a very long story about a clockmaker in the snow."}],
        temperature=0,
        stream=True,
        max_tokens=ANSWER_TOKENS_MAX,
    )
    request_id = raw.headers["x-request-id"]
    stream = iter(raw.parse())
    for _ in range(CHUNKS_BEFORE_KILL):
        next(stream)
    os.kill(stack.parts()["gateway"]["pid"], signal.SIGKILL)
    assert breaks_off(stream)

    stack.until(lambda: stack.open_holds(tenant) == 0, "the lost hold released", SETTLED_WITHIN_S)
    (row,) = stack.usage(tenant)
    assert (row["request_id"], row["status"]) == (request_id, "aborted")
    receipt = stack.receipt(request_id)
    (prefill,) = [one for one in receipt.attestations if isinstance(one, PrefillAttestation)]
    decodes = [one for one in receipt.attestations if isinstance(one, DecodeAttestation)]
    assert row["output"] == max(one.output_to for one in decodes)
    assert CHUNKS_BEFORE_KILL <= row["output"] < ANSWER_TOKENS_MAX
    assert row["cache_hit"] == prefill.hit_tokens
    assert row["cache_miss"] == prefill.prompt_tokens - prefill.hit_tokens
    assert receipt.finding is None
    assert stack.balance(tenant) == tenant.credit - Decimal(row["charge"])
    assert stack.faults_in_ledger() == []

    stack.until(lambda: stack.parts()["gateway"]["state"] == "ready", "a gateway again")
    assert stack.ask(tenant, "Name a colour.", max_tokens=4).output > 0
    assert len(stack.usage(tenant)) == 2


def breaks_off(stream: Any) -> bool:
    """Read to the end; whether it was cut off."""
    try:
        for _ in stream:
            pass
    except (openai.APIError, httpx.HTTPError):
        return True
    return False
