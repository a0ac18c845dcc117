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

PATHS = tuple(fuzz.BODIES)
SLICE = 300


bounded = settings(
    max_examples=max(SLICE, settings.default.max_examples), suppress_health_check=list(HealthCheck)
)


@bounded
@given(data=st.data())
async def test_a_body_is_answered_or_refused_and_never_breaks(data: Any, stack: Stack) -> None:
    await sent(stack, *data.draw(fuzz.requests(stack.model, PATHS)))


@bounded
@given(data=st.data())
async def test_nor_does_it_break_a_model_that_thinks(data: Any, thinker: Stack) -> None:
    await sent(thinker, *data.draw(fuzz.requests(thinker.model, PATHS)))


async def sent(stack: Stack, path: str, body: bytes) -> None:
    """Send a body; a refusal has its shape, and leaves no trace."""
    stack.source.script = lambda _: stack.dialect.says("Hello")
    house = stack.house
    async with house.session.post(f"{house.url}{path}", data=body, headers=house.headers) as answer:
        told = await answer.read()
    assert answer.status < 500, told
    if answer.status == 200:
        stack.answered += "count_tokens" not in path
        return
    assert refusal_faults(path, answer.status, told, blames=_is_object(body)) == [], told
    assert not (await house.held()).holds
    assert len(house.engine.generations) == stack.answered


def _is_object(body: bytes) -> bool:
    """Whether a parameter can be to blame."""
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
