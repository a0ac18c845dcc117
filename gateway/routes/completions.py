"""Completions of a raw text, streamed and not, in OpenAI's legacy shape."""

from functools import partial
from typing import Final

from litestar import post
from litestar.response.base import ASGIResponse

from gateway import paths, sse
from gateway.admission.hold import Hold
from gateway.desk import AnyRequest
from gateway.errors import answer_of
from gateway.routes import inference
from gateway.surface import Asked
from gateway.writer import StreamWriter, WholeWriter, Writer
from recipe.protocols import completions
from recipe.protocols.chat_answer import AnswerHead
from recipe.protocols.completions import CompletionRequest, CompletionStream


class CompletionSurface:
    """See `gateway.surface.Surface`."""

    heartbeat = sse.COMMENT

    def read(self, body: bytes) -> CompletionRequest:
        """See `Surface`."""
        return completions.read(body)

    def writer(self, asked: Asked[CompletionRequest], hold: Hold) -> Writer:
        """See `Surface`."""
        head = AnswerHead(
            id=f"cmpl-{hold.request_id}",
            model=asked.served.name,
            created=int(hold.admitted_at.timestamp()),
            service_tier=asked.request.service_tier,
        )
        if not asked.request.stream:
            return WholeWriter(partial(completions.answer, head), self.broken)
        stream = CompletionStream(head, include_usage=asked.request.include_usage)
        return StreamWriter(stream, self.broken, sse.DONE)

    def broken(self, error: Exception) -> bytes:
        """See `Surface`: no `[DONE]` follows it."""
        return sse.frame(answer_of(error).body)


SURFACE: Final = CompletionSurface()


@post(list(paths.COMPLETIONS), status_code=200)
async def complete(request: AnyRequest) -> ASGIResponse:
    """Continue a text; see `gateway.routes.inference.answer`."""
    return await inference.answer(request, SURFACE)
