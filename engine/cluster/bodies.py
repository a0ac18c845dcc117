"""The calls that workers are sent, as vLLM 0.32.0 reads them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.cluster.request import Constraint, GenerateRequest, ImageInput, Sampling
from engine.cluster.salt import cache_salt, scope_digest
from engine.proof.prefix import ImageRun, image_name
from engine.wire import IMAGES, RequestParams, Stage


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one request to one worker.

    Args:
        request: whose call it is.
        attempt: its number among all calls of the request, from 0.
        stage: what is asked of the worker.
        carried: output that the owner has already; sent behind the prompt.
        first_token: the token that a prefill draws is the client's.
    """

    request: GenerateRequest
    attempt: int
    stage: Stage
    carried: tuple[int, ...] = ()
    first_token: bool = False

    @property
    def worker_request_id(self) -> str:
        """Name of the call at the worker, which an abort must give: it stops this call alone."""
        return f"{self.request.request_id}-{self.stage}-{self.attempt}"


class Bodies:
    """Writes request bodies; knows the salt secret, so nobody else in the cluster has to."""

    def __init__(self, salt_secret: bytes) -> None:
        self._salt_secret = salt_secret

    def salt(self, request: GenerateRequest) -> str:
        """Return the salt that names a request's blocks."""
        return cache_salt(self._salt_secret, request.tenant, request.scope)

    def images(self, request: GenerateRequest) -> tuple[ImageRun, ...]:
        """Return a request's images as its blocks name them."""
        salt = self.salt(request)
        return tuple(
            ImageRun(image.offset, image.tokens, image_name(salt, image.digest)) for image in request.images
        )

    def of(self, call: Call) -> dict[str, Any]:
        """Return the body of a call.

        A prefill is unstreamed, because only such answers bring parameters back, and draws one token: the
        client's own, or else a greedy one to be dropped. Images go with every call: whoever computes a part
        of one's tokens, be it for a block that is gone, needs all of it, and its name in the blocks.
        """
        request = call.request
        params = RequestParams(
            request_id=request.request_id,
            attempt=call.attempt,
            stage=call.stage,
            retention_class=request.retention_class,
            nonce=request.nonce,
            memo=request.memo,
            tenant=request.tenant,
            scope_digest=scope_digest(self._salt_secret, request.tenant, request.scope),
            output_from=len(call.carried),
            first_token=call.first_token,
            weight=request.weight,
        )
        body = {
            "request_id": call.worker_request_id,
            "token_ids": (*request.prompt_ids, *call.carried),
            "cache_salt": self.salt(request),
            "sampling_params": {**_sampling(call), "detokenize": False},
            "stream": call.stage != "prefill",
            "kv_transfer_params": params.to_params(),
        }
        if request.images:
            body[IMAGES] = _images(request.images)
        return body

    def to_encode(self, request: GenerateRequest, worker_request_id: str) -> dict[str, Any]:
        """Return the body of the call that has a request's images encoded: their tokens alone."""
        token_ids: list[int] = []
        images: list[ImageInput] = []
        for image in request.images:
            images.append(replace(image, offset=len(token_ids)))
            token_ids += request.prompt_ids[image.offset : image.offset + image.tokens]
        return {
            "request_id": worker_request_id,
            "token_ids": token_ids,
            "cache_salt": self.salt(request),
            "sampling_params": {"max_tokens": 1, "detokenize": False},
            "stream": False,
            IMAGES: _images(images),
        }


def _images(images: Sequence[ImageInput]) -> list[dict[str, Any]]:
    """What `engine.worker.images` reads; JSON's encoder writes the bytes as base64."""
    return [{"offset": image.offset, "tokens": image.tokens, "data": image.data} for image in images]


def _sampling(call: Call) -> dict[str, Any]:
    sampling = call.request.sampling
    if call.stage != "prefill":
        # A grammar's state is lost with the worker, and its next token would begin the answer anew.
        assert sampling.constraint is None or not call.carried
        return {**_drawn(sampling), "max_tokens": sampling.max_tokens - len(call.carried)}
    if call.first_token:
        return {**_drawn(sampling), "max_tokens": 1}
    return {"max_tokens": 1, "temperature": 0.0}


def _drawn(sampling: Sampling) -> dict[str, Any]:
    """How the client's own tokens are drawn.

    vLLM counts the drawn token among the likeliest it tells of, so it is asked for one more
    (`engine.cluster.answer`).
    """
    fields = asdict(sampling)
    del fields["constraint"]
    if sampling.logprobs:
        fields["logprobs"] = sampling.logprobs + 1
    if sampling.constraint is not None:
        fields["structured_outputs"] = _structured_outputs(sampling.constraint)
    return fields


def _structured_outputs(constraint: Constraint) -> dict[str, Any]:
    return {constraint.kind: constraint.text if constraint.kind != "json_object" else True}
