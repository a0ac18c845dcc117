"""A tiny vision-language model with random weights: what it says means nothing, how it is served is real.

Idefics3, the architecture of SmolVLM: SigLIP's encoder beside a Llama, here of two layers each. Its tokens
are the first of SmolLM2's (loading all of them takes a worker seconds), with those of images behind them. It
stands in for a model that this machine cannot hold.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
from safetensors.numpy import save_file

SEED: Final = 20_261_201
LAYERS: Final = 2
TEXT_TOKENS: Final = 4096
HIDDEN: Final = 64
HEADS: Final = 2
MLP: Final = 128
CONTEXT_TOKENS: Final = 4096
# An image is scaled to this longest side and cut into tiles, each of (tile / patch / 2) squared tokens.
LONGEST_SIDE: Final = 192
TILE: Final = 64
PATCH: Final = 8
TILE_TOKENS: Final = (TILE // PATCH // 2) ** 2

FENCE: Final = "<fake_token_around_image>"
PIXEL: Final = "<image>"
WHOLE: Final = "<global-img>"
ROWS: Final = 6

Weights = dict[str, "np.ndarray[Any, np.dtype[np.float16]]"]


def make(folder: Path, text_model_dir: Path) -> Path:
    """Write the model to an empty folder, always the same bytes; the tokenizer is made of another model's."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(text_model_dir)
    tokenizer.save(str(folder / "tokenizer.json"))
    said = json.loads((text_model_dir / "tokenizer_config.json").read_text())
    _write(folder / "tokenizer_config.json", said | {"processor_class": "Idefics3Processor"})
    _write(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    _write(
        folder / "processor_config.json",
        {"processor_class": "Idefics3Processor", "image_seq_len": TILE_TOKENS},
    )
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": LONGEST_SIDE},
            "max_image_size": {"longest_edge": TILE},
            "do_image_splitting": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
    )
    _write(folder / "config.json", _config(tokenizer))
    save_file(_weights(tokenizer.get_vocab_size()), folder / "model.safetensors", {"format": "pt"})
    return folder


def image_text(width: int, height: int) -> str:
    """What stands for an image of a size in pixels, as text of control tokens."""
    rows, columns = _grid(width, height)
    tiles = [
        "".join(f"{FENCE}<row_{row + 1}_col_{column + 1}>{PIXEL * TILE_TOKENS}" for column in range(columns))
        + "\n"
        for row in range(rows)
    ]
    return "".join((*tiles, "\n" if tiles else "", FENCE, WHOLE, PIXEL * TILE_TOKENS, FENCE))


def _grid(width: int, height: int) -> tuple[int, int]:
    """Rows and columns of tiles; none where one tile is all of the image."""
    aspect = width / height
    if width >= height:
        width, height = LONGEST_SIDE, int(LONGEST_SIDE / aspect)
        height += height % 2
    else:
        width, height = int(LONGEST_SIDE * aspect), LONGEST_SIDE
        width += width % 2
    rows, columns = (-(-max(side, 1) // TILE) for side in (height, width))
    return (rows, columns) if rows * columns > 1 else (0, 0)


def _tokenizer(text_model_dir: Path) -> tokenizers.Tokenizer:
    said = json.loads((text_model_dir / "tokenizer.json").read_text())
    vocabulary = {text: number for text, number in said["model"]["vocab"].items() if number < TEXT_TOKENS}
    # Numbers rise with the rank of merges, so the first of both are a tokenizer of their own.
    merges = [merge for merge in said["model"]["merges"] if "".join(merge) in vocabulary]
    said["model"] |= {"vocab": vocabulary, "merges": merges}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(said))
    places = [f"<row_{row + 1}_col_{column + 1}>" for row in range(ROWS) for column in range(ROWS)]
    names = [FENCE, PIXEL, WHOLE, "<end_of_utterance>", *places]
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(name, normalized=False, special=True) for name in names]
    )
    return tokenizer


def _config(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    text = {
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    vision = {
        "model_type": "idefics3_vision",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "image_size": TILE,
        "patch_size": PATCH,
    }
    return {
        "model_type": "idefics3",
        "architectures": ["Idefics3ForConditionalGeneration"],
        "dtype": "float16",
        "image_token_id": tokenizer.token_to_id(PIXEL),
        "scale_factor": 2,
        "pad_token_id": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
    }


def _weights(vocabulary: int) -> Weights:
    """Matrices that keep a vector's length; attention is sharp, so that a token depends on all before it."""
    random = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Any:
        return (random.standard_normal((rows, columns), dtype=np.float32) * gain / columns**0.5).astype(
            np.float16
        )

    weights: Weights = {
        "model.text_model.embed_tokens.weight": matrix(vocabulary, HIDDEN),
        "model.text_model.norm.weight": np.ones(HIDDEN, np.float16),
        "lm_head.weight": matrix(vocabulary, HIDDEN),
        "model.connector.modality_projection.proj.weight": matrix(HIDDEN, 4 * HIDDEN),
        "model.vision_model.embeddings.patch_embedding.weight": matrix(
            HIDDEN, 3 * PATCH * PATCH, 4.0
        ).reshape(HIDDEN, 3, PATCH, PATCH),
        "model.vision_model.embeddings.patch_embedding.bias": np.zeros(HIDDEN, np.float16),
        "model.vision_model.embeddings.position_embedding.weight": matrix((TILE // PATCH) ** 2, HIDDEN),
        **_norm("model.vision_model.post_layernorm"),
    }
    head = HIDDEN // HEADS
    for index in range(LAYERS):
        text, vision = f"model.text_model.layers.{index}.", f"model.vision_model.encoder.layers.{index}."
        weights |= {
            f"{text}self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN, 2.0),
            f"{text}self_attn.k_proj.weight": matrix(head, HIDDEN, 2.0),
            f"{text}self_attn.v_proj.weight": matrix(head, HIDDEN, 2.0),
            f"{text}self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN, 2.0),
            f"{text}mlp.gate_proj.weight": matrix(MLP, HIDDEN),
            f"{text}mlp.up_proj.weight": matrix(MLP, HIDDEN),
            f"{text}mlp.down_proj.weight": matrix(HIDDEN, MLP, 2.0),
            f"{text}input_layernorm.weight": np.ones(HIDDEN, np.float16),
            f"{text}post_attention_layernorm.weight": np.ones(HIDDEN, np.float16),
            **_norm(f"{vision}layer_norm1"),
            **_norm(f"{vision}layer_norm2"),
        }
        for name, (rows, columns) in _vision_matrices():
            weights[f"{vision}{name}.weight"] = matrix(rows, columns)
            weights[f"{vision}{name}.bias"] = np.zeros(rows, np.float16)
    return weights


def _vision_matrices() -> Iterator[tuple[str, tuple[int, int]]]:
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        yield f"self_attn.{name}", (HIDDEN, HIDDEN)
    yield "mlp.fc1", (MLP, HIDDEN)
    yield "mlp.fc2", (HIDDEN, MLP)


def _norm(name: str) -> Weights:
    return {f"{name}.weight": np.ones(HIDDEN, np.float16), f"{name}.bias": np.zeros(HIDDEN, np.float16)}


def _write(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n")
