"""vLLM's scheduler with one change: the tail of a prompt behind its last full block is a step of its own.

A warm prompt loads its full blocks and computes the tail. A cold one would compute the tail in the middle of
a larger chunk, whose matrix products round differently, and greedy answers could part at a near tie. Split
here, cold, warm and handed-off prompts run the same last step over the same bytes. It costs a cold prompt one
small step. Chunks fitted to a time budget, cost order and fairness come with issue 3, on the same hook.
"""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


def split_tail(computed_tokens: int, chunk_tokens: int, total_tokens: int, block_tokens: int) -> int:
    """The chunk, cut at the last block boundary that leaves a token to compute; never cut to nothing."""
    boundary = (total_tokens - 1) // block_tokens * block_tokens
    crosses = computed_tokens < boundary < computed_tokens + chunk_tokens
    return boundary - computed_tokens if crosses else chunk_tokens


class TailScheduler(Scheduler):  # type: ignore[misc]  # vllm is untyped here
    """vLLM's scheduler, which asks `_reserve_prefill_lookahead` for the size of every chunk."""

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        chunk = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return split_tail(num_computed_tokens, chunk, request.num_tokens, self.block_size)
