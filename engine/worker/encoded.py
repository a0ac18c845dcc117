"""What encode workers make of images, left in files for the workers that compute prompts.

vLLM's own connector for examples, as it should be for a crowd: a file appears whole (rename) and is written
once, asking leaves nothing behind, and what nobody has used for an hour goes. Names hold the tenant's salt
(`engine.proof.prefix.image_name`), so no tenant finds another's. What is not there is computed by whoever
needs it.
"""

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
from vllm.distributed.ec_transfer.ec_connector.example_connector import ECExampleConnector

from engine.worker import clock

_LOG: Final = logging.getLogger("vllm.kvitto.encoded")
_KEPT_S: Final = 3600.0
_SWEEP_EVERY_S: Final = 60.0
_SUFFIX: Final = ".safetensors"


class EncodedImages(ECExampleConnector):  # type: ignore[misc]  # vllm is untyped here
    """Both halves of vLLM's connector; ``shared_storage_path`` of its configuration is the folder."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        self._folder = Path(self._storage_path)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._swept_s = clock.monotonic_s()

    def has_cache_item(self, identifier: str) -> bool:
        """Whether there is a whole file; then it stays long enough to be read."""
        path = self._path(identifier)
        try:
            with safetensors.safe_open(
                path, framework="pt"
            ):  # compares its length with what it says it holds
                pass
            os.utime(path)
        except (OSError, safetensors.SafetensorError):
            return False
        return True

    def save_caches(self, encoder_cache: Any, mm_hash: str, **kwargs: Any) -> None:  # noqa: ARG002 -- vLLM's signature
        """Leave what was made of an image. What fails is logged: the next worker makes it again."""
        path = self._path(mm_hash)
        if not self.is_producer or path.exists():
            return
        temporary = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            # vLLM's runner may hand over a part of a batch.
            tensor = encoder_cache[mm_hash].detach().cpu().contiguous()
            safetensors.torch.save_file({"ec_cache": tensor}, temporary)
            temporary.replace(path)
            self._sweep()
        except (OSError, safetensors.SafetensorError):
            _LOG.exception("what was made of an image was not left")
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _path(self, identifier: str) -> Path:
        return self._folder / f"{identifier}{_SUFFIX}"

    def _generate_filename_debug(self, mm_hash: str) -> str:
        return str(self._path(mm_hash))

    def _sweep(self) -> None:
        """Now and then remove what was used by nobody for long, half-written files too."""
        if clock.monotonic_s() - self._swept_s < _SWEEP_EVERY_S:
            return
        self._swept_s = clock.monotonic_s()
        before_s = clock.now_s() - _KEPT_S
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before_s:
                    path.unlink()
