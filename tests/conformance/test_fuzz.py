"""Whatever is sent, nothing breaks: it is answered, or refused in its protocol's shape, and costs nothing.

`make fuzz` sends 10,000 bodies, a test run some hundred.
"""

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance import fuzz
from tests.conformance.shapes import refusal_faults
from tests.conformance.stack import Stack

PATHS = ("/v1/chat/completions",)
SLICE = 300


@settings(max_examples=max(SLICE, settings.default.max_examples), suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_a_body_is_answered_or_refused_and_never_breaks(data: Any, stack: Stack) -> None:
    stack.source.script = lambda _: stack.dialect.says("Hello")
    path, body = data.draw(fuzz.requests(stack.model, PATHS))
    before = len(stack.recorder.exchanges)
    async with stack.house.session.post(
        f"{stack.house.url}{path}", data=body, headers=stack.house.headers
    ) as answer:
        told = await answer.read()
    assert len(stack.recorder.exchanges) == before + 1
    assert answer.status < 500, told
    if answer.status == 200:
        return
    assert refusal_faults(path, answer.status, told, blames=_is_object(body)) == [], told
    held = await stack.house.held()
    assert held.held == 0


def _is_object(body: bytes) -> bool:
    """Whether a parameter can be to blame."""
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
