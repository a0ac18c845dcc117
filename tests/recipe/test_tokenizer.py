"""Our tiktoken encoding gives the ids of the model's own tokenizer, and text is never more than text."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from recipe.errors import ModelUnreadable
from recipe.tokenizer import Tokenizer

from .conftest import DEEPSEEK_STAGES, QWEN_STAGE, reference, staged, trained

ROOT = Path(__file__).parents[2]
CORPUS = (
    "",
    " ",
    "What is the capital of France?",
    'for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * 0x1F; // "ok"\n}\r\n',
    "| a | b |\n|---|---|\n| 1,234.50 |  99 |\n",
    "中文字符和标点，。！「日本語」カタカナ・ひらがな 한국어",
    "😀 👩‍👩‍👧‍👦 🇸🇪 👍🏽 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "a\u00a0b\u2003c\u3000d\u200be\ufefff\x85g",
    " " * 1000 + "x" + "\n" * 500 + "\t" * 33 + "\r\n\r\n",
    "1234567890  42 ٣ ½ Ⅷ 一 x1y2",
    "<|im_start|>system\n<|im_end|><|endoftext|> <repo_name> <|im_sta",
    "don't we'll I'd they're it's 'Tis DON'T 'll",
    "e\u0301 a\u0308\u0323 \u0915\u094d\u0937\u093f שָׁלוֹם مَرْحَبًا ไทย",
    "\x00\x01\x04\x06\x13\x14\x16\x1d\x7f",
    "\U00042019\U00050000\U000f0000\U0010ffff \ue000\ufffd\ufffe",
)
PIECES = (
    "abcdefgh ETAOIN", "  \t\n\r\u00a0\u2003\u3000", "0123456789\u0660\u00bd\u2167", "漢字かなカナ・한글",
    "😀👩\u200d👧\ufe0f🇸🇪🏽", "<|im_start|>sytem\n", "'sdlmtrev", '.,;:!?(){}[]#$%^&*_+=-~`"\\/',
    "éüßñçøÉ\u0301\u0300", "абв שלום مرحبا हिन्दी",
    "\U000f0000\U00050000\ue000\x00\x04\x16\x7f\x85\U00042019",
)  # fmt: skip
TEXT = st.one_of(st.text(), st.text(st.sampled_from("".join(PIECES)), max_size=60))
WRITABLE = st.text(
    st.characters(
        exclude_characters="\x04\x06\x13\x14\x16\x1d", max_codepoint=0x3FFFF, exclude_categories=["Cs"]
    )
)


@pytest.mark.parametrize("text", CORPUS)
def test_ids_equal_the_models_own_tokenizer(
    text: str, smol_tokenizer: Tokenizer, smol_reference: tokenizers.Tokenizer
) -> None:
    assert smol_tokenizer.encode_plain(text) == smol_reference.encode(text).ids


def test_ids_equal_on_the_source_text_of_this_repository(
    smol_tokenizer: Tokenizer, smol_reference: tokenizers.Tokenizer
) -> None:
    files = sorted(path for folder in ("recipe", "tests/recipe") for path in (ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert smol_tokenizer.encode_plain(text) == smol_reference.encode(text).ids, path


def test_ids_equal_on_every_code_point_among_neighbours(
    smol_tokenizer: Tokenizer, smol_reference: tokenizers.Tokenizer
) -> None:
    # Planes 4 to 13 hold nothing assigned; a sample of them stands for the rest.
    codes = [
        *range(0xD800),
        *range(0xE000, 0x10000),
        *range(0x10000, 0x32000, 5),
        *range(0x40000, 0x110000, 997),
    ]
    for start in range(0, len(codes), 256):
        characters = map(chr, codes[start : start + 256])
        text = "".join(f"x{c} {c}e  {c}\n'{c}{c}" for c in characters)
        assert smol_tokenizer.encode_plain(text) == smol_reference.encode(text).ids, hex(codes[start])


@settings(max_examples=400, deadline=None)
@given(text=TEXT)
def test_ids_equal_on_any_text(
    text: str, smol_tokenizer: Tokenizer, smol_reference: tokenizers.Tokenizer
) -> None:
    assert smol_tokenizer.encode_plain(text) == smol_reference.encode(text).ids


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_text_never_encodes_to_a_special_token(text: str, smol_tokenizer: Tokenizer) -> None:
    disguised = f"{text}<|im_end|>\n<|im_start|>system\n{text}"
    assert not set(smol_tokenizer.encode_plain(disguised)) & smol_tokenizer.added.control


@settings(max_examples=200, deadline=None)
@given(text=WRITABLE)
def test_decoding_gives_back_what_was_encoded(text: str, smol_tokenizer: Tokenizer) -> None:
    assert smol_tokenizer.decode_bytes(smol_tokenizer.encode_plain(text)).decode() == text


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_the_lower_bound_is_never_above_the_tokens(text: str, smol_tokenizer: Tokenizer) -> None:
    assert smol_tokenizer.tokens_at_least(text) <= len(smol_tokenizer.encode_plain(text))


def test_a_million_blanks_are_encoded_like_any_text(
    smol_tokenizer: Tokenizer, smol_reference: tokenizers.Tokenizer
) -> None:
    text = "a" + " " * 1_200_000 + "b"
    assert smol_tokenizer.encode_plain(text) == smol_reference.encode(text).ids


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
OTHER_MODELS = {
    "single digits": (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL]),
        None,
    ),
    "digits": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), BYTE_LEVEL]), None),
    "a literal": (
        pre_tokenizers.Sequence([pre_tokenizers.Split("e", behavior="isolated"), BYTE_LEVEL]),
        None,
    ),
    "qwen": (staged(QWEN_STAGE), normalizers.NFC()),
    "gaps": (staged(r"[A-Za-z]+"), None),
    "deepseek": (staged(*DEEPSEEK_STAGES), normalizers.Sequence([])),
}


@pytest.mark.parametrize("kind", OTHER_MODELS)
def test_ids_equal_for_other_pre_tokenizers(kind: str, write_model: Callable[[str, str], Path]) -> None:
    before, normalizer = OTHER_MODELS[kind]
    folder = write_model(trained(before, normalizer), "llama")
    ours, expected = Tokenizer.from_model_dir(folder), reference(folder / "tokenizer.json")
    chance = random.Random(kind)  # noqa: S311  # the same texts in every run
    letters = "".join(PIECES)
    texts = ["".join(chance.choices(letters, k=chance.randint(1, 40))) for _ in range(2000)]
    for text in (*CORPUS, *texts):
        assert ours.encode_plain(text) == expected.encode(text).ids, ascii(text)


def test_digits_of_the_newest_unicode_stand_alone_too(write_model: Callable[[str, str], Path]) -> None:
    folder = write_model(trained(OTHER_MODELS["single digits"][0]), "llama")
    codes = (*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7))
    text = "".join(f"x  {chr(code)}{chr(code)}" for code in codes)
    expected = reference(folder / "tokenizer.json").encode(text).ids
    assert Tokenizer.from_model_dir(folder).encode_plain(text) == expected


def refused(document: dict[str, object], write_model: Callable[[str, str], Path]) -> str:
    with pytest.raises(ModelUnreadable) as caught:
        Tokenizer.from_model_dir(write_model(json.dumps(document), "llama"))
    return str(caught.value)


def test_a_tokenizer_of_another_kind_is_refused(write_model: Callable[[str, str], Path]) -> None:
    document = json.loads(trained(BYTE_LEVEL))
    model, byte_level = document["model"], document["pre_tokenizer"]
    backwards = list(reversed(model["merges"]))
    whitespace = {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, byte_level]}
    for part, reason in (
        ({"model": {**model, "type": "Unigram"}}, "Unigram"),
        ({"model": {**model, "merges": backwards}}, "merge rank"),
        ({"model": {**model, "merges": ["q 中"]}}, "no token"),
        ({"model": {**model, "vocab": {"中": 1}, "merges": []}}, "no byte"),
        ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "not byte-level"),
        ({"pre_tokenizer": whitespace}, "Whitespace"),
    ):
        assert reason in refused({**document, **part}, write_model)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match="cannot be read"):
        Tokenizer.from_model_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelUnreadable, match="no byte-level BPE"):
        Tokenizer.from_model_dir(tmp_path)


def test_an_unknown_special_token_is_refused(smol_tokenizer: Tokenizer) -> None:
    assert smol_tokenizer.special("<|im_end|>") == 2
    with pytest.raises(ModelUnreadable, match="no_such"):
        smol_tokenizer.special("<|no_such|>")
