"""The pump owns a request from its hold to its release; the response only drains its channel (C7).

Litestar cancels the response when a client leaves, so nothing about money may live there. Each pump is one
supervised task; who leaves or stops only tells it so, and it ends in exactly one of these ways:

    refused     no hold was placed
    completed   charged for what was received, durably, before the last chunk leaves
    aborted     the client left, or left its answer unread: charged for what had been received until then
    failed      the engine or this process failed: nothing is billable; recorded if a worker was called
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from billing.settlement.event import Status
from engine.api import Engine, EngineError, EngineFailed, GenerateRequest, Generation
from engine.proof.attestation import PrefillAttestation
from gateway.admission.hold import Hold
from gateway.channel import Channel
from gateway.drawn import Teller
from gateway.refusal import ChargeUnknown, ClientGone, DeadlinePassed, Draining, GatewayError, ReaderStalled
from gateway.settle import Outcome, Proof, Settler, Terms
from gateway.telemetry import Telemetry, log
from gateway.writer import Writer
from recipe.events import Event
from recipe.parser import OutputParser
from recipe.usage import Buckets

FORCED_END_S: Final = 10.0


# How a request ended for who keeps its answer; unknown: it may or may not be charged.
End = Literal["completed", "failed", "unknown"]


class Keeper(Protocol):
    """Keeps an answer in case it is asked for again (`gateway.retries`). Its methods never raise."""

    @property
    def channel(self) -> Channel:
        """Where the answer goes."""

    async def admitted(self, hold: Hold) -> None:
        """Learn what is charged for the answer, before there is any."""

    async def ended(self, end: End) -> None:
        """Learn that no frame follows."""


@dataclass(frozen=True, slots=True)
class Order:
    """All a pump needs of one request, ready to be admitted. Makers are called once the hold stands.

    ``broken`` frames a failure where no writer has been made (`gateway.surface`). There is a ``teller`` where
    log probabilities are asked for.
    """

    terms: Terms
    engine: Engine
    parser: OutputParser
    generate: Callable[[Terms, Hold], GenerateRequest]
    writer: Callable[[Hold], Writer]
    broken: Callable[[Exception], bytes]
    teller: Teller | None = None
    keeper: Keeper | None = None


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """See `GatewayOptions`."""

    request_deadline_s: float
    channel_frames_max: int


class Pump:
    """One request. `admitted`, then `started`, tell the response how far it is; or carry the failure."""

    def __init__(self, order: Order, settler: Settler, telemetry: Telemetry, limits: PumpLimits) -> None:
        loop = asyncio.get_running_loop()
        keeper = order.keeper
        self.channel = Channel(limits.channel_frames_max) if keeper is None else keeper.channel
        self.admitted: asyncio.Future[Hold] = loop.create_future()
        self.started: asyncio.Future[None] = loop.create_future()
        self._order = order
        self._settler = settler
        self._telemetry = telemetry
        self._deadline_s = limits.request_deadline_s
        self._interrupted = asyncio.Event()
        self._begun = False  # bytes, or at least the status, are with the client
        self._writer: Writer | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._generation: Generation | None = None
        self._proof: Proof | None = None
        self._received = 0

    def begin(self) -> None:
        """The response has its status: from now on a failure is an error frame."""
        self._begun = True

    def interrupt(self) -> None:
        """End this request as failed, soon: the process stops."""
        self._interrupted.set()

    async def run(self) -> None:
        """Carry the request to its end. Never raises: whatever happens reaches the response."""
        end: End = "failed"
        try:
            end = await self._carry()
        finally:
            if self._order.keeper is not None:
                await self._order.keeper.ended(end)

    async def _carry(self) -> End:
        try:
            hold = await self._settler.hold(self._order.terms)
        except Exception as error:
            _fail(self.admitted, error)
            self.channel.close()
            return "failed"
        held_at_s = _now_s()
        try:
            if self._order.keeper is not None:
                await self._order.keeper.admitted(hold)
            self.admitted.set_result(hold)
            return await self._serve(hold, held_at_s)
        except Exception as error:
            self._report(error)
            return "unknown" if isinstance(error, ChargeUnknown) else "failed"
        finally:
            self.channel.close()
            if self._stopping is not None:
                await self._stopping

    async def _serve(self, hold: Hold, held_at_s: float) -> End:
        failure: Exception | None = None
        last: Sequence[Event] = ()
        try:
            self._writer = self._order.writer(hold)
            last = await self._generate(hold, held_at_s)
            status: Status = "completed"
        except (ClientGone, ReaderStalled) as gone:
            status, failure = "aborted", gone
        except Exception as error:
            if not isinstance(error, EngineError | GatewayError):
                log.exception("pump_failed", request_id=str(hold.request_id))
            status, failure = "failed", error
        outcome = self._outcome(status, _now_s() - held_at_s)
        if status == "failed" and not self._called:
            await self._settler.void(self._order.terms, hold, outcome)
        else:
            billed = await self._settler.charge(self._order.terms, hold, outcome)
            if failure is None:
                self._emit(self._written.finish(last, billed))
        if failure is None:
            return "completed"
        self._report(failure)
        return "failed"

    @property
    def _called(self) -> bool:
        return self._generation is not None and self._generation.called

    def _outcome(self, status: Status, elapsed_s: float) -> Outcome:
        attempts = () if self._generation is None else self._generation.attempts
        reasoning_tokens = self._order.parser.reasoning_tokens
        return Outcome(status, self._proof, attempts, self._received, reasoning_tokens, elapsed_s)

    async def _generate(self, hold: Hold, held_at_s: float) -> Sequence[Event]:
        """Relay until the engine is done, the client gone, this process stopping or the time over."""
        generation = self._generation = self._order.engine.submit(
            self._order.generate(self._order.terms, hold)
        )
        relay = asyncio.create_task(self._relay(generation, hold, held_at_s))
        ends = [asyncio.create_task(event.wait()) for event in (self.channel.gone, self._interrupted)]
        try:
            await asyncio.wait({relay, *ends}, timeout=self._deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if relay.done():
                return relay.result()
            raise self._end()
        finally:
            for task in (relay, *ends):
                task.cancel()
            await asyncio.gather(relay, *ends, return_exceptions=True)
            # The worker is told while the charge is committed; the pump ends when it has been.
            self._stopping = asyncio.create_task(_cancelled(generation))

    def _end(self) -> GatewayError:
        if self._interrupted.is_set():
            return Draining()
        if self.channel.gone.is_set():
            return ClientGone()
        return ReaderStalled() if self.channel.full else DeadlinePassed()

    async def _relay(self, generation: Generation, hold: Hold, held_at_s: float) -> Sequence[Event]:
        """Pass on what arrives; returns the last events, which wait for the settlement."""
        attestation, signed_text = await generation.prefilled()
        self._proof = Proof(attestation, signed_text)
        self._settler.prefilled(hold, attestation)
        self._written.prefilled(_served(attestation))
        parser = self._order.parser
        async for chunk in generation:
            if self._received == 0 and chunk.token_ids:
                self._telemetry.first_token_s.observe(_now_s() - held_at_s)
            room = self._order.terms.output_tokens_max - self._received
            token_ids = chunk.token_ids[:room]  # what was not asked for is not billed either
            self._received += len(token_ids)
            reasoned = parser.reasoning_tokens
            events = parser.push(token_ids)
            if self._order.teller is not None:
                events += self._order.teller.drawn(chunk.logprobs[:room], parser.reasoning_tokens - reasoned)
            if parser.stopped:
                return [*events, *parser.finish("stop")]
            if chunk.finish is not None or len(chunk.token_ids) >= room:
                return [*events, *parser.finish(chunk.finish or "length")]
            frame = self._written.events(events)
            if frame:
                await self.channel.send(frame)
                self._start()
        raise EngineFailed("engine", "the stream ended without a finish")

    @property
    def _written(self) -> Writer:
        assert self._writer is not None
        return self._writer

    def _start(self) -> None:
        self._begun = True
        if not self.started.done():
            self.started.set_result(None)

    def _emit(self, frame: bytes) -> None:
        self.channel.append(frame)
        self._start()

    def _report(self, error: Exception) -> None:
        if self._begun and self._writer is not None and not isinstance(error, ClientGone):
            self._emit(self._writer.error(error))
        else:
            _fail(self.started, error)


class Pumps:
    """All pumps of this process: kept alive whatever happens to their responses, and allowed to end."""

    def __init__(self, settler: Settler, telemetry: Telemetry, limits: PumpLimits) -> None:
        self._settler = settler
        self._telemetry = telemetry
        self._limits = limits
        self._running: dict[asyncio.Task[None], Pump] = {}
        self._draining = False

    def start(self, order: Order) -> Pump:
        """Begin a request.

        Raises:
            Draining: this process stops.
        """
        if self._draining:
            raise Draining
        pump = Pump(order, self._settler, self._telemetry, self._limits)
        task = asyncio.create_task(pump.run(), name="pump")
        self._running[task] = pump
        task.add_done_callback(self._running.pop)
        return pump

    async def would_take(self, terms: Terms) -> None:
        """See whether a request would be admitted at this moment. Raises as `Settler.hold` does."""
        await self._settler.would_hold(terms)

    def __len__(self) -> int:
        return len(self._running)

    async def drain(self, drain_s: float) -> None:
        """Take no more, let the running ones end, interrupt those that do not."""
        self._draining = True
        if self._running:
            await asyncio.wait(set(self._running), timeout=drain_s)
        for pump in self._running.values():
            pump.interrupt()
        if self._running:
            await asyncio.wait(set(self._running), timeout=FORCED_END_S)


async def _cancelled(generation: Generation) -> None:
    try:
        await generation.cancel()
    except EngineError as error:
        log.warning("cancel_failed", reason=str(error))


def _served(prefill: PrefillAttestation) -> Buckets:
    """The prompt's buckets. Counts that cannot be are for the settlement to find."""
    hit, owed = prefill.hit_tokens, prefill.owed_tokens
    return Buckets(hit=hit, owed=owed, miss=max(0, prefill.prompt_tokens - hit - owed), output=0)


def _fail(future: "asyncio.Future[Hold] | asyncio.Future[None]", error: Exception) -> None:
    if future.done():
        return
    future.set_exception(error)
    future.exception()  # retrieved: the response may have left already


def _now_s() -> float:
    return asyncio.get_running_loop().time()
