"""Images of requests: those that bodies hold are read, those that lie elsewhere are fetched, with care.

A client says where an image lies, and may mean a door that it cannot reach itself. Whatever a URL says,
however a name resolves and wherever a redirect leads, a socket is made to public addresses alone: the check
stands where it is made, so there is no time between the two. What is fetched is bounded in bytes, time and
number, kept for nobody, and believed in nothing: not its length, not its type.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import aiohttp
from aiohttp.abc import AbstractResolver
from deepseek_recipe import ImageSource
from yarl import URL

from gateway.destinations import DestinationRefused, Network, guarded_connector
from gateway.options import FetchOptions
from gateway.refusal import ImageNotFetched, ImagesBusy
from recipe.images import Image, ImageBounds, Images, data_of, origin_of, param_of, read_image

REDIRECTS_MAX: Final = 3
URL_CHARS_MAX: Final = 8192
CHUNK_BYTES: Final = 64 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# Compressed answers are not expanded: images are compressed already, and bombs are too.
_HEADERS: Final = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "kvitto"}


class _Allowance:
    """Bytes that a request may still fetch, all its images together."""

    __slots__ = ("left",)

    def __init__(self, bytes_max: int) -> None:
        self.left = bytes_max


class ImageReader:
    """Reads the images of requests. Open, use and close it in one event loop.

    Args:
        resolver: of names; None for the system's.
        allowed: networks that may be reached beside the public Internet.
    """

    def __init__(
        self,
        bounds: ImageBounds,
        options: FetchOptions,
        *,
        resolver: AbstractResolver | None = None,
        allowed: Sequence[Network] = (),
    ) -> None:
        self.bounds = bounds
        self.options = options
        self._resolver = resolver
        self._allowed = allowed
        self._room = asyncio.Semaphore(options.at_once_max)
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Be ready to fetch. No proxy, no cookies, no connection that another request has left."""
        connector = guarded_connector(
            self._allowed,
            limit=self.options.at_once_max,
            force_close=True,
            use_dns_cache=False,
            resolver=self._resolver,
            happy_eyeballs_delay=None,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def close(self) -> None:
        """Drop what is being fetched."""
        if self._session is not None:
            await self._session.close()

    async def read(self, tenant_id: str, sources: Sequence[ImageSource]) -> Images:
        """The images of a conversation, each origin once.

        Raises:
            ParameterInvalid: there are too many, one is no image, or too large.
            ImageNotFetched: one could not be had from where it lies.
            ImagesBusy: this process fetches as many as it may.
        """
        self.bounds.count(sources)
        distinct = {origin_of(source): source for source in sources}
        room = self._rooms.setdefault(tenant_id, asyncio.Semaphore(self.options.at_once_tenant_max))
        allowance = _Allowance(self.bounds.request_bytes_max)
        reading = [asyncio.create_task(self._read(source, room, allowance)) for source in distinct.values()]
        try:
            images = dict(zip(distinct, await asyncio.gather(*reading), strict=True))
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        self.bounds.total([images[origin_of(source)] for source in sources])
        return images

    async def _read(self, source: ImageSource, room: asyncio.Semaphore, allowance: _Allowance) -> Image:
        if source.data_url is not None:
            return await asyncio.to_thread(self._held, source)
        data = await self._fetched(source, room, allowance)
        return await asyncio.to_thread(partial(read_image, data, source, self.bounds))

    def _held(self, source: ImageSource) -> Image:
        return read_image(data_of(source.data_url or ""), source, self.bounds)

    async def _fetched(self, source: ImageSource, room: asyncio.Semaphore, allowance: _Allowance) -> bytes:
        param, begun = param_of(source), False
        if not self.options.urls:
            raise ImageNotFetched(param, "no URLs are read here: send its bytes, as base64")
        try:
            # The tenant's first: who waits there takes no place of others.
            async with asyncio.timeout(self.options.fetch_s), room, self._room:
                begun = True
                return await self._followed(source.url or "", param, allowance)
        except TimeoutError:
            if not begun:
                raise ImagesBusy from None
            raise ImageNotFetched(param, f"it did not come within {self.options.fetch_s:g} seconds") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, DestinationRefused):
                raise ImageNotFetched(param, "its address is not of the public Internet") from None
            raise ImageNotFetched(param, "its host does not answer") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise ImageNotFetched(param, "its host does not answer as HTTP hosts do") from None

    async def _followed(self, url: str, param: str, allowance: _Allowance) -> bytes:
        """What lies at a URL, or where it redirects to."""
        assert self._session is not None, "open it first"
        at = self._checked(url, param)
        for _ in range(REDIRECTS_MAX + 1):
            async with self._session.get(at, allow_redirects=False) as response:
                if response.status in _REDIRECTS:
                    at = self._checked(response.headers.get("location", ""), param, at)
                    continue
                if response.status != 200:
                    raise ImageNotFetched(param, f"its host answers {response.status}")
                return await self._body(response, param, allowance)
        raise ImageNotFetched(param, f"it redirects more than {REDIRECTS_MAX} times")

    async def _body(self, response: aiohttp.ClientResponse, param: str, allowance: _Allowance) -> bytes:
        """All of a body; what it says of its length is a reason to refuse it, never to believe it."""
        most = self.bounds.image_bytes_max
        together = self.bounds.request_bytes_max
        too_long = ImageNotFetched(
            param,
            f"it has more than {most} bytes (image_bytes_max), or the images together more than {together}"
            " (request_bytes_max)",
        )
        if (response.content_length or 0) > most:
            raise too_long
        body = bytearray()
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            body += chunk
            allowance.left -= len(chunk)
            if len(body) > most or allowance.left < 0:
                raise too_long
        return bytes(body)

    def _checked(self, url: str, param: str, base: URL | None = None) -> URL:
        """A URL, perhaps relative to another, that may be asked for. Where it leads, its socket sees."""
        if len(url) > URL_CHARS_MAX:
            raise ImageNotFetched(param, f"its URL has more than {URL_CHARS_MAX} characters")
        try:
            read = URL(url) if base is None else base.join(URL(url))
            port = read.port
        except ValueError:
            raise ImageNotFetched(param, "its URL is malformed") from None
        if read.scheme not in ("http", "https") or not read.host:
            raise ImageNotFetched(param, "its URL is neither http nor https")
        if read.user is not None or read.password is not None:
            raise ImageNotFetched(param, "its URL holds credentials")
        if port not in self.options.ports:
            raise ImageNotFetched(param, f"port {port} is not served")
        return read
