"""What the bytes of a block depend on, as the digest that names the store's namespace."""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from engine.proof.prefix import ROOT_HASH
from engine.store.namespace import Namespace

_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_WITHOUT: Final = ": run this model without a store"
_TOKENIZER: Final = (
    "*processor_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
)


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


def stored_group(kv_cache_config: Any) -> Any | None:
    """The group of layers whose blocks are stored; None when vLLM marks none as prefix-cacheable.

    A block's file stands for its tokens in all layers, alone, as attention over the whole context does.
    What vLLM rebuilds by a bounded replay, or keeps for one request, it marks itself. Blocks of a window or
    of a recurrent state stand for their tokens only where the prompt ends. With several groups vLLM ends its
    engine when a single block turns out to be corrupt; it puts window and whole context into one group where
    the connector does not support its hybrid manager, as ours does not.

    Raises:
        LayoutUnsupported: several groups, or layers that do not keep the whole context.
    """
    groups = kv_cache_config.kv_cache_groups
    if not kv_cache_config.prefix_cacheable_group_ids:
        return None
    if len(groups) > 1:
        kinds = ", ".join(sorted({type(group.kv_cache_spec).__name__ for group in groups}))
        raise LayoutUnsupported(
            f"{len(groups)} groups of KV cache ({kinds}), the prefix store keeps one{_WITHOUT}"
        )
    from vllm.v1.kv_cache_interface import FullAttentionSpec, RSWASpec

    for spec in layer_specs(groups[0]).values():
        if not isinstance(spec, FullAttentionSpec) or isinstance(spec, RSWASpec):
            raise LayoutUnsupported(f"{type(spec).__name__} does not keep a whole context{_WITHOUT}")
    return groups[0]


def layer_specs(group: Any) -> dict[str, Any]:
    """How each layer of a group keeps its KV, by the layer's name."""
    specs = getattr(group.kv_cache_spec, "kv_cache_specs", {})
    return {name: specs.get(name, group.kv_cache_spec) for name in group.layer_names}


def block_bytes(group: Any) -> int:
    """Bytes of one block over all layers of a group."""
    return sum(int(spec.page_size_bytes) for spec in layer_specs(group).values())


def namespace_of(vllm_config: Any, kv_cache_config: Any, identity: dict[str, str]) -> Namespace | None:
    """The namespace of a worker: its digest (SHA-256) covers all that decides what a block's bytes mean.

    Args:
        vllm_config: vLLM's whole configuration.
        kv_cache_config: its KV cache.
        identity: model digest and recipe version, from `engine.worker.launch`.

    Returns:
        None when nothing of the model's KV cache may be stored.

    Raises:
        LayoutUnsupported: see `stored_group`; or more than one rank.
    """
    group = stored_group(kv_cache_config)
    if group is None:
        return None
    _require(vllm_config)
    block_tokens = int(group.kv_cache_spec.block_size)
    specs = [_spec_facts(vllm_config, spec) for spec in layer_specs(group).values()]
    facts = {
        "identity": identity,
        "vllm": _vllm_version(),
        "block_tokens": block_tokens,
        "layers": list(group.layer_names),
        "specs": specs[:1] if all(spec == specs[0] for spec in specs) else specs,
        "layout": str(kv_cache_config.kv_cache_layout),
        "ranks": int(vllm_config.parallel_config.world_size),
        "root_hash": ROOT_HASH.hex(),
    }
    return Namespace(_digest(facts), promises_digest(identity, block_tokens), block_tokens, facts)


def _spec_facts(vllm_config: Any, spec: Any) -> dict[str, str]:
    """All that vLLM says of how a layer keeps its KV, as text."""
    said = {each.name: str(getattr(spec, each.name)) for each in fields(spec)}
    kind, page_bytes = type(spec).__name__, str(spec.page_size_bytes)
    return {**said, "spec": kind, "page_bytes": page_bytes, "isa": _attention_isa(vllm_config, spec)}


def promises_digest(identity: dict[str, str], block_tokens: int) -> str:
    """What is promised, apart from engine versions: weights, tokenizer, block size; hashes hold the scope."""
    return _digest({"model": identity["model"], "block_tokens": block_tokens, "root_hash": ROOT_HASH.hex()})


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _require(vllm_config: Any) -> None:
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
