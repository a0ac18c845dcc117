"""Requests that are asked again: answered once, charged once.

With an ``Idempotency-Key`` a request outlives its client; the same again joins it while it runs, and gets the
same bytes for a day after it. A key belongs to one API key, path and body.

    claim ──▶ pump ──▶ completed: recorded with its charge, kept ──▶ replayed
      │        ├─▶ failed: nothing charged, the key is let go, who asks again is served
      │        ╰─▶ its process died: the lease runs out, and who asks again first sees to it that the dead
      │            request costs nothing; where it has been charged by then, the answer is lost
      ├─▶ running ──▶ joined: waits for the answer, then gets it whole
      ├─▶ answered, but not kept ──▶ lost: refused, never charged again
      ╰─▶ another body ──▶ refused

Without one a client that leaves aborts its request. SDKs ask again silently, marked by a retry count alone:
such a retry gets an answer that was completed, charged, and not delivered as far as this gateway knows; once.
Identical requests cannot be told apart, so that a retry gets the oldest of theirs: as many are charged as are
delivered. Error answers are never kept.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from billing.tenancy.api_key import KeyGrant
from gateway.admission.hold import Hold
from gateway.channel import KeptChannel
from gateway.kept import Ask, Claimed, Kept, KeptAnswer, Lost, Running
from gateway.options import GatewayOptions
from gateway.pump import End, Order, Pump, Pumps
from gateway.refusal import IdempotencyKeyReused, IdempotencyResultLost, ValkeyUnavailable
from gateway.replay import Replay, follow
from gateway.settle import Settler, Terms
from gateway.tasks import stop
from gateway.telemetry import Telemetry, log
from gateway.vault import THREAD_BYTES
from recipe.errors import ParameterInvalid

KEY_HEADER: Final = "idempotency-key"
RETRY_HEADER: Final = "x-stainless-retry-count"
KEY_LENGTH_MAX: Final = 255
FORCED_END_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it arrived; ``user_id`` is part of the body, and apart again because caches are."""

    headers: Mapping[str, str]
    path: str
    grant: KeyGrant
    user_id: str
    body: bytes


