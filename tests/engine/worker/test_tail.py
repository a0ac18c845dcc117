"""Where a step has to end, whatever chunk was wanted."""

from hypothesis import given
from hypothesis import strategies as st

from engine.worker.scheduler import split_tail


@given(
    st.integers(0, 5000), st.integers(0, 600), st.integers(1, 600), st.integers(0, 300), st.integers(0, 300)
)
def test_a_step_ends_where_cold_warm_and_handed_off_prompts_must_meet(
    computed: int, chunk: int, more: int, generated: int, block: int
) -> None:
    block = block or 64
    total = max(computed + chunk + more - 1, 1)
    prompt = max(total - generated, 1)
    cut = split_tail(computed, chunk, prompt, total, block)
    ends = {prompt, (prompt - 1) // block * block, (total - 1) // block * block}
    assert min(chunk, 1) <= cut <= chunk
    assert cut == chunk or computed + cut in ends
    assert not any(computed < end < computed + cut for end in ends)
