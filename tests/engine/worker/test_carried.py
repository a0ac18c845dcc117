"""Real vLLM: a greedy answer is the same whichever worker has drawn which of its tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from engine import wire

from .conftest import Ask, Pair, Worker

Prose = Callable[[str, int], list[int]]
TOKENS = 24


@dataclass
class Continued(Ask):
    """The last tokens sent are output of calls before."""

    carried: int = 1

    def body(self, stream: bool) -> dict[str, Any]:
        body = super().body(stream)
        body["kv_transfer_params"][wire.OUTPUT_FROM] = self.carried
        return body


# 640 tokens end with a block, so that all of the prompt is loaded; 65 leave one token behind a block.
@pytest.mark.parametrize(
    ("chapter", "count"), [("execmodel", 1100), ("with", 260), ("typesmapping", 640), ("types", 65)]
)
def test_a_greedy_answer_does_not_depend_on_who_drew_its_first_token(
    worker_pair: Pair, prose: Prose, chapter: str, count: int
) -> None:
    ids = prose(chapter, count)
    prefill, decode = worker_pair.prefill, worker_pair.decode
    alone = decode.ask(Ask(ids, stage="both", salt=f"alone-{chapter}", max_tokens=TOKENS))
    split = f"split-{chapter}"
    first = prefill.ask(Ask(ids, salt=split))
    drawn_by_decode = decode.ask(Ask(ids, stage="decode", salt=split, max_tokens=TOKENS))
    assert first.ids + carried_on(decode, ids, first.ids, split) == alone.ids
    assert drawn_by_decode.ids == alone.ids
    cold = f"nowhere-{chapter}"
    assert first.ids + carried_on(prefill, ids, first.ids, cold) == alone.ids, "nothing was stored"
    assert first.ids + carried_on(prefill, ids, first.ids, cold) == alone.ids, "on the device"
    assert first.ids + carried_on(decode, ids, first.ids, cold) == alone.ids, "in the store"


def carried_on(worker: Worker, ids: list[int], drawn: list[int], salt: str) -> list[int]:
    """The rest of an answer from a worker that is sent what was drawn of it."""
    sent, rest = [*ids, *drawn], TOKENS - len(drawn)
    return worker.ask(Continued(sent, stage="decode", salt=salt, max_tokens=rest, carried=len(drawn))).ids
