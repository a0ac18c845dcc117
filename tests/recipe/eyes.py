"""Small models that read images: their files, without any weights."""

import json
from pathlib import Path
from typing import Any

from .conftest import DEEPSEEK_STAGES, staged, trained

FENCE, PIXEL, WHOLE = "<fake_token_around_image>", "<image>", "<global-img>"
PLACES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
IMAGE = "<｜image｜>"
TILE_TOKENS = 3
# SmolVLM's: it takes parts alone, and would leave out a message that is a text.
OF_PARTS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}:{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
# Qwen's: texts, or parts with marks around each image.
OF_EITHER = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}:{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "[<image>]{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
)


def idefics3(folder: Path, template: str | None = None, **preprocessor: Any) -> Path:
    """The files of a model with Idefics3's eyes; its template takes texts where there is no other."""
    folder.mkdir()
    config = {"model_type": "idefics3", "vision_config": {"x": 1}, "text_config": {}, "eos_token_id": 1}
    config["text_config"] = {"max_position_embeddings": 2048}
    sizes = {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}, **preprocessor}
    files = {
        "config.json": config,
        "preprocessor_config.json": sizes,
        "processor_config.json": {"image_seq_len": TILE_TOKENS},
    }
    for name, document in files.items():
        (folder / name).write_text(json.dumps(document))
    marks = [FENCE, PIXEL, WHOLE, "<end_of_utterance>", *PLACES]
    (folder / "tokenizer.json").write_text(trained(staged(*DEEPSEEK_STAGES), marks=marks), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
