"""Log probabilities, from the engine's token ids to what surfaces write."""

from collections.abc import Sequence

from engine.api import TokenLogprobs
from recipe.events import Drawn, Likely
from recipe.tokenizer import Tokenizer


class Teller:
    """Tells of drawn tokens by their bytes.

    Args:
        tokenizer: the model's.
        stop_token_ids: those that end the answer are no part of it, and not told.
    """

    def __init__(self, tokenizer: Tokenizer, stop_token_ids: Sequence[int]) -> None:
        self._bytes = tokenizer.decode_bytes
        self._stop_token_ids = frozenset(stop_token_ids)

    def drawn(self, logprobs: Sequence[TokenLogprobs], reasoning_tokens: int) -> list[Drawn]:
        """One event a token; the first ``reasoning_tokens`` of them belong to the reasoning."""
        return [
            Drawn(
                self._likely(token.token_id, token.logprob),
                tuple(self._likely(token_id, logprob) for token_id, logprob in token.top),
                reasoning=place < reasoning_tokens,
            )
            for place, token in enumerate(logprobs)
            if token.token_id not in self._stop_token_ids
        ]

    def _likely(self, token_id: int, logprob: float) -> Likely:
        return Likely(self._bytes((token_id,)), logprob)
