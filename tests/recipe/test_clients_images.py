"""Bodies with images that real clients sent: a model that reads images accepts them all."""

from collections.abc import Iterator

import msgspec
import pytest

from recipe.errors import RecipeError
from recipe.images import ImageBounds, Images, data_of, origin_of, read_image, sources_of
from recipe.protocols import chat, messages, responses
from recipe.registry import Recipe
from recipe.request import Request
from tests.pictures import png
from tests.recipe.recordings import every, sent_to

READERS = {"/chat/completions": chat.read, "/responses": responses.read, "/messages": messages.read}


def with_images() -> Iterator[tuple[str, Request]]:
    """Every recording that is read, and in whose conversation images are."""
    for end, read in READERS.items():
        for recording in sent_to(end):
            try:
                request = read(msgspec.json.encode(recording.body))
            except RecipeError:  # for a reason that other tests know
                continue
            if sources_of(request.conversation):
                yield recording.name, request


FOUND = list(with_images())


def held(request: Request) -> Images:
    """What lies at URLs is a picture of ours."""
    return {
        origin_of(source): read_image(
            data_of(source.data_url) if source.data_url else png(64, 48), source, ImageBounds()
        )
        for source in sources_of(request.conversation)
    }


def test_every_protocol_has_recordings_of_images() -> None:
    clients = {name.partition("/")[0] for name, _ in FOUND}
    assert not every() or {"openai-python", "anthropic-python", "langchain-openai-responses"} <= clients


@pytest.mark.parametrize("model", ["chatml", "deepseek"])
@pytest.mark.parametrize(("name", "request_"), FOUND, ids=[name for name, _ in FOUND])
def test_a_recorded_image_is_accepted(
    name: str, request_: Request, model: str, eyed: Recipe, deepseek_eyed: Recipe
) -> None:
    recipe = {"chatml": eyed, "deepseek": deepseek_eyed}[model]
    prompt = recipe.render(request_, "", held(request_))
    assert len(prompt.images) == len(sources_of(request_.conversation))
    text = recipe.tokenizer.decode_bytes(prompt.token_ids).decode()
    assert all(
        part.strip() in text
        for message in request_.conversation.messages
        for part in message.content.split("<｜image｜>")
    )
