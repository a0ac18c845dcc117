"""Child process of the model step: GGUF -> safetensors and tokenizer, or a download from the hub.

``python -m admin.run.convert gguf FILE TARGET``, or ``... hub ID TARGET``. It loads torch by way of
transformers, so the stack never imports it. Progress is what its libraries print.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# SmolLM2's own tokenizer splits digits off first; its GGUF, or transformers' reading of it, leaves that out.
SMOLLM_DIGITS: Final = {"type": "Digits", "individual_digits": True}
# Quantised to four bits so small a model stands on near ties ("What is the capital of France?" begins with
# "The" by 0.1 of a logit). bfloat16 rounds that away and sampling wanders: float16, and greedy unless asked.
SMOLLM_DTYPE: Final = "float16"
SMOLLM_SAMPLING: Final = {"do_sample": False}
DTYPE: Final = "bfloat16"


def from_gguf(source: Path, target: Path) -> None:
    """Dequantise a GGUF file into safetensors, with its tokenizer and chat template beside it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    smollm = _pretokenizer_of(source) == "smollm"
    dtype = SMOLLM_DTYPE if smollm else DTYPE
    origin: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **origin)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, quantization_config=GgufConfig(dequantize=True), dtype=dtype, **origin
    )
    # The template travels in tokenizer_config.json too: not every reader knows chat_template.jinja.
    template = tokenizer.chat_template
    tokenizer.save_pretrained(target)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(target)
    _amend(target / "tokenizer_config.json", lambda fields: fields | {"chat_template": template})
    if smollm:
        _amend(target / "tokenizer.json", _digits_first)
        _amend(target / "generation_config.json", lambda fields: fields | SMOLLM_SAMPLING)


def _pretokenizer_of(source: Path) -> str:
    """The name a GGUF file has for how its tokenizer splits text before its merges."""
    from gguf import GGUFReader

    field = GGUFReader(source).get_field("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())


def _digits_first(tokenizer: dict[str, Any]) -> dict[str, Any]:
    steps = [SMOLLM_DIGITS, tokenizer["pre_tokenizer"]]
    return tokenizer | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


def _amend(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    fields = change(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False), encoding="utf-8")


def from_hub(model_id: str, target: Path) -> None:
    """Fetch a model's files from the hub."""
    from huggingface_hub import snapshot_download

    snapshot_download(
        model_id, local_dir=target, ignore_patterns=["*.bin", "*.pt", "*.gguf", "*.onnx", "original/*"]
    )


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    kind, source, target = arguments
    Path(target).mkdir(parents=True, exist_ok=True)
    if kind == "gguf":
        from_gguf(Path(source), Path(target))
    else:
        from_hub(source, Path(target))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
