"""The requests that workers are sent, as vLLM 0.32.0 reads them."""

from dataclasses import asdict
from typing import Any

from engine.cluster.request import GenerateRequest
from engine.cluster.salt import cache_salt, scope_digest
from engine.wire import RequestParams, Stage


class Bodies:
    """Writes request bodies; knows the salt secret, so nobody else in the cluster has to."""

    def __init__(self, salt_secret: bytes) -> None:
        self._salt_secret = salt_secret

    def prefill(self, request: GenerateRequest, attempt: int) -> dict[str, Any]:
        """Compute and publish the prompt's blocks: one greedy token, to be dropped, in an unstreamed answer.

        Only unstreamed answers bring parameters back, and the attestation is one.
        """
        sampling = {"max_tokens": 1, "temperature": 0.0, "detokenize": False}
        return {**self._common(request, "prefill", attempt), "sampling_params": sampling, "stream": False}

    def decode(self, request: GenerateRequest, attempt: int) -> dict[str, Any]:
        """Load the prompt's blocks and generate, streamed."""
        sampling = {**asdict(request.sampling), "detokenize": False}
        return {**self._common(request, "decode", attempt), "sampling_params": sampling, "stream": True}

    def _common(self, request: GenerateRequest, stage: Stage, attempt: int) -> dict[str, Any]:
        """Return what both stages share.

        The worker's own `request_id` names the stage and the try as well: an abort must stop that call alone.
        """
        params = RequestParams(
            request_id=request.request_id,
            attempt=attempt,
            stage=stage,
            retention_class=request.retention_class,
            nonce=request.nonce,
            memo=request.memo,
            tenant=request.tenant,
            scope_digest=scope_digest(self._salt_secret, request.tenant, request.scope),
        )
        return {
            "request_id": f"{request.request_id}-{stage}-{attempt}",
            "token_ids": request.prompt_ids,
            "cache_salt": cache_salt(self._salt_secret, request.tenant, request.scope),
            "kv_transfer_params": params.to_params(),
        }
