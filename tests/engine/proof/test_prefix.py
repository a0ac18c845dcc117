from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils

from engine.proof.prefix import block_hashes

TOKENS = st.lists(st.integers(0, 200_000), max_size=80)


def by_vllm(token_ids: list[int], salt: str, block_tokens: int) -> list[bytes]:
    kv_cache_utils.init_none_hash(sha256_cbor)
    request = SimpleNamespace(mm_features=[], lora_request=None, cache_salt=salt or None, prompt_embeds=None)
    hashes: list[bytes] = []
    for start in range(0, len(token_ids) // block_tokens * block_tokens, block_tokens):
        end = start + block_tokens
        extra, _ = kv_cache_utils.generate_block_hash_extra_keys(request, start, end, 0)
        parent = hashes[-1] if hashes else None
        hashes.append(kv_cache_utils.hash_block_tokens(sha256_cbor, parent, token_ids[start:end], extra))
    return hashes


@settings(deadline=None)
@given(TOKENS, st.text(max_size=12), st.integers(1, 20))
def test_blocks_are_named_as_vllm_names_them(token_ids: list[int], salt: str, block_tokens: int) -> None:
    assert block_hashes(token_ids, salt, block_tokens) == by_vllm(token_ids, salt, block_tokens)


@given(TOKENS, TOKENS)
def test_a_longer_prompt_keeps_the_names_of_its_prefix(prompt: list[int], more: list[int]) -> None:
    shorter = block_hashes(prompt, "salt", 8)
    assert block_hashes(prompt + more, "salt", 8)[: len(shorter)] == shorter


def test_a_salt_renames_every_block() -> None:
    token_ids = list(range(640))
    mine, yours = block_hashes(token_ids, "mine"), block_hashes(token_ids, "yours")
    assert len(mine) == 10
    assert not set(mine) & set(yours)
