"""From a body to its prompt: read, permitted, its images had from where they lie, rendered and encoded."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic

from deepseek_recipe import ImageSource

from billing.tenancy.api_key import KeyGrant, TrafficClass
from gateway.desk import Desk
from gateway.models import ServedModel
from gateway.permission import max_tokens, require_model, traffic_class
from gateway.settle import Terms
from gateway.surface import Asked, R, Surface
from recipe.conversation import has_tools
from recipe.errors import ParameterInvalid, ParameterUnsupported, PromptTooLong
from recipe.images import NO_IMAGES, Images, sources_of
from recipe.request import Request

# Reading and encoding a body of this size takes long enough to be kept off the event loop.
THREAD_BODY_BYTES: Final = 16 * 1024


async def understood(
    desk: Desk, grant: KeyGrant, surface: Surface[R], body: bytes, class_header: str | None
) -> Asked[R]:
    """Read, render and encode a body, off the event loop where that takes long.

    Images are fetched for who may ask, would be admitted, and asks a model that reads them.

    Raises as `Surface.read`, `Catalog.find`, `require_model`, `ImageReader.read`, `Pumps.would_take` and
    `Recipe.render` do.
    """
    understand = partial(_understand, desk, grant, surface, body, class_header)
    asked = await asyncio.to_thread(understand) if len(body) > THREAD_BODY_BYTES else understand()
    if isinstance(asked, Asked):
        return asked
    with _named(asked.request):
        if any(source.url is not None for source in asked.sources):
            await desk.pumps.would_take(asked.least)
        images = await desk.images.read(grant.tenant_id, asked.sources)
    return await asyncio.to_thread(asked.rendered, images)


def _understand(
    desk: Desk, grant: KeyGrant, surface: Surface[R], body: bytes, class_header: str | None
) -> "Asked[R] | Read[R]":
    """What a body asks for; what is read of it where its images are still to be had."""
    request = surface.read(body)
    served = desk.catalog.find(request.model)
    require_model(grant, served.name)
    # Conversations with tools come back sooner and more often.
    by_looks: TrafficClass = "agent" if has_tools(request.conversation) else "chat"
    kept_as = traffic_class(grant, class_header, by_looks)
    read = Read(grant, request, served, kept_as)
    return read if served.recipe.reads_images and read.sources else read.rendered(NO_IMAGES)


@dataclass(frozen=True, slots=True)
class Read(Generic[R]):
    """A body that may be answered, before its prompt is rendered."""

    grant: KeyGrant
    request: R
    served: ServedModel
    traffic_class: TrafficClass

    @property
    def sources(self) -> list[ImageSource]:
        """Where its images come from."""
        return sources_of(self.request.conversation)

    @property
    def least(self) -> Terms:
        """Terms of the smallest request that it can turn out to be."""
        return self.terms(1, 1)

    def terms(self, prompt_tokens: int, output_tokens_max: int) -> Terms:
        """What is known of its price."""
        return Terms(
            grant=self.grant,
            model=self.served.name,
            prompt_tokens=prompt_tokens,
            output_tokens_max=output_tokens_max,
            traffic_class=self.traffic_class,
            tier="flex" if self.request.service_tier == "flex" else "standard",
            user_id=self.request.user_id,
        )

    def rendered(self, images: Images) -> Asked[R]:
        """The prompt, and how long the answer may be. Raises as `Recipe.render` and `max_tokens` do."""
        request, recipe = self.request, self.served.recipe
        with _named(request):
            prompt = recipe.render(request, f"{self.grant.tenant_id}/{request.user_id}", images)
            fitting = recipe.max_tokens(request, prompt)
        longest = max_tokens(self.grant, request, fitting)
        return Asked(request, self.served, prompt, longest, self.traffic_class)


@contextmanager
def _named(request: Request) -> Iterator[None]:
    """Refusals in it name parameters as the request's surface does."""
    try:
        yield
    except (ParameterInvalid, ParameterUnsupported, PromptTooLong) as error:
        error.param = request.names.get(error.param, error.param)
        raise
