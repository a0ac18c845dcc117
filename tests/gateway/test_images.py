"""Requests with images, from the body to the engine and the books."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Any

import pytest

from billing.tenancy.api_key import KeyTerms
from engine.api import PromptRefused
from gateway.images import ImageReader
from gateway.options import FetchOptions
from recipe.families.limits import refuse_overlong
from recipe.images import NO_IMAGES, ImageBounds, Images, PlacedImage, origin_of, sources_of
from recipe.prompt import Prompt
from recipe.request import Request
from tests.gateway.conftest import EPOCH, OPTIONS, House, furnish, served
from tests.gateway.doubles import CONTEXT_TOKENS, MODEL, CharacterRecipe, Play, says
from tests.gateway.limiting import MINUTE_US, bucket
from tests.gateway.test_image_fetch import HERE, PICTURE, Names, Web, picture, serving
from tests.gateway.test_limited import LimitedTenancy, Owned, of_key
from tests.pictures import data_url, png

RUN = 7
IMAGE = ord("I")


class SeeingRecipe(CharacterRecipe):
    """An image is seven tokens behind the text of its message."""

    reads_images = True

    def render(self, request: Request, scope: str = "", images: Images = NO_IMAGES) -> Prompt:
        prompt = super().render(request, scope)
        placed = tuple(
            PlacedImage(len(prompt.token_ids) + RUN * place, RUN, images[origin_of(source)])
            for place, source in enumerate(sources_of(request.conversation))
        )
        token_ids = (*prompt.token_ids, *[IMAGE] * RUN * len(placed))
        refuse_overlong(len(token_ids), self.context_tokens)
        return replace(prompt, token_ids=token_ids, images=placed)


@dataclass
class Seeing:
    """A house whose model reads images, and the web from which it fetches them."""

    house: House
    web: Web
    names: Names = field(repr=False)

    def url(self, path: str = "/a") -> str:
        return self.web.at(path)

    def asks(self, *urls: str, **more: Any) -> Any:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return self.house.chat(messages=[{"role": "user", "content": parts}], **more)


@asynccontextmanager
async def seeing(
    database_url: str, valkey_url: str, owned: Owned | None = None, **fetching: Any
) -> AsyncIterator[Seeing]:
    async with serving(a=picture) as web:
        names = Names({"pictures.example": [HERE]})
        house = await furnish(database_url, valkey_url)
        reader = ImageReader(
            ImageBounds(),
            FetchOptions(**{"ports": frozenset({web.port}), **fetching}),
            resolver=names,
            allowed=(ip_network(HERE),),
        )
        house.parts = replace(house.parts, recipe=SeeingRecipe(), images=reader)
        if owned is not None:
            tenancy = LimitedTenancy(house.parts.database, b"p" * 32)
            tenancy.owned = owned
            house.parts = replace(house.parts, tenancy=tenancy)
        async with served(house):
            yield Seeing(house, web, names)


@pytest.fixture
async def eyes(database_url: str, valkey_url: str) -> AsyncIterator[Seeing]:
    async with seeing(database_url, valkey_url) as made:
        yield made


async def test_an_image_is_held_billed_and_given_to_the_engine(eyes: Seeing) -> None:
    other = png(9, 9)
    async with eyes.asks(eyes.url(), data_url(other), max_tokens=5) as answer:
        usage = (await answer.json())["usage"]
    [row] = await eyes.house.settled()
    prompt = len("user:<｜image｜>\n\n<｜image｜>\n") + 2 * RUN
    assert usage["prompt_tokens"] == row.cache_miss == prompt
    [generation] = eyes.house.engine.generations
    images = generation.request.images
    assert [one.data for one in images] == [PICTURE, other]
    assert [(one.offset, one.tokens) for one in images] == [(prompt - 2 * RUN, RUN), (prompt - RUN, RUN)]
    assert all(len(one.digest) == 64 for one in images)
    assert len(generation.request.prompt_ids) == prompt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/messages",
            {
                "max_tokens": 5,
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image", "source": {"type": "url", "url": "{url}"}}],
                    }
                ],
            },
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "{url}"}]}]},
        ),
    ],
)
async def test_every_surface_fetches_and_says_what_is_wrong_in_its_words(
    eyes: Seeing, path: str, body: dict[str, Any]
) -> None:
    async def asked(url: str) -> tuple[int, Any]:
        text = json.dumps({"model": MODEL, **body}).replace("{url}", url)
        headers = {**eyes.house.headers, "content-type": "application/json"}
        async with eyes.house.session.post(eyes.house.url + path, data=text, headers=headers) as answer:
            return answer.status, await answer.json()

    status, _ = await asked(eyes.url())
    assert status == 200
    status, document = await asked("http://10.0.0.1/")
    assert status == 400
    where = "messages[0].content[0]" if "messages" in body else "input[0]"
    assert f"'{where}'" in document["error"]["message"]
    assert document["error"].get("param", where) == where


async def test_tokens_are_counted_with_images(eyes: Seeing) -> None:
    content = [{"type": "image", "source": {"type": "url", "url": eyes.url()}}]
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    counting = f"{eyes.house.url}/v1/messages/count_tokens"
    async with eyes.house.session.post(counting, json=body, headers=eyes.house.headers) as answer:
        assert await answer.json() == {"input_tokens": len("user:<｜image｜>\n") + RUN}
    assert await eyes.house.nothing_happened()


async def test_a_stranger_causes_no_fetch(eyes: Seeing) -> None:
    eyes.house.key = "kv_live_unknown"
    async with eyes.asks(eyes.url()) as answer:
        assert answer.status == 401
    assert eyes.names.asked == []


async def test_a_key_that_may_not_ask_the_model_causes_no_fetch(eyes: Seeing) -> None:
    tenancy = eyes.house.parts.tenancy
    terms = KeyTerms(models=frozenset({"another"}))
    issued = await tenancy.create_key(eyes.house.tenant_id, "narrow", EPOCH, terms=terms)
    eyes.house.key = issued.secret
    async with eyes.asks(eyes.url()) as answer:
        assert answer.status == 403
    assert eyes.names.asked == []


async def test_who_would_not_be_admitted_causes_no_fetch(eyes: Seeing) -> None:
    async with eyes.asks(data_url(PICTURE)) as answer:
        assert answer.status == 200
    await eyes.house.settled()
    await eyes.house.spend(leaving=1)
    async with eyes.asks(eyes.url()) as answer:
        assert answer.status == 402
    assert eyes.names.asked == []


async def test_who_has_used_up_a_limit_causes_no_fetch_and_is_counted_once(
    database_url: str, valkey_url: str
) -> None:
    async with seeing(database_url, valkey_url, of_key("requests_per_minute", 2)) as eyes:
        key = f"kv:{{{eyes.house.tenant_id}}}:limit:{eyes.house.key_id}/requests_per_minute.r/*/*"
        async with eyes.asks(eyes.url()) as answer:
            assert answer.status == 200
        assert (await bucket(eyes.house.parts.valkey, key))[0] <= MINUTE_US
        async with eyes.asks(eyes.url()) as answer:
            assert answer.status == 200
        async with eyes.asks(eyes.url()) as answer:
            assert answer.status == 429
            assert answer.headers["retry-after"]
    assert len(eyes.names.asked) == 2


async def test_a_model_that_reads_no_images_causes_no_fetch(eyes: Seeing, house: House) -> None:
    parts = [{"type": "image_url", "image_url": {"url": eyes.url()}}]
    async with house.chat(messages=[{"role": "user", "content": parts}]) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == "messages"
    assert eyes.names.asked == []
    assert await house.nothing_happened()


async def test_what_cannot_be_fetched_is_never_held(eyes: Seeing) -> None:
    async with eyes.asks(eyes.url("/a"), "http://inside.example/") as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "invalid_image_url", "messages[0]")
    assert "inside.example" not in error["message"]
    async with eyes.asks(data_url(PICTURE[:-9])) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "invalid_parameter", "messages[0]")
    async with eyes.asks(*[data_url(png(1, n)) for n in range(1, 18)]) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (422, "messages")
    assert "image_count_max" in error["message"]
    assert await eyes.house.nothing_happened()


async def test_images_count_for_the_models_context(eyes: Seeing) -> None:
    text = [{"type": "text", "text": "a" * (CONTEXT_TOKENS - 30)}]
    parts = [*text, *({"type": "image_url", "image_url": {"url": data_url(PICTURE)}} for _ in range(9))]
    async with eyes.house.chat(messages=[{"role": "user", "content": parts}]) as answer:
        assert (await answer.json())["error"]["code"] == "context_length_exceeded"


async def test_a_house_may_fetch_nothing(database_url: str, valkey_url: str) -> None:
    async with seeing(database_url, valkey_url, urls=False) as eyes:
        async with eyes.asks(eyes.url()) as answer:
            assert answer.status == 400
            assert "as base64" in (await answer.json())["error"]["message"]
        async with eyes.asks(data_url(PICTURE)) as answer:
            assert answer.status == 200
    assert eyes.names.asked == []


async def test_an_image_that_the_worker_cannot_read_costs_nothing(eyes: Seeing) -> None:
    eyes.house.engine.play = Play(prefill=PromptRefused("this image cannot be read"))
    async with eyes.asks(data_url(PICTURE)) as answer:
        assert answer.status == 400
        assert "cannot be read" in (await answer.json())["error"]["message"]
    assert await eyes.house.nothing_happened()


async def test_bodies_have_room_for_the_images_they_may_hold(eyes: Seeing, house: House) -> None:
    large = data_url(png(2048, 8192, shade=7) + bytes(300_000))
    assert len(large) > OPTIONS.body_bytes_max
    async with eyes.asks(large) as answer:
        assert answer.status == 200
    parts = [{"type": "image_url", "image_url": {"url": large}}]
    async with house.chat(messages=[{"role": "user", "content": parts}]) as answer:
        assert answer.status == 413


async def test_a_retry_gets_its_answer_again(eyes: Seeing) -> None:
    eyes.house.engine.play = Play([says("seen"), says("\0", "stop")])
    eyes.house.session.headers["idempotency-key"] = "one"
    answers = []
    for _ in range(2):
        async with eyes.asks(eyes.url()) as answer:
            answers.append(await answer.read())
    assert answers[0] == answers[1]
    assert len(eyes.house.engine.generations) == 1
