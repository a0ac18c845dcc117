"""What decides the bytes of a block names its namespace; what the store cannot hold is refused at start."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1 import kv_cache_interface as vllm_kv
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

from engine.store.namespace import Namespace
from engine.worker.layout import LayoutUnsupported, block_bytes, model_digest, namespace_of, stored_group

SIZES = {"block_size": 64, "num_kv_heads": 3, "head_size": 64, "dtype": torch.float16}
FULL = vllm_kv.FullAttentionSpec(**SIZES)
WINDOW = vllm_kv.SlidingWindowSpec(**SIZES, sliding_window=128)
LOCAL = vllm_kv.ChunkedLocalAttentionSpec(**SIZES, attention_chunk_size=128)
MLA = vllm_kv.MLAAttentionSpec(**SIZES | {"num_kv_heads": 1, "head_size": 576})
INDEXER = vllm_kv.MLAAttentionSpec(**SIZES | {"num_kv_heads": 1, "head_size": 128})
REPLAYED = vllm_kv.SlidingWindowMLASpec(
    **SIZES | {"num_kv_heads": 1}, sliding_window=128, bounded_replay=True
)
MAMBA = vllm_kv.MambaSpec(block_size=64, shapes=((16, 16),), dtypes=(torch.float32,))
REFERENCE_WINDOW = vllm_kv.RSWASpec(**SIZES, rswa_window=128)


def kept(*specs: KVCacheSpec, **group: Any) -> KVCacheConfig:
    """A KV cache with two layers in each of its groups."""
    groups = [
        KVCacheGroupSpec([f"{index}.0", f"{index}.1"], spec, **group) for index, spec in enumerate(specs)
    ]
    return KVCacheConfig(8, [], groups, kv_cache_layout="LBHNC")


class Config:
    """As much of vLLM's configuration as a namespace is made of."""

    def __init__(self) -> None:
        self.identity = {"model": "weights and tokenizer", "recipe": "1"}
        self.cache = kept(FULL)
        self.vllm = SimpleNamespace(
            parallel_config=SimpleNamespace(world_size=1),
            cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256_cbor", cache_dtype="auto"),
        )

    @property
    def namespace(self) -> Namespace:
        namespace = namespace_of(self.vllm, self.cache, self.identity)
        assert namespace is not None
        return namespace


def other_identity(part: str) -> Callable[[Config], None]:
    return lambda config: config.identity.update({part: "another"})


def other_spec(part: str, value: Any) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        group = config.cache.kv_cache_groups[0]
        group.kv_cache_spec = replace(group.kv_cache_spec, **{part: value})

    return change


OTHERS = {
    "model": other_identity("model"),
    "recipe": other_identity("recipe"),
    "dtype": other_spec("dtype", torch.bfloat16),
    "block size": other_spec("block_size", 32),
    "heads": other_spec("num_kv_heads", 4),
    "head size": other_spec("head_size", 128),
    "window of a layer": other_spec("sliding_window", 128),
    "quantisation": other_spec("kv_quant_mode", vllm_kv.KVQuantMode.FP8_PER_TENSOR),
    "layers": lambda config: config.cache.kv_cache_groups[0].layer_names.append("2"),
    "order of layers": lambda config: config.cache.kv_cache_groups[0].layer_names.reverse(),
    "layout": lambda config: setattr(config.cache, "kv_cache_layout", "another"),
}


def test_the_same_configuration_is_the_same_namespace() -> None:
    assert Config().namespace == Config().namespace


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS.keys())
def test_another_configuration_is_another_namespace(change: Callable[[Config], None]) -> None:
    other = Config()
    change(other)
    assert other.namespace.digest != Config().namespace.digest


def test_another_vllm_is_another_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Config().namespace
    monkeypatch.setattr("vllm.__version__", "0.33.0")
    assert Config().namespace.digest != before.digest
    assert Config().namespace.promises == before.promises


def test_a_promise_outlives_an_engine_but_not_its_weights_or_block_size() -> None:
    upgraded, retrained, recut = Config(), Config(), Config()
    OTHERS["layout"](upgraded)
    OTHERS["model"](retrained)
    OTHERS["block size"](recut)
    promised = Config().namespace.promises
    assert upgraded.namespace.promises == promised
    assert promised not in {retrained.namespace.promises, recut.namespace.promises}


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_other_weights_or_another_tokenizer_are_another_model(tmp_path: Path, file: str) -> None:
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes(b"0123456789")
    before = model_digest(tmp_path)
    (tmp_path / file).write_bytes(b"0123456788")
    assert model_digest(tmp_path) != before


MIXED = vllm_kv.UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs={"0.0": MLA, "0.1": INDEXER})


@pytest.mark.parametrize(
    ("cache", "expected_bytes"),
    [
        (kept(FULL), 2 * FULL.page_size_bytes),
        (kept(MLA), 2 * MLA.page_size_bytes),
        (kept(replace(FULL, sliding_window=128)), 2 * FULL.page_size_bytes),
        (kept(MIXED), MLA.page_size_bytes + INDEXER.page_size_bytes),
    ],
    ids=["full attention", "MLA", "a window kept as if it were full", "MLA beside its indexer"],
)
def test_attention_over_the_whole_context_is_stored(cache: KVCacheConfig, expected_bytes: int) -> None:
    group = stored_group(cache)
    assert group is cache.kv_cache_groups[0]
    assert block_bytes(group) == expected_bytes


@pytest.mark.parametrize(
    "cache",
    [kept(REPLAYED), kept(FULL, enable_kv_transfer=False), kept()],
    ids=["rebuilt by bounded replay", "kept for one request", "nothing"],
)
def test_what_vllm_marks_as_not_prefix_cacheable_is_never_stored(cache: KVCacheConfig) -> None:
    assert stored_group(cache) is None
    config = Config()
    assert namespace_of(config.vllm, cache, config.identity) is None


@pytest.mark.parametrize(
    ("cache", "named"),
    [
        (kept(FULL, MAMBA), "2 groups of KV cache .FullAttentionSpec, MambaSpec."),
        (kept(FULL, WINDOW, WINDOW), "3 groups"),
        (kept(MLA, REPLAYED), "2 groups"),
        (kept(WINDOW), "SlidingWindowSpec"),
        (kept(LOCAL), "ChunkedLocalAttentionSpec"),
        (kept(MAMBA), "MambaSpec"),
        (kept(REFERENCE_WINDOW), "RSWASpec"),
    ],
)
def test_what_whole_blocks_do_not_stand_for_is_refused_and_said_how_to_run(
    cache: KVCacheConfig, named: str
) -> None:
    with pytest.raises(LayoutUnsupported, match=f"{named}.*without a store"):
        stored_group(cache)


REFUSED = {
    "rank": lambda config: setattr(config.vllm.parallel_config, "world_size", 2),
    "sha256_cbor": lambda config: setattr(config.vllm.cache_config, "prefix_caching_hash_algo", "sha256"),
}


@pytest.mark.parametrize(("named", "change"), REFUSED.items(), ids=REFUSED.keys())
def test_a_configuration_that_names_blocks_otherwise_is_refused(
    named: str, change: Callable[[Config], None]
) -> None:
    config = Config()
    change(config)
    with pytest.raises(LayoutUnsupported, match=named):
        _ = config.namespace
