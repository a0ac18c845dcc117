"""The default model's recipe, and a small model of DeepSeek's kind, trained on the spot."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from recipe import registry
from recipe.registry import Recipe
from recipe.tokenizer import Tokenizer

# The pre-tokenizer of DeepSeek V3 and later: digits by three, CJK apart, then words, marks and white space.
DEEPSEEK_STAGES = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
QWEN_STAGE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_SPECIALS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜System｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<|im_start|>",
    "<|im_end|>",
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog. def f(x):\n    return x + 12345\n",
    "# 中文 漢字 かな カナ・テスト Reasoning Effort: 75 (range 1-100). Ünïcödé, naïve; it's they're 3.14\n",
    "1,000,000 \t tabs\r\n\r\n end\n",
) * 20


def regex_split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")


def trained(
    before: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer | None = None,
    marks: Sequence[str] = (),
) -> str:
    """A ``tokenizer.json`` of a small BPE trained behind that pre-tokenizer, with tokens for ``marks``."""
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = before
    if normalizer is not None:
        model.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(dict.fromkeys((*DEEPSEEK_SPECIALS, *marks))),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(CORPUS, trainer)
    return str(model.to_str())


def staged(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [regex_split(pattern) for pattern in patterns]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


@pytest.fixture(scope="session")
def write_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes a model directory: a tokenizer.json and a configuration of that model type."""

    def write(tokenizer_json: str, model_type: str) -> Path:
        folder = tmp_path_factory.mktemp("model")
        (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        config = {"model_type": model_type, "max_position_embeddings": 4096, "eos_token_id": 1}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    return write


@pytest.fixture(scope="session")
def deepseek_tokenizer_json() -> str:
    return trained(staged(*DEEPSEEK_STAGES), normalizers.Sequence([]))


@pytest.fixture(scope="session")
def deepseek_model_dir(write_model: Callable[[str, str], Path], deepseek_tokenizer_json: str) -> Path:
    return write_model(deepseek_tokenizer_json, "deepseek_v41")


@pytest.fixture(scope="session")
def smol(model_dir: Path) -> Recipe:
    """The default model's recipe."""
    return registry.load(model_dir, "smollm2-135m-instruct")


@pytest.fixture(scope="session")
def flash(deepseek_model_dir: Path) -> Recipe:
    return registry.load(deepseek_model_dir, "deepseek-v4.1-flash")


@pytest.fixture(scope="session", params=["chatml", "deepseek"])
def roomy(request: pytest.FixtureRequest, model_dir: Path, deepseek_model_dir: Path) -> Recipe:
    """Each family's recipe, with room for what agents send."""
    folder = model_dir if request.param == "chatml" else deepseek_model_dir
    return registry.load(folder, request.param, context_tokens=200_000)


@pytest.fixture(scope="session")
def smol_tokenizer(smol: Recipe) -> Tokenizer:
    return smol.tokenizer


@pytest.fixture(scope="session")
def smol_reference(model_dir: Path) -> tokenizers.Tokenizer:
    """The same vocabulary in `tokenizers`, told that special tokens in text are text."""
    return reference(model_dir / "tokenizer.json")


def reference(path: Path) -> tokenizers.Tokenizer:
    model = tokenizers.Tokenizer.from_file(str(path))
    model.encode_special_tokens = True
    return model


@pytest.fixture(scope="session")
def eyed_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from .eyes import idefics3  # it trains its vocabulary by what is above

    return idefics3(tmp_path_factory.mktemp("eyes") / "model")


@pytest.fixture(scope="session")
def eyed(eyed_dir: Path) -> Recipe:
    return registry.load(eyed_dir, "eyed")


@pytest.fixture(scope="session")
def deepseek_eyed(
    write_model: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Recipe:
    folder = write_model(
        trained(staged(*DEEPSEEK_STAGES), normalizers.Sequence([]), ["<｜image｜>"]), "deepseek_v41"
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vision_config": {"x": 1}}))
    return registry.load(folder, "deepseek")
