"""What the measurements stand on: prompts that share nothing, ratios by prompt, limits that can break."""

from itertools import combinations
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.proof.prefix import block_hashes
from tests.bench.first_token import PROMPTS, Answers, rows
from tests.bench.prompts import TOKENS, prompt
from tests.bench.row import Row


def test_prompts_have_their_length_and_share_no_block(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = [tokenizer.encode(prompt(number)).ids for number in range(1, PROMPTS + 1)]
    assert all(TOKENS <= len(one) <= 1.1 * TOKENS for one in ids)
    blocks = [set(block_hashes(one, "salt")) for one in ids]
    assert all(not first & second for first, second in combinations(blocks, 2))


def test_the_ratio_is_taken_prompt_by_prompt() -> None:
    cold = Answers(first_token_s=[1.0, 2.0, 4.0], prompt_tokens=[1500] * 3, hit_tokens=[0] * 3)
    stored = Answers(first_token_s=[0.5, 0.2, 0.4], prompt_tokens=[1500] * 3, hit_tokens=[1472] * 3)
    ratio = rows(cold, stored)[-1]
    assert ratio.value == pytest.approx(0.1)
    assert ratio.kept


@pytest.mark.parametrize(("limit", "kept"), [(None, True), (2.0, True), (1.0, True), (0.9, False)])
def test_a_limit_is_the_most_a_value_may_be(limit: float | None, kept: bool) -> None:
    assert Row("x", 1.0, "s", limit).kept is kept
