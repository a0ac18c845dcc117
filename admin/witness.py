"""A witness: follows a deployment's receipt log from outside, and remembers what it was shown.

Who shows one log to some and another to others is found out as soon as two witnesses compare, or as one of
them is shown both. It knows a head by its signature, and that the log has only grown by proofs.

Alarm
├── Fork        what is shown now is not what was shown before, grown
├── Shrunk      the log has fewer leaves than it had, or is dated before that
└── Unsigned    a head, or a key, that the keys we know have not signed
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

import aiohttp

from admin.settings import write_private
from admin.verify.trust import Pin
from billing.errors import ProofBroken
from billing.receipts.head import TreeHead
from billing.receipts.merkle import check_consistency
from engine.proof import signed
from engine.proof.ring import DeploymentRing
from engine.proof.signed import ProofInvalid

KIND: Final = "kvitto.witness.v1"
ANSWER_BYTES_MAX: Final = 8 * 2**20
TIMEOUT_S: Final = 30.0
# A gateway may show a head that is some seconds old, and another one the next.
STALE_TRIES: Final = 3
STALE_PAUSE_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a log shows of itself: the text of its newest head, None where there is none, and of its keys."""

    head: str | None
    keys: str


class Alarm(Exception):
    """The log is not what it was said to be; never raised itself. ``shown`` is what it has shown."""

    shown: Shown | None = None


class Fork(Alarm):
    """What is shown now is not what was shown before, grown."""


class Shrunk(Alarm):
    """The log has fewer leaves than it had, or its head is dated before the last one."""


class Unsigned(Alarm):
    """A head or a key that is not signed by the keys that we know."""


class LogUnreachable(Exception):
    """The log does not answer, or not as one: no alarm, asking again may help."""


class StateInvalid(Exception):
    """The file is no state of a witness, or one of another log."""


class Source(Protocol):
    """Where a log is asked. Methods raise LogUnreachable."""

    async def newest(self) -> Shown:
        """Ask what it shows."""

    async def consistency(self, first: int, second: int) -> tuple[bytes, ...] | None:
        """Ask for a proof; None: it has no head of one of these sizes."""


@dataclass(frozen=True, slots=True)
class State:
    """What a witness knows: the log's address, the ring of its keys and its last head, both as texts."""

    url: str
    keys: str | None = None
    head: str | None = None

    @classmethod
    def read(cls, path: Path, url: str) -> Self:
        """Read what `write` stored, or begin anew where there is no file.

        Raises:
            StateInvalid: a file of something else, or of another log.
        """
        if not path.exists():
            return cls(url)
        try:
            match json.loads(path.read_bytes()):
                case {"kind": kind, "url": str(known), "keys": keys, "head": head} if kind == KIND:
                    if known != url:
                        raise StateInvalid(f"{path} follows {known}, not {url}")
                    return cls(url, *(None if each is None else _text(each) for each in (keys, head)))
        except (OSError, ValueError, ProofInvalid) as error:
            raise StateInvalid(f"{path}: {error}") from error
        raise StateInvalid(f"{path} is no state of a witness")

    def write(self, path: Path) -> None:
        """Store it in one step: after a crash the file is the old or the new one."""
        keys, head = (None if each is None else json.loads(each) for each in (self.keys, self.head))
        write_private(path, signed.canonical({"kind": KIND, "url": self.url, "keys": keys, "head": head}))

    @property
    def ring(self) -> DeploymentRing | None:
        """The keys, None where none were shown yet."""
        return None if self.keys is None else DeploymentRing.read(self.keys)


@dataclass(frozen=True, slots=True)
class Witness:
    """Compares what a log shows with what is known of it.

    Args:
        pin: what is trusted of its keys; without one, the first that are shown are.
    """

    source: Source
    pin: Pin
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def look(self, state: State) -> State:
        """Look once: the new state, the same where nothing has changed.

        Raises:
            Alarm: the state stays what it was.
            LogUnreachable: nothing is known anew.
        """
        for tries_left in reversed(range(STALE_TRIES)):
            shown = await self.source.newest()
            try:
                ring = self._ring(state, shown)
                return State(state.url, ring.to_text(), await self._head(state, shown, ring))
            except Alarm as alarm:
                alarm.shown = shown
                if not isinstance(alarm, Shrunk) or not tries_left:
                    raise
                await self.sleep(STALE_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _ring(self, state: State, shown: Shown) -> DeploymentRing:
        """The keys as far as they are known now; all of them join."""
        try:
            ring = self.pin.ring_of(shown.keys)
            return ring if state.ring is None else Pin(ring=state.ring).ring_of(ring.to_text())
        except ProofInvalid as error:
            raise Unsigned(str(error)) from error

    async def _head(self, state: State, shown: Shown, ring: DeploymentRing) -> str | None:
        if shown.head is None:
            if state.head is not None:
                raise Shrunk("it shows no head any more")
            return None
        try:
            head = TreeHead.verify(shown.head, ring)
            known = None if state.head is None else TreeHead.verify(state.head, ring)
        except ProofInvalid as error:
            raise Unsigned(str(error)) from error
        if known is not None:
            await self._continues(known, head)
        return shown.head

    async def _continues(self, known: TreeHead, head: TreeHead) -> None:
        if head.size == known.size and head.root != known.root:
            raise Fork(f"two trees of {head.size} leaves: {known.root.hex()} and {head.root.hex()}")
        if head.size < known.size or head.at_s < known.at_s:
            raise Shrunk(
                f"{head.size} leaves dated {head.at_s}, where {known.size} dated {known.at_s} were shown"
            )
        if head.size == known.size:
            return
        path = await self.source.consistency(known.size, head.size)
        if path is None:
            raise Fork(f"it does not know the head of {known.size} leaves that it has signed")
        try:
            check_consistency((known.size, known.root), (head.size, head.root), path)
        except ProofBroken as error:
            raise Fork(error.reason) from error


class HttpSource:
    """A gateway's `/v1/receipts/log`; implements `Source`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._log = url.rstrip("/").removesuffix("/v1") + "/v1/receipts/log"

    async def newest(self) -> Shown:
        """See `Source`."""
        status, answer = await self._get("", {})
        match answer:
            case {"object": "receipt.log", "head": None | dict() as head, "keys": dict(keys)} if (
                status == 200
            ):
                return Shown(None if head is None else _text(head), _text(keys))
            case _:
                raise LogUnreachable(f"status {status}: that is no receipt log")

    async def consistency(self, first: int, second: int) -> tuple[bytes, ...] | None:
        """See `Source`."""
        status, answer = await self._get("/consistency", {"first": str(first), "second": str(second)})
        match answer:
            case {"path": [*path]} if status == 200 and all(isinstance(each, str) for each in path):
                try:
                    return tuple(map(bytes.fromhex, path))
                except ValueError as error:
                    raise LogUnreachable("its proof is no list of hashes") from error
            case {"error": {"code": "not_found"}} if status == 404:
                return None
            case _:
                raise LogUnreachable(f"status {status} instead of a proof")

    async def _get(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        headers = {"cache-control": "no-cache"}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._session.get(
                self._log + path, params=query, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                body = bytearray()
                async for chunk in answer.content.iter_chunked(2**16):
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise LogUnreachable("its answer is too long")
                return answer.status, json.loads(bytes(body))
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            raise LogUnreachable(str(error) or type(error).__name__) from error


def _text(document: Any) -> str:
    """A document as it was signed, whatever its layout was."""
    try:
        return signed.canonical(document).decode()
    except ProofInvalid as error:
        raise LogUnreachable(str(error)) from error
