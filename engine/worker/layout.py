"""What the bytes of a block depend on, as the digest that names the store's namespace."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from engine.proof.prefix import ROOT_HASH
from engine.store.namespace import Namespace

_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_TOKENIZER: Final = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt")


class LayoutUnsupported(RuntimeError):
    """The model or its parallel layout keeps KV in a way that whole-block files do not cover yet."""


def model_digest(model_dir: Path) -> str:
    """BLAKE3 (hex) over names and bytes of weights, config and tokenizer; of the name itself if no folder."""
    digest = blake3()
    if not model_dir.is_dir():
        return str(blake3(str(model_dir).encode()).hexdigest())
    patterns = (*_WEIGHTS, *_TOKENIZER, "config.json")
    for path in sorted({path for pattern in patterns for path in model_dir.glob(pattern)}):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update_mmap(path)
    return str(digest.hexdigest())


def block_bytes(kv_cache_config: Any) -> int:
    """Bytes of one block over all layers."""
    (group,) = kv_cache_config.kv_cache_groups
    return int(group.kv_cache_spec.page_size_bytes) * len(group.layer_names)


def namespace_of(vllm_config: Any, kv_cache_config: Any, identity: dict[str, str]) -> Namespace:
    """The namespace of a worker: its digest (SHA-256) covers all that decides what a block's bytes mean.

    Args:
        vllm_config: vLLM's whole configuration.
        kv_cache_config: its KV cache: one group of full attention.
        identity: model digest and recipe version, from `engine.worker.launch`.

    Raises:
        LayoutUnsupported: several groups of KV cache, or more than one rank.
    """
    _require(vllm_config, kv_cache_config)
    (group,) = kv_cache_config.kv_cache_groups
    spec = group.kv_cache_spec
    facts = {
        "identity": identity,
        "vllm": _vllm_version(),
        "isa": _attention_isa(vllm_config, spec),
        "spec": type(spec).__name__,
        "dtype": str(getattr(spec, "dtype", "")),
        "block_tokens": int(spec.block_size),
        "heads": int(getattr(spec, "num_kv_heads", 0)),
        "head_size": int(getattr(spec, "head_size", 0)),
        "page_bytes": int(spec.page_size_bytes),
        "layers": list(group.layer_names),
        "layout": str(kv_cache_config.kv_cache_layout),
        "ranks": int(vllm_config.parallel_config.world_size),
        "root_hash": ROOT_HASH.hex(),
    }
    block_tokens = int(spec.block_size)
    return Namespace(_digest(facts), promises_digest(identity, block_tokens), block_tokens, facts)


def promises_digest(identity: dict[str, str], block_tokens: int) -> str:
    """What is promised, apart from engine versions: weights, tokenizer, block size; hashes hold the scope."""
    return _digest({"model": identity["model"], "block_tokens": block_tokens, "root_hash": ROOT_HASH.hex()})


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _require(vllm_config: Any, kv_cache_config: Any) -> None:
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise LayoutUnsupported("the prefix store serves models with one group of KV cache")
    if vllm_config.parallel_config.world_size != 1:
        raise LayoutUnsupported("the prefix store serves one rank a worker")
    if vllm_config.cache_config.prefix_caching_hash_algo != "sha256_cbor":
        raise LayoutUnsupported("blocks must be named by sha256_cbor")


def _vllm_version() -> str:
    from vllm import __version__

    return str(__version__)


def _attention_isa(vllm_config: Any, spec: Any) -> str:
    """Order of the bytes inside a block on a CPU, which packs keys for its instruction set."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return str(current_platform.device_name)
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    cache_dtype = vllm_config.cache_config.cache_dtype
    return str(_get_attn_isa(spec.dtype, spec.block_size, spec.head_size, cache_dtype))
