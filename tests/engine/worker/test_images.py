"""What becomes of a call's images before vLLM sees it, and what of vLLM that rests on."""

import base64
import hashlib
import inspect
import json
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
from vllm.multimodal.processing.processor import BaseMultiModalProcessor
from vllm.renderers.base import BaseRenderer
from vllm.renderers.online_renderer import OnlineRenderer

from engine.wire import IMAGE_REFUSED, IMAGES
from engine.worker import images
from engine.worker.images import ImagesRefused, SentImage

SENT = {"offset": 3, "tokens": 2, "data": base64.b64encode(b"a file").decode()}


def taken(body: bytes, served: bool = True) -> tuple[bytes, tuple[SentImage, ...]]:
    """What `take` leaves of a body, and what it leaves for whoever serves the call."""

    def take() -> tuple[bytes, tuple[SentImage, ...]]:
        return images.take(body, served), images._SENT.get()

    return copy_context().run(take)


def call(**fields: Any) -> bytes:
    return json.dumps({"token_ids": [1, 2, 3, 4, 5, 6], **fields}).encode()


def test_images_leave_the_body_and_wait_in_the_context_of_the_call() -> None:
    body, sent = taken(call(images=[SENT]))
    assert json.loads(body) == {"token_ids": [1, 2, 3, 4, 5, 6]}
    assert sent == (SentImage(3, 2, b"a file"),)
    assert images._SENT.get() == (), "another call has none"


@pytest.mark.parametrize(
    "body",
    [
        call(),
        b"no json",
        b'{"images": ',
        b'["images"]',
        b'{"images": ' + b"[" * 100_000,
        call(images=None),
        call(images=[]),
    ],
)
def test_what_has_no_images_is_left_to_vllm(body: bytes) -> None:
    left, sent = taken(body, served=False)
    assert sent == ()
    assert left == body


@pytest.mark.parametrize(
    "sent",
    [
        7,
        "text",
        [None],
        [SENT | {"offset": -1}],
        [SENT | {"tokens": "2"}],
        [SENT | {"data": "no base64!"}],
        [SENT | {"data": None}],
        [{"offset": 3, "tokens": 2}],
    ],
)
def test_images_that_no_cluster_sends_are_refused(sent: object) -> None:
    with pytest.raises(ImagesRefused, match=IMAGE_REFUSED):
        taken(call(images=sent))


def test_a_model_without_eyes_refuses_images_and_too_many_bytes_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ImagesRefused, match="takes none"):
        taken(call(images=[SENT]), served=False)
    monkeypatch.setattr(images, "IMAGES_BYTES_MAX", 11)
    with pytest.raises(ImagesRefused, match="11 bytes"):
        taken(call(images=[SENT, SENT]))


def test_which_images_are_attested_is_read_off_the_bytes_that_came() -> None:
    body, (image,) = taken(call(images=[SENT], kv_transfer_params={"images": [(9, "made up")], "memo": "m"}))
    digest = hashlib.sha256(b"a file").hexdigest()
    assert image.digest == digest
    assert json.loads(body)["kv_transfer_params"] == {"images": [[3, digest]], "memo": "m"}


def test_a_text_model_is_left_as_it_is() -> None:
    model = SimpleNamespace(is_multimodal_model=False)
    assert not images.serve(SimpleNamespace(serving_tokens=SimpleNamespace(model_config=model)))
    assert not images.serve(SimpleNamespace(engine_client=None))


def test_vllm_has_what_images_rest_on() -> None:
    """A new version of vLLM is looked at before it is taken."""
    assert vllm.__version__.split("+")[0] == "0.32.0"
    parameters = {
        BaseMultiModalProcessor._apply_prompt_updates: ["self", "token_ids", "mm_prompt_updates"],
        BaseMultiModalProcessor._find_mm_placeholders: ["self", "new_token_ids", "mm_prompt_updates"],
        BaseRenderer.render_cmpl_async: ["self", "prompts", "tok_params", "prompt_extras", "skip_mm_cache"],
    }
    for method, names in parameters.items():
        assert list(inspect.signature(method).parameters) == names
    applying = inspect.getsource(BaseMultiModalProcessor._maybe_apply_prompt_updates)
    assert "self._apply_prompt_updates(" in applying
    assert "self.online_renderer.preprocess_completion(" in inspect.getsource(ServingTokens.serve_tokens)
    assert "request" in inspect.signature(OnlineRenderer.preprocess_completion).parameters
    assert IMAGES not in GenerateRequest.model_fields
