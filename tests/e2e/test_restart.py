"""`kvitto down`, `kvitto up`: what was stored is hit; what was corrupted meanwhile is recomputed, a miss."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import PAIR, lives

BLOCK_TOKENS = 64
ANSWER_TOKENS = 32
ALIKE_CHARACTERS = 20


@dataclass(frozen=True)
class Restarted:
    """What was seen before and after."""

    sound: Any
    damaged: Any
    before: dict[str, Any]
    after: dict[str, Any]
    healed: Any
    left_behind: list[str]
    balance_before: Decimal
    balance_after: Decimal


def blocks_of(stack: Any, tenant: Any) -> list[Path]:
    return sorted(path for path in stack.data_dir.rglob("*.kv") if tenant.id in path.parts)


def begin_alike(one: str, other: str) -> bool:
    """Recomputing from the middle cuts other chunks, so near ties may move later; bad KV derails at once."""
    return one[:ALIKE_CHARACTERS] == other[:ALIKE_CHARACTERS]


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.fixture(scope="module")
def restarted(stack: Any, letter: Any) -> Restarted:
    sound, damaged = stack.tenant(), stack.tenant()
    # One token of an answer fills no block: all files of this tenant are blocks of its prompt.
    whole = stack.ask(damaged, letter(12), 1).prompt // BLOCK_TOKENS
    of_prompt = blocks_of(stack, damaged)
    assert len(of_prompt) == whole
    before = {
        "sound": stack.ask(sound, letter(11), ANSWER_TOKENS),
        "damaged": stack.ask(damaged, letter(12), ANSWER_TOKENS),
    }
    balance_before = stack.balance_in_books(sound)
    processes = stack.processes()
    stack.down()
    left_behind = [str(process) for process in processes if lives(process)]
    flip_a_byte(of_prompt[whole // 2])
    stack.up(*PAIR)
    balance_after = stack.balance(sound)
    after = {
        "sound": stack.ask(sound, letter(11), ANSWER_TOKENS),
        "damaged": stack.ask(damaged, letter(12), ANSWER_TOKENS),
    }
    healed = stack.ask(damaged, letter(12), ANSWER_TOKENS)
    return Restarted(sound, damaged, before, after, healed, left_behind, balance_before, balance_after)


def test_down_leaves_no_process_behind(restarted: Restarted) -> None:
    assert restarted.left_behind == []


def test_a_long_prompt_is_still_a_hit_and_costs_less(stack: Any, restarted: Restarted) -> None:
    before, after = restarted.before["sound"], restarted.after["sound"]
    assert before.hit == 0
    assert after.hit >= 900
    assert after.hit == (before.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    charges = [Decimal(stack.event(restarted.sound, reply.request_id)["charge"]) for reply in (before, after)]
    assert charges[1] < charges[0]


def test_the_greedy_answer_from_the_store_alone_is_the_cold_one(restarted: Restarted) -> None:
    before, after = restarted.before["sound"], restarted.after["sound"]
    assert (after.text, after.output) == (before.text, before.output)


def test_another_tenant_still_gets_nothing(stack: Any, restarted: Restarted, letter: Any) -> None:
    assert stack.ask(stack.tenant(), letter(11)).hit == 0


def test_a_corrupt_block_is_recomputed_and_billed_as_a_miss(stack: Any, restarted: Restarted) -> None:
    before, after = restarted.before["damaged"], restarted.after["damaged"]
    whole = (before.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert after.hit < whole
    assert after.hit % BLOCK_TOKENS == 0
    assert begin_alike(after.text, before.text)
    event = stack.event(restarted.damaged, after.request_id)
    assert (event["cache_hit"], event["cache_miss"]) == (after.hit, before.prompt - after.hit)
    assert Decimal(event["charge"]) == stack.charge_by_hand(after, event)


def test_what_was_recomputed_is_stored_again(restarted: Restarted) -> None:
    before, healed = restarted.before["damaged"], restarted.healed
    assert healed.hit == (before.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert begin_alike(healed.text, before.text)


def test_money_and_rows_survive(stack: Any, restarted: Restarted) -> None:
    assert restarted.balance_after == restarted.balance_before
    assert [row["request_id"] for row in stack.usage(restarted.sound)] == [
        restarted.before["sound"].request_id,
        restarted.after["sound"].request_id,
    ]
    assert stack.faults_in_ledger() == []
