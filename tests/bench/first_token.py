"""Time to first token, stored and cold, after everything was stopped and started again.

Prompts are stored, the stack goes down and comes up with empty device caches, and stored prompts are then
asked in turn with new ones of the same length: both meet the same machine. Lengths lie around their nominal
value, because what is left to compute of a stored prompt is what is behind its last full block, 1 to 64
tokens.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median

from rich.console import Console
from tokenizers import Tokenizer

from admin.stack import model
from tests.bench.prompts import prompt_ids
from tests.bench.row import Row
from tests.bench.stack import Stack, Told, own_stack
from tests.engine.worker.conftest import ROOT

# Nominal prompt tokens, and what a stored prompt may take of a cold one's time.
RATIO_MAX = {512: 1 / 3, 2_048: 1 / 8, 4_096: 1 / 15}
AROUND_TOKENS = (-26, -13, 0, 13, 26)
# The first requests of a process pay for what is loaded lazily: one by each way through the workers.
WARM_UP_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Pair:
    """Two prompts of one length, one after the other."""

    stored: Told
    cold: Told

    @property
    def ratio(self) -> float:
        """Of their times to first token."""
        return self.stored.first_token_s / self.cold.first_token_s


class Texts:
    """Texts that nobody has asked before, by the tokens they are as a chat."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._numbers = count(1)
        self._around_tokens = 0

    def learn(self, text: str, prompt_tokens: int) -> None:
        """Take in how many tokens a text was as a chat: the recipe puts some around it."""
        self._around_tokens = prompt_tokens - len(self._tokenizer.encode(text).ids)

    def take(self, tokens: int) -> str:
        """A new text; a cut word may make it a token more or less."""
        ids = prompt_ids(self._tokenizer, next(self._numbers), tokens - self._around_tokens)
        return str(self._tokenizer.decode(ids))


def rows(tokens: int, pairs: Sequence[Pair]) -> list[Row]:
    """One length: medians on both sides, and the median of the pairs' own ratios."""
    ratios = [pair.ratio for pair in pairs]
    name = f"first token, {tokens:,} tokens"
    return [
        _row(f"{name}, cold", [pair.cold for pair in pairs]),
        _row(f"{name}, stored, after down and up", [pair.stored for pair in pairs]),
        Row(
            f"{name}, stored : cold",
            median(ratios),
            "ratio",
            RATIO_MAX[tokens],
            f"{len(ratios)} pairs, {min(ratios):.3f} to {max(ratios):.3f}; {1 / median(ratios):.1f} times",
        ),
    ]


def _row(name: str, answers: Sequence[Told]) -> Row:
    first_s = [answer.first_token_s for answer in answers]
    hits = [answer.hit_tokens for answer in answers]
    spread = f"{min(first_s):.3f} to {max(first_s):.3f}, hits {min(hits)} to {max(hits)}"
    return Row(name, median(first_s), "s", remark=spread)


async def _store(stack: Stack, texts: Texts) -> dict[int, list[str]]:
    """Ask prompts of every length, the first of them to warm up with."""
    warm_up = texts.take(WARM_UP_TOKENS)
    texts.learn(warm_up, (await stack.chat(warm_up)).prompt_tokens)
    stored = {WARM_UP_TOKENS: [warm_up]}
    for tokens in RATIO_MAX:
        stored[tokens] = [texts.take(tokens + more) for more in AROUND_TOKENS]
        for text in stored[tokens]:
            await stack.chat(text)
        Console(stderr=True).print(f"first token: prompts of {tokens:,} tokens are stored")
    return stored


async def _pairs(stack: Stack, texts: Texts, stored: dict[int, list[str]]) -> list[Row]:
    for text in (*stored[WARM_UP_TOKENS], texts.take(WARM_UP_TOKENS)):
        await stack.chat(text)
    found = []
    for tokens in RATIO_MAX:
        pairs = []
        for more, text in zip(AROUND_TOKENS, stored[tokens], strict=True):
            pairs.append(Pair(await stack.chat(text), await stack.chat(texts.take(tokens + more))))
            Console(stderr=True).print(
                f"first token: {tokens + more:,} tokens, stored {pairs[-1].stored.first_token_s:.3f} s, "
                f"cold {pairs[-1].cold.first_token_s:.3f} s"
            )
        found += rows(tokens, pairs)
    return found


def measure() -> list[Row]:
    """Measure in a stack of the default shape."""
    folder = model.prepare_now(ROOT / ".cache")
    texts = Texts(Tokenizer.from_file(str(folder / "tokenizer.json")))
    with own_stack() as stack:
        stack.up()
        stored = asyncio.run(_store(stack, texts))
        stack.down()
        stack.up()
        return asyncio.run(_pairs(stack, texts, stored))
