"""The running stack inside its supervisor: what starts when, and how all of it stops."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import psutil

from admin.settings import (
    OwnServers,
    Settings,
    SettingsInvalid,
    encode_memo_bytes_max,
    image_urls,
    own_servers,
    private_destinations,
    stripe_settings,
    trusted_proxies,
    valkey_lost,
)
from admin.stack import journal, memory, model, places, process, secrets, state, workers
from admin.stack.errors import StackError, StackFailed, StackInterrupted
from admin.stack.model import Model, ModelUnavailable
from admin.stack.part import Part, Plan
from admin.stack.places import GatewayListeners
from admin.stack.plans import Planner, outside, traces_of
from admin.stack.state import Layout, PartStatus, StackOptions, StackStatus

OnProgress = Callable[[StackStatus], None]
TICK_S: Final = 0.25
ROTATE_EVERY_TICKS: Final = 240
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Stopped one group after the other: who uses a part stops before it.
STOP_ORDER: Final = (("gateway",), ("jobs", "prefill", "decode", "mono"), ("valkey",), ("postgres",))


class Stack:
    """One stack from lock to unlock. Use ``run`` once, in the main thread."""

    def __init__(self, options: StackOptions, on_progress: OnProgress) -> None:
        self._options = options
        self._layout = Layout(options.data_dir)
        self._on_progress = on_progress
        self._parts: dict[str, Part] = {}
        self._outside: list[PartStatus] = []
        self._steps = {name: PartStatus(name) for name in ("memory", "model", "setup")}
        me = psutil.Process()
        self._status = StackStatus(
            options.data_dir, phase="starting", pid=me.pid, pid_started_s=state.started_s(me),
            served_name=model.served_name_of(options.model),
        )  # fmt: skip
        self._stop_asked = asyncio.Event()
        self._model_ready: asyncio.Future[Model] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Start everything, keep it running until a signal, stop everything.

        Raises:
            StackError: it could not be started (all that had started is stopped by then).
        """
        self._layout.create()
        with state.locked(self._options.data_dir):
            loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, self._ask_to_stop)
            ticking = asyncio.create_task(self._tick())
            failure: StackError | None = None
            try:
                await self._live()
            except StackError as error:
                failure = error
                raise
            except Exception as error:
                failure = StackFailed("supervisor", repr(error))
                raise
            finally:
                await self._finish(failure)
                ticking.cancel()

    async def _live(self) -> None:
        self._show(phase="starting")
        self._check_memory()
        known = secrets.load_or_create(self._options.data_dir)
        sockets = places.take_sockets(self._layout)
        planner = Planner(self._layout, known, sockets)
        await process.end_leftovers(traces_of(self._options.data_dir))
        names = self._options.gateway_names
        with (
            places.listen(self._options.host, self._options.port) as shared,
            places.listen_beside(shared, sockets, names) as listeners,
        ):
            starting = asyncio.create_task(self._start(planner, listeners))
            stopping = asyncio.create_task(self._stop_asked.wait())
            try:
                await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():
                    raise StackInterrupted
                starting.result()
                self._show(phase="ready")
                await stopping
            finally:
                stopping.cancel()
                await _cancelled(starting)
        self._show(phase="stopping")

    async def _start(self, planner: Planner, listeners: Sequence[GatewayListeners]) -> None:
        own = own_servers()
        database = self._server("postgres", own.database_url, planner.postgres)
        cache = self._server("valkey", own.valkey_url, planner.valkey)
        shape = self._options.shape
        housing = workers.Workers(
            self._options.data_dir, planner.sockets / "w", planner.secrets.deployment, shape
        )
        settings = self._settings(planner, OwnServers(database[1], cache[1]), housing)
        settings.write(self._layout.settings)
        self._show(base_url=settings.base_url)
        address = f"http://{settings.host}:{settings.port}"
        ready_path = "/readyz" if self._options.engine else "/livez"
        gateways = [
            self._part(planner.gateway(name, address, sockets, ready_path))
            for name, sockets in zip(self._options.gateway_names, listeners, strict=True)
        ]
        jobs = self._part(planner.jobs())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._bring_model(settings))
                books = group.create_task(self._start_books(planner, database[0]))
                caching = group.create_task(_started(cache[0]))
                serving = await self._model_ready
                for worker, seat in zip(settings.workers, shape.seats, strict=True):
                    if self._options.engine:
                        part = self._part(planner.worker(housing, worker, serving, seat.cores))
                        group.create_task(part.start())
                await books
                await caching
                for part in (*gateways, jobs):
                    group.create_task(part.start())
        except BaseExceptionGroup as group:
            ours = group.subgroup(StackError)
            if ours is None:
                raise
            raise _first(ours) from group

    def _check_memory(self) -> None:
        shape, weights = self._options.shape, memory.weights_bytes(self._options.model)
        if self._options.engine:
            said = memory.check(shape, memory.needed_bytes(shape, weights), memory.available_bytes())
            self._step("memory", state="ready", detail=said)

    async def _start_books(self, planner: Planner, database: Part | None) -> None:
        await _started(database)
        log = self._layout.log("setup")
        self._step("setup", state="starting", detail="migrations, prices, demo tenant")
        status, printed = await process.finish(planner.setup())
        log.write_bytes(printed)
        if status != 0:
            self._step("setup", state="failed")
            raise StackFailed("setup", process.ended(status), journal.tail(log))
        self._step("setup", state="ready", detail="")

    async def _bring_model(self, settings: Settings) -> None:
        self._step("model", state="starting")
        try:
            found = await model.prepare(
                self._options.data_dir, self._options.model, lambda text: self._step("model", detail=text)
            )
        except ModelUnavailable as error:
            self._step("model", state="failed", detail=str(error))
            raise StackFailed("model", str(error)) from error
        replace(settings, model_dir=found.folder).write(self._layout.settings)
        self._step("model", state="ready", detail="", address=str(found.folder))
        self._model_ready.set_result(found)

    def _settings(self, planner: Planner, servers: OwnServers, housing: workers.Workers) -> Settings:
        assert servers.database_url is not None
        assert servers.valkey_url is not None
        try:
            lost, proxies, memo_bytes_max = valkey_lost(), trusted_proxies(), encode_memo_bytes_max()
            fetches = image_urls()
            inward = private_destinations()
            stripe = stripe_settings()
        except SettingsInvalid as error:
            raise StackFailed("gateway", str(error)) from error
        return Settings(
            data_dir=self._options.data_dir,
            database_url=servers.database_url,
            valkey_url=servers.valkey_url,
            host=self._options.host,
            port=self._options.port,
            model_dir=None,
            served_name=model.served_name_of(self._options.model),
            workers=housing.certify(),
            key_pepper=planner.secrets.pepper,
            salt_secret=planner.secrets.salt,
            worker_secret=planner.secrets.call,
            deployment_ring=planner.secrets.deployment.ring.to_text(),
            deployment_key_file=secrets.deployment_key_file(self._options.data_dir),
            store_dir=housing.store_dir,
            first_token=self._options.shape.first_token,
            valkey_lost=lost.policy,
            gateway_replicas=max(lost.replicas, self._options.gateways),
            trusted_proxies=proxies,
            encode_memo_bytes_max=memo_bytes_max,
            image_urls=fetches,
            private_destinations=inward,
            stripe=stripe,
        )

    def _server(
        self, name: str, own_url: str | None, plan: Callable[[], tuple[Plan, str]]
    ) -> tuple[Part | None, str]:
        """A server of ours as a part, or the operator's by its URL."""
        if own_url is not None:
            self._outside.append(PartStatus(name, state="ready", address=f"yours: {outside(own_url)}"))
            return None, own_url
        try:
            made, url = plan()
        except RuntimeError as error:
            raise StackFailed(name, str(error)) from error
        return self._part(made), url

    def _part(self, plan: Plan) -> Part:
        part = self._parts[plan.name] = Part(plan, self._layout.log(plan.name), self._show)
        return part

    async def _finish(self, failure: StackError | None) -> None:
        """Stop what runs, in order; tell how it ended."""
        if failure is not None and not isinstance(failure, StackInterrupted):
            failed = failure if isinstance(failure, StackFailed) else StackFailed("stack", str(failure))
            text = str(failure) if failed is not failure else failed.reason
            self._show(phase="stopping", failed_part=failed.part, error=text, error_tail=failed.tail)
        else:
            self._show(phase="stopping")
        for names in STOP_ORDER:
            group = [part for part in self._parts.values() if part.plan.name.split("-")[0] in names]
            await asyncio.gather(*(part.stop() for part in group))
        await process.end_leftovers(traces_of(self._options.data_dir))
        self._layout.settings.unlink(missing_ok=True)
        places.leave_sockets(self._layout)
        self._show(phase="failed" if self._status.error else "stopped")

    def _ask_to_stop(self) -> None:
        if self._stop_asked.is_set():  # asked twice: no more waiting
            for part in self._parts.values():
                part.kill()
        self._stop_asked.set()

    def _step(self, name: str, **changes: Any) -> None:
        self._steps[name] = replace(self._steps[name], **changes)
        self._show()

    def _show(self, **changes: Any) -> None:
        parts = (*self._outside, *(part.status for part in self._parts.values()))
        self._status = replace(self._status, parts=parts, steps=tuple(self._steps.values()), **changes)
        self._status.write()
        self._on_progress(self._status)

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            if self._status.phase in ("starting", "stopping"):
                self._on_progress(self._status)
            if ticks % ROTATE_EVERY_TICKS == 0:
                for log in self._layout.logs.glob("*.log"):
                    journal.rotate(log)


async def _started(part: Part | None) -> None:
    if part is not None:
        await part.start()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, StackError):
        await task


def _first(errors: BaseExceptionGroup[StackError]) -> StackError:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
