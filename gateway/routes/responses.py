"""OpenAI's Responses, streamed and not, and how many tokens a body has."""

from functools import partial
from typing import Final

import msgspec
from litestar import post
from litestar.response.base import ASGIResponse

from gateway import paths, sse
from gateway.admission.hold import Hold
from gateway.desk import AnyRequest
from gateway.errors import answer_of
from gateway.routes import inference
from gateway.surface import Asked
from gateway.writer import StreamWriter, WholeWriter, Writer
from recipe.protocols import responses, responses_stream
from recipe.protocols.responses import ResponsesRequest
from recipe.protocols.responses_stream import ResponseHead, ResponsesStream


class ResponsesSurface:
    """See `gateway.surface.Surface`."""

    heartbeat = sse.COMMENT

    def read(self, body: bytes) -> ResponsesRequest:
        """See `Surface`."""
        return responses.read(body)

    def writer(self, asked: Asked[ResponsesRequest], hold: Hold) -> Writer:
        """See `Surface`."""
        head = ResponseHead(
            id=str(hold.request_id),
            model=asked.served.name,
            created_at=int(hold.admitted_at.timestamp()),
            echo=asked.request.echo,
            namespaces=asked.request.namespaces,
            custom_tools=asked.request.custom_tools,
            encrypted=asked.request.encrypted,
        )
        if not asked.request.stream:
            return WholeWriter(partial(responses_stream.answer, head), self.broken)
        stream = ResponsesStream(head)
        return StreamWriter(stream, partial(_failed, stream))

    def broken(self, error: Exception) -> bytes:
        """See `Surface`: these streams, too, begin and end as all of them do."""
        return _failed(ResponsesStream(ResponseHead.unknown()), error)


def _failed(stream: ResponsesStream, error: Exception) -> bytes:
    failure = msgspec.json.decode(answer_of(error).body)["error"]
    return b"".join(map(sse.frame, stream.failing(failure)))


SURFACE: Final = ResponsesSurface()


@post(list(paths.RESPONSES), status_code=200)
async def respond(request: AnyRequest) -> ASGIResponse:
    """Answer a conversation; see `gateway.routes.inference.answer`."""
    return await inference.answer(request, SURFACE)


@post(list(paths.INPUT_TOKENS), status_code=200)
async def count(request: AnyRequest) -> dict[str, str | int]:
    """Say how many tokens a body's prompt has; nothing is held or charged for it."""
    tokens = await inference.count(request, SURFACE)
    return {"object": "response.input_tokens", "input_tokens": tokens}
