"""What families read of a model directory besides its tokenizer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from recipe.errors import ModelUnreadable
from recipe.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The JSON files of a model directory, each an empty object when it is not there.

    Attributes:
        config: ``config.json``, which has to be there.
        generation: ``generation_config.json``.
        tokenizer_config: ``tokenizer_config.json``.
        processor: ``processor_config.json``, of models that take more than text.
        preprocessor: ``preprocessor_config.json``, how those take images.
        chat_template: ``chat_template.jinja``, or the one in the tokenizer's configuration; None without.
    """

    config: dict[str, Any]
    generation: dict[str, Any]
    tokenizer_config: dict[str, Any]
    chat_template: str | None
    processor: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)

    @property
    def context_tokens(self) -> int:
        """Positions the model was made for; ModelUnreadable when its configuration does not say."""
        for section in (self.config, self.config.get("text_config") or {}):
            positions = section.get("max_position_embeddings")
            if isinstance(positions, int) and positions > 1:
                return positions
        raise ModelUnreadable("config.json: max_position_embeddings is missing")

    def eos_token_ids(self, tokenizer: Tokenizer) -> Iterator[int]:
        """Ids that end a generation by the model's own files, repetitions included."""
        for section in (self.generation, self.config):
            ids = section.get("eos_token_id")
            yield from ids if isinstance(ids, list) else [] if ids is None else [ids]
        name = self.special_name("eos_token")
        if name is not None and name in tokenizer.added.ids:
            yield tokenizer.special(name)

    def opening(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Ids before every text, as transformers sees to it: its configuration has the last word."""
        adds, bos = self.tokenizer_config.get("add_bos_token"), self.special_name("bos_token")
        if not isinstance(adds, bool):
            return tokenizer.added.opening
        return (tokenizer.special(bos),) if adds and bos is not None else ()

    def sampling_defaults(self) -> dict[str, float]:
        """``temperature`` and ``top_p`` the model's makers ask for, where a request says nothing.

        ``do_sample: false`` is transformers' word for greedy.
        """
        if self.generation.get("do_sample") is False:
            return {"temperature": 0.0}
        bounds = {"temperature": 2.0, "top_p": 1.0}
        asked = {name: self.generation.get(name) for name in bounds}
        return {
            name: float(value)
            for name, value in asked.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= bounds[name]
        }

    def special_name(self, role: str) -> str | None:
        """Spelling of the token with that role (``"bos_token"`` ...) in the tokenizer's configuration."""
        token = self.tokenizer_config.get(role)
        name = token.get("content") if isinstance(token, dict) else token
        return name if isinstance(name, str) else None


def read_model_files(model_dir: Path) -> ModelFiles:
    """Read the files; ModelUnreadable when ``config.json`` is missing or one of them is no JSON object."""
    if not (model_dir / "config.json").is_file():
        raise ModelUnreadable("config.json is missing")
    tokenizer_config = _object(model_dir / "tokenizer_config.json")
    return ModelFiles(
        config=_object(model_dir / "config.json"),
        generation=_object(model_dir / "generation_config.json"),
        tokenizer_config=tokenizer_config,
        chat_template=_chat_template(model_dir, tokenizer_config),
        processor=_object(model_dir / "processor_config.json"),
        preprocessor=_object(model_dir / "preprocessor_config.json"),
    )


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelUnreadable(f"{path.name} cannot be read: {error}") from None


def _chat_template(model_dir: Path, tokenizer_config: dict[str, Any]) -> str | None:
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        template = next((named.get("template") for named in template if named.get("name") == "default"), None)
    return template if isinstance(template, str) else None
