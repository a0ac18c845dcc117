"""What the second request gets from the prefix store, and who does not get it."""

from decimal import Decimal
from typing import Any

import pytest

BLOCK_TOKENS = 64
PROMPTS = (
    "Explain in simple words why the sky is blue during the day.",
    "Write two sentences about a fisherman who finds an old map.",
    "List three things a traveller should pack for a winter journey, and say why.",
)


def test_a_long_prompt_sent_twice_hits_costs_less_and_is_another_tenants_miss(
    stack: Any, tenant: Any, letter: Any
) -> None:
    text = letter(1)
    first = stack.ask(tenant, text)
    assert first.prompt >= 1_000
    assert first.hit == 0

    second = stack.ask(tenant, text)
    assert second.hit >= 900
    assert second.hit % BLOCK_TOKENS == 0
    assert second.hit == (first.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert second.text == first.text
    charges = [Decimal(row["charge"]) for row in stack.usage(tenant)]
    assert charges[1] < charges[0]

    assert stack.ask(stack.tenant(), text).hit == 0


def test_a_user_id_splits_the_space_of_its_tenant(stack: Any, tenant: Any, letter: Any) -> None:
    text = letter(2)
    assert stack.ask(tenant, text, extra_body={"user_id": "anna"}).hit == 0
    assert stack.ask(tenant, text, extra_body={"user_id": "berit"}).hit == 0
    assert stack.ask(tenant, text, extra_body={"user_id": "anna"}).hit >= 900


def test_the_next_turn_hits_what_was_generated(stack: Any, tenant: Any, letter: Any) -> None:
    turns = [
        {"role": "user", "content": letter(3)[:1_500] + "\nGo on with the chronicle, ten lines or more."}
    ]
    first = stack.ask(tenant, "", max_tokens=160, messages=turns)
    assert first.output >= 2 * BLOCK_TOKENS, "the story is too short to fill a block"
    turns += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Thank you. And then?"},
    ]
    second = stack.ask(tenant, "", max_tokens=4, messages=turns)
    assert second.hit > first.prompt
    assert second.hit % BLOCK_TOKENS == 0


@pytest.mark.parametrize("text", PROMPTS)
def test_greedy_answers_are_the_same_cold_warm_and_in_another_scope(
    stack: Any, tenant: Any, text: str
) -> None:
    """Cold: decode is fed by prefill's fresh blocks. Warm: both are fed by the store."""
    long_enough = f"{text} {'Take your time and answer as you would to a curious child. ' * 8}"
    cold = stack.ask(tenant, long_enough, max_tokens=48)
    warm = stack.ask_streamed(tenant, long_enough, max_tokens=48)
    cold_again = stack.ask_streamed(tenant, long_enough, max_tokens=48, extra_body={"user_id": "other"})
    assert (cold.hit, cold_again.hit) == (0, 0)
    assert warm.hit > 0
    assert (warm.text, warm.output) == (cold.text, cold.output)
    assert (cold_again.text, cold_again.output) == (cold.text, cold.output)
