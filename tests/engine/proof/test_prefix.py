from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils

from engine.proof.prefix import ImageRun, block_hashes, image_name

TOKENS = st.lists(st.integers(0, 200_000), max_size=80)
# How many tokens lie before an image, how many are its own, and which it is.
GAPS = st.tuples(st.integers(0, 30), st.integers(1, 40), st.sampled_from(["one", "other", "third"]))


@st.composite
def with_images(draw: st.DrawFn) -> tuple[list[int], list[ImageRun]]:
    gaps = draw(st.lists(GAPS, max_size=5))
    starts = accumulate((before + tokens for before, tokens, _ in gaps), initial=0)
    images = [
        ImageRun(start + before, tokens, name)
        for start, (before, tokens, name) in zip(starts, gaps, strict=False)
    ]
    end = images[-1].offset + images[-1].tokens if images else 0
    return draw(st.lists(st.integers(0, 9), min_size=end, max_size=end + 40)), images


def by_vllm(
    token_ids: list[int], salt: str, block_tokens: int, images: list[ImageRun] | None = None
) -> list[bytes]:
    """As vLLM does it: block after block, each going on among the images where the last one ended."""
    kv_cache_utils.init_none_hash(sha256_cbor)
    features = [
        SimpleNamespace(
            identifier=image.name, mm_position=SimpleNamespace(offset=image.offset, length=image.tokens)
        )
        for image in images or []
    ]
    request = SimpleNamespace(
        mm_features=features, lora_request=None, cache_salt=salt or None, prompt_embeds=None
    )
    hashes: list[bytes] = []
    reached = 0
    for start in range(0, len(token_ids) // block_tokens * block_tokens, block_tokens):
        end = start + block_tokens
        extra, reached = kv_cache_utils.generate_block_hash_extra_keys(request, start, end, reached)
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


@settings(deadline=None)
@given(with_images(), st.text(max_size=12), st.integers(1, 20))
def test_blocks_with_images_are_named_as_vllm_names_them(
    prompt: tuple[list[int], list[ImageRun]], salt: str, block_tokens: int
) -> None:
    token_ids, images = prompt
    named = block_hashes(token_ids, salt, block_tokens, images)
    assert named == by_vllm(token_ids, salt, block_tokens, images)


@given(with_images(), st.integers(1, 20), st.data())
def test_another_image_of_the_same_size_shares_no_block_from_its_first_token_on(
    prompt: tuple[list[int], list[ImageRun]], block_tokens: int, data: st.DataObject
) -> None:
    token_ids, images = prompt
    assume(images)
    changed = data.draw(st.integers(0, len(images) - 1))
    others = [*images]
    others[changed] = replace(images[changed], name="another")
    mine, yours = (block_hashes(token_ids, "salt", block_tokens, each) for each in (images, others))
    before = images[changed].offset // block_tokens
    assert mine[:before] == yours[:before]
    assert not set(mine[before:]) & set(yours[before:])
    assert mine == block_hashes(token_ids, "salt", block_tokens, [*images])


def test_an_image_is_called_otherwise_under_another_salt() -> None:
    names = {image_name(salt, digest * 64) for salt in ("mine", "yours", "") for digest in "ab"}
    assert len(names) == 6
    assert all(len(name) == 64 for name in names)