class Retries:
    """Starts pumps, or answers in their place. One task renews the claims of this process.

    Args:
        pumps: serve what has not been answered.
        settler: knows which keys have been answered, and frees those from their charge who died answering.
        kept: answers and claims.
    """

    def __init__(
        self,
        pumps: Pumps,
        settler: Settler,
        kept: Kept,
        telemetry: Telemetry,
        options: GatewayOptions,
    ) -> None:
        self.telemetry = telemetry
        self.options = options
        self.kept = kept
        self.answering: set[Answering] = set()
        self._pumps = pumps
        self._settler = settler
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def ask(self, sent: Sent) -> Ask | None:
        """What a retry of this request would be known by; None where there can be none.

        Raises:
            ParameterInvalid: the idempotency key is empty or too long.
        """
        key, count = sent.headers.get(KEY_HEADER), sent.headers.get(RETRY_HEADER)
        if key is None and count is None:
            return None
        if key is not None and not 0 < len(key) <= KEY_LENGTH_MAX:
            raise ParameterInvalid(
                "Idempotency-Key", f"an idempotency key has 1 to {KEY_LENGTH_MAX} characters", malformed=True
            )
        if len(sent.body) > THREAD_BYTES:
            body = await asyncio.to_thread(self._digest, sent.path, sent.body)
        else:
            body = self._digest(sent.path, sent.body)
        key_id = sent.grant.key_id
        if key is not None:
            name = self.kept.vault.digest(b"key", key_id.encode(), key.encode())
        else:
            name = self.kept.vault.digest(b"request", key_id.encode(), sent.user_id.encode(), body)
        again = count is not None and count.isdecimal() and count.strip("0") != ""
        return Ask(sent.grant.tenant_id, name, body, keyed=key is not None, again=again)

    async def begin(self, order: Order, ask: Ask | None) -> Pump | Replay:
        """Serve a request, or answer it by what has been served.

        Raises:
            Draining: this process stops.
            IdempotencyKeyReused: the key belongs to another body.
            IdempotencyResultLost: the key has been answered, and that answer is not here any more.
            ValkeyUnavailable, StoreUnavailable: nobody can tell.
        """
        if ask is None:
            return self._pumps.start(order)
        if ask.keyed:
            return await self._begin_keyed(order, ask)
        found = await self.kept.take(ask) if ask.again else None
        if found is not None:
            return self._replay(order, found)
        return self._pumps.start(replace(order, keeper=Undelivered(self, ask)))

    async def _begin_keyed(self, order: Order, ask: Ask) -> Pump | Replay:
        owner = secrets.token_hex(8)
        match await self.kept.claim(ask, owner):
            case KeptAnswer() as found:
                return self._replay(order, found)
            case Running():
                return self._join(order, ask)
            case Claimed(before):
                return await self._answer(order, ask, owner, before)
            case Lost(reason):
                raise self._refused(IdempotencyResultLost(reason))
            case _:
                raise self._refused(IdempotencyKeyReused())

    async def _answer(self, order: Order, ask: Ask, owner: str, before: UUID | None) -> Pump | Replay:
        try:
            await self._still_unanswered(order.terms, ask, before)
            terms = replace(order.terms, answers=ask)
            return self._pumps.start(replace(order, terms=terms, keeper=Answering(self, ask, owner)))
        except IdempotencyResultLost as lost:
            await self.kept.lose(ask, owner, lost.reason)
            raise self._refused(lost) from None
        except BaseException:
            if before is None:  # else its row must not be forgotten; the lease runs out
                await self.kept.let_go(ask, owner)
            raise

    async def _still_unanswered(self, terms: Terms, ask: Ask, before: UUID | None) -> None:
        record = await self._settler.answered(ask)
        if record is not None and record.body_digest != ask.body:
            raise self._refused(IdempotencyKeyReused())
        if record is not None:
            raise IdempotencyResultLost("it is no longer kept")
        if before is not None and not await self._settler.disown(terms, ask, before):
            raise IdempotencyResultLost("the server that answered died")

    def _digest(self, path: str, body: bytes) -> bytes:
        return self.kept.vault.digest(path.encode(), body)

    def _refused(self, error: Exception) -> Exception:
        self.telemetry.retries.labels("refused").inc()
        return error

    def _replay(self, order: Order, found: KeptAnswer) -> Replay:
        self.telemetry.retries.labels("replayed").inc()
        replay = Replay(order.broken)
        replay.give(found)
        return replay

    def _join(self, order: Order, ask: Ask) -> Replay:
        self.telemetry.retries.labels("joined").inc()
        replay = Replay(order.broken)
        replay.following = self.spawn(follow(self.kept, ask, replay))
        return replay

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something that no request waits for; it is let end when the process stops."""
        task = asyncio.create_task(work, name="retries")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start(self) -> None:
        """Begin to renew claims."""
        self._renewing = asyncio.create_task(self._renew_forever(), name="claims")

    async def close(self) -> None:
        """Renew no more. The pumps have ended: what is still spawned has little to do."""
        await stop(self._renewing)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FORCED_END_S)
        for task in list(self._tasks):
            await stop(task)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self.options.lease_renew_interval_s)
            try:
                await asyncio.gather(*(one.renew() for one in self.answering))
            except ValkeyUnavailable as error:
                log.warning("claims_not_renewed", claims=len(self.answering), reason=str(error))


class Answering:
    """Keeps the answer to an idempotency key (`gateway.pump.Keeper`). Its client may leave."""

    def __init__(self, retries: Retries, ask: Ask, owner: str) -> None:
        self.channel = KeptChannel(None, retries.options.answer_bytes_max)
        self._retries = retries
        self._ask = ask
        self._owner = owner

    async def renew(self) -> None:
        """Extend the claim; raises ValkeyUnavailable."""
        await self._retries.kept.renew(self._ask, self._owner)

    async def admitted(self, hold: Hold) -> None:
        """See `Keeper`."""
        self._retries.answering.add(self)
        await self._told(self._retries.kept.admitted(self._ask, self._owner, hold.request_id))

    async def ended(self, end: End) -> None:
        """See `Keeper`. Where it is not known whether it was charged, the claim is left to run out."""
        self._retries.answering.discard(self)
        kept, answer = self._retries.kept, self.channel.kept
        if end == "failed":
            await self._told(kept.let_go(self._ask, self._owner))
        elif end == "completed" and answer is None:
            self._retries.telemetry.answers_kept.labels("too_large").inc()
            await self._told(kept.lose(self._ask, self._owner, "it was too long to be kept"))
        elif end == "completed" and await self._told(kept.keep(self._ask, self._owner, bytes(answer or b""))):
            self._retries.telemetry.answers_kept.labels("kept").inc()

    async def _told(self, telling: Awaitable[None]) -> bool:
        try:
            await telling
        except ValkeyUnavailable as error:
            self._retries.telemetry.answers_kept.labels("lost").inc()
            log.warning("claim_not_told", tenant=self._ask.tenant_id, reason=str(error))
            return False
        return True


class Undelivered:
    """Keeps the answer of a request without a key until it is delivered (`gateway.pump.Keeper`)."""

    def __init__(self, retries: Retries, ask: Ask) -> None:
        options = retries.options
        self.channel = KeptChannel(options.channel_frames_max, options.answer_bytes_max)
        self._retries = retries
        self._ask = ask
        self._request_id: UUID | None = None

    async def admitted(self, hold: Hold) -> None:
        """See `Keeper`."""
        self._request_id = hold.request_id

    async def ended(self, end: End) -> None:
        """See `Keeper`. Whether it was delivered is known when the response has ended."""
        if end == "completed" and not self.channel.delivered:
            self._retries.spawn(self._wait())

    async def _wait(self) -> None:
        await self.channel.over.wait()
        if self.channel.delivered:
            return
        assert self._request_id is not None
        if self.channel.kept is None:
            self._retries.telemetry.answers_kept.labels("too_large").inc()
            return
        answer = KeptAnswer(self._request_id, bytes(self.channel.kept))
        try:
            await self._retries.kept.give(self._ask, answer)
        except ValkeyUnavailable as error:
            self._retries.telemetry.answers_kept.labels("lost").inc()
            log.warning("undelivered_answer_lost", request_id=str(self._request_id), reason=str(error))
        else:
            self._retries.telemetry.answers_kept.labels("undelivered").inc()
