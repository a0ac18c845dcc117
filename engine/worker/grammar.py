"""What we change in how vLLM holds answers to a grammar. Three things, on its manager of structured output.

*Compiling gives way.* vLLM compiles grammars in a thread of the engine core, and xgrammar in eight more: up
to some seconds in which steps would share their cores with it. On Linux a thread's priority is its own and
that of the threads it starts, so compiling takes what computing leaves.

*Strings of bounded length are JSON.* xgrammar 0.2.8 lets raw control characters into strings that have a
``minLength`` or ``maxLength``, and no parser of JSON takes them. Their tokens are masked in such answers.

*Held answers are not drafted.* In steps that draw some answers greedily and others not, vLLM's rejection of
drafts on CPUs has drawn token 0 against the grammar, and ended the request with an error. Whoever shares the
worker with them goes on drafting.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import torch

COMPILERS: Final = 1
_NICENESS: Final = 19
_BOUNDED: Final = ('"minLength"', '"maxLength"')
_NEWLINE: Final = 10


def refine(manager: Any) -> None:
    """Change a `StructuredOutputManager` of vLLM 0.32.0 before it has compiled anything."""
    if manager.vllm_config.model_config.skip_tokenizer_init:
        return  # without a tokenizer vLLM refuses all grammars
    manager.executor.shutdown(wait=False)
    manager.executor = ThreadPoolExecutor(COMPILERS, "grammar", _give_way)
    create = manager._create_grammar  # noqa: SLF001 -- vLLM has no hook here; a test pins that it has this
    masks: list[torch.Tensor] = []

    def created(request: Any) -> Any:
        grammar = create(request)
        _, text = request.structured_output_request.structured_output_key
        if any(keyword in text for keyword in _BOUNDED):
            if not masks:
                masks.append(printable(grammar.ctx.tokenizer_info))
            _mask(grammar, masks[0])
        return grammar

    manager._create_grammar = created  # noqa: SLF001 -- as above
    manager.validate_tokens = _no_drafts_where_held


def printable(vocabulary: Any) -> torch.Tensor:
    """The bitmask of tokens without raw control characters but newlines, of an xgrammar `TokenizerInfo`."""
    bits = np.ones(-(-vocabulary.vocab_size // 32) * 32, dtype=np.uint8)
    for token_id, token in enumerate(vocabulary.decoded_vocab):
        bits[token_id] = not any(byte < 32 and byte != _NEWLINE for byte in bytes(token))
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32).copy())


def _mask(grammar: Any, allowed: torch.Tensor) -> None:
    fill = grammar.fill_bitmask

    def filled(bitmask: torch.Tensor, index: int) -> None:
        fill(bitmask, index)
        bitmask[index] &= allowed

    grammar.fill_bitmask = filled


def _no_drafts_where_held(request: Any, drafted: list[int]) -> list[int]:
    return [] if request.use_structured_output else drafted


def _give_way() -> None:
    if sys.platform == "linux":
        os.nice(_NICENESS)
