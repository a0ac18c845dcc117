"""What decides the bytes of a block names its namespace; what the store cannot hold is refused at start."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.store.namespace import Namespace
from engine.worker.layout import LayoutUnsupported, model_digest, namespace_of


class Config:
    """As much of vLLM's configuration as a namespace is made of."""

    def __init__(self) -> None:
        self.identity = {"model": "weights and tokenizer", "recipe": "1"}
        self.spec = SimpleNamespace(
            dtype=torch.float16, block_size=64, num_kv_heads=3, head_size=64, page_size_bytes=49_152
        )
        self.cache = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=self.spec, layer_names=["0", "1"])],
            kv_cache_layout="LBHNC",
        )
        self.vllm = SimpleNamespace(
            parallel_config=SimpleNamespace(world_size=1),
            cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256_cbor", cache_dtype="auto"),
        )

    @property
    def namespace(self) -> Namespace:
        return namespace_of(self.vllm, self.cache, self.identity)


def other_identity(part: str) -> Callable[[Config], None]:
    return lambda config: config.identity.update({part: "another"})


def other_spec(part: str, value: Any) -> Callable[[Config], None]:
    return lambda config: setattr(config.spec, part, value)


OTHERS = {
    "model": other_identity("model"),
    "recipe": other_identity("recipe"),
    "dtype": other_spec("dtype", torch.bfloat16),
    "block size": other_spec("block_size", 32),
    "heads": other_spec("num_kv_heads", 4),
    "head size": other_spec("head_size", 128),
    "bytes": other_spec("page_size_bytes", 98_304),
    "layers": lambda config: config.cache.kv_cache_groups[0].layer_names.append("2"),
    "layout": lambda config: setattr(config.cache, "kv_cache_layout", "another"),
}


def test_the_same_configuration_is_the_same_namespace() -> None:
    assert Config().namespace == Config().namespace


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS.keys())
def test_another_configuration_is_another_namespace(change: Callable[[Config], None]) -> None:
    other = Config()
    change(other)
    assert other.namespace.digest != Config().namespace.digest


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


REFUSED = {
    "group": lambda config: config.cache.kv_cache_groups.append(config.cache.kv_cache_groups[0]),
    "rank": lambda config: setattr(config.vllm.parallel_config, "world_size", 2),
    "sha256_cbor": lambda config: setattr(config.vllm.cache_config, "prefix_caching_hash_algo", "sha256"),
}


@pytest.mark.parametrize(("named", "change"), REFUSED.items(), ids=REFUSED.keys())
def test_what_the_store_cannot_hold_is_refused_by_name(named: str, change: Callable[[Config], None]) -> None:
    config = Config()
    change(config)
    with pytest.raises(LayoutUnsupported, match=named):
        _ = config.namespace
