"""The model step."""

import asyncio
import json
from pathlib import Path

import pytest
import tokenizers

from admin.stack import model
from admin.stack.model import ModelUnavailable


def prepare(tmp_path: Path, name: str) -> model.Model:
    return asyncio.run(model.prepare(tmp_path, name, lambda _text: None))


def test_the_default_model_has_all_that_workers_and_recipes_read(model_dir: Path) -> None:
    names = {file.name for file in model_dir.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "<|im_start|>" in json.loads((model_dir / "tokenizer_config.json").read_text())["chat_template"]
    generation = json.loads((model_dir / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2
    assert generation["do_sample"] is False
    assert json.loads((model_dir / "config.json").read_text())["dtype"] == "float16"


def test_the_default_models_tokenizer_splits_digits_off_as_the_published_one_does(model_dir: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert tokenizer.encode("a  1", add_special_tokens=False).tokens == ["a", "ĠĠ", "1"]
    assert tokenizer.encode("123", add_special_tokens=False).tokens == ["1", "2", "3"]


def test_the_wheels_file_is_the_pinned_one() -> None:
    assert model.pinned_gguf().name == model.DEFAULT_FILE


def test_a_folder_is_served_where_it_is(tmp_path: Path, model_dir: Path) -> None:
    found = prepare(tmp_path, str(model_dir))
    assert found.folder == model_dir.resolve()
    assert found.served_name == model_dir.name.lower()


@pytest.mark.parametrize("name", ["no-such-folder", "a/b/c", "file.gguf", ""])
def test_what_is_no_model_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelUnavailable):
        prepare(tmp_path, name)


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"config\.json"):
        prepare(tmp_path, str(tmp_path))


def test_a_file_that_cannot_be_converted_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = tmp_path / "Broken.gguf"
    broken.write_bytes(b"GGUF, not really")
    with pytest.raises(ModelUnavailable, match="could not bring"):
        prepare(tmp_path, str(broken))
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "smollm2-135m-instruct"),
        ("/models/Qwen3-4B", "qwen3-4b"),
        ("org/Name", "name"),
        ("x/A.gguf", "a"),
    ],
)
def test_a_model_is_served_under_the_last_part_of_its_name(given: str | None, name: str) -> None:
    assert model.served_name_of(given) == name
