"""The middleware over a bare application, called as an ASGI server calls it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from engine import wire
from engine.mac import MAC_HEADER, call_mac
from engine.proof.attestation import DECODE_KIND, PREFILL_KIND
from engine.shapes.shape import SpecInvalid, WorkerSpec
from engine.wire import JournalLine, WorkerReport
from engine.worker import clock, routes
from engine.worker.journal import Journal
from engine.worker.report import ReportFile, engine_says
from engine.worker.routes import Desk, WorkerRoutes

SECRET = bytes(range(32))


class Served:
    """What is behind the middleware: says which calls have come through, and with which bodies."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.calls.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


class Place:
    def __init__(self, folder: Path, secret: bytes | None) -> None:
        self.folder = folder
        self.vllm = Served()
        self.journal = Journal(folder)
        WorkerRoutes.desk = Desk(folder, secret)
        self.routes = WorkerRoutes(self.vllm)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.routes),  # type: ignore[arg-type]  # an application all the same
            base_url="http://worker",
        )

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        answer = await self.client.request(method, path, content=content, headers=headers)
        return answer.status_code, answer.json()

    async def signed(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        word = call_mac(SECRET, method, path, content, clock.now_s())
        return await self.ask(method, path, body, **{MAC_HEADER: word})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, None)


@pytest.fixture
def guarded(tmp_path: Path) -> Place:
    return Place(tmp_path, SECRET)


@pytest.fixture(autouse=True)
def no_desk_is_left() -> Iterator[None]:
    yield
    if "desk" in vars(WorkerRoutes):
        del WorkerRoutes.desk


def attestation(request_id: str, attempt: int, kind: str) -> str:
    return json.dumps({"payload": {"kind": kind, "request_id": request_id, "attempt": attempt}})


async def test_lines_are_served_acknowledged_and_not_served_again(place: Place) -> None:
    for index in range(5):
        place.journal.append(attestation(f"r{index}", 0, PREFILL_KIND), "c")
    status, answer = await place.ask("GET", f"{wire.JOURNAL_PATH}?after=1&limit=2")
    lines = [JournalLine.from_json(line) for line in answer["lines"]]
    assert (status, [line.sequence for line in lines]) == (200, [2, 3])
    assert await place.ask("POST", wire.ACKNOWLEDGE_PATH, {"through": 3}) == (200, {"acknowledged": 3})
    _, answer = await place.ask("GET", wire.JOURNAL_PATH)
    assert [line["sequence"] for line in answer["lines"]] == [4, 5]
    assert place.vllm.calls == []


async def test_an_attestation_is_waited_for_and_found_after_it_was_acknowledged(place: Place) -> None:
    path = f"{wire.ATTESTATIONS_PATH}?request_id=r%2F1&attempt=2&kind=decode&wait_s=5"
    asked = asyncio.create_task(place.ask("GET", path))
    await asyncio.sleep(0.05)
    assert not asked.done()
    place.journal.append(attestation("r/1", 2, PREFILL_KIND), "c")
    place.journal.append(attestation("r/1", 2, DECODE_KIND), "c")
    status, line = await asyncio.wait_for(asked, 2)
    assert (status, line["sequence"]) == (200, 2)
    await place.ask("POST", wire.ACKNOWLEDGE_PATH, {"through": 2})
    assert (await place.ask("GET", path))[0] == 200


async def test_what_was_not_attested_in_time_is_not_found(place: Place) -> None:
    path = f"{wire.ATTESTATIONS_PATH}?request_id=r&attempt=0&kind=prefill"
    started_s = clock.monotonic_s()
    status, answer = await place.ask("GET", path + "&wait_s=0.1")
    assert status == answer["error"]["code"] == 404
    assert 0.1 <= clock.monotonic_s() - started_s < 2
    assert (await place.ask("GET", path))[0] == 404


async def test_nobody_waits_longer_than_five_seconds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WAIT_S_MAX", 0.1)
    path = f"{wire.ATTESTATIONS_PATH}?request_id=r&attempt=0&kind=prefill&wait_s=1000"
    assert (await asyncio.wait_for(place.ask("GET", path), 3))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", wire.JOURNAL_PATH, None, 405),
        ("GET", wire.DRAIN_PATH, None, 405),
        ("GET", f"{wire.JOURNAL_PATH}?after=-1", None, 400),
        ("GET", f"{wire.JOURNAL_PATH}?limit=many", None, 400),
        ("GET", f"{wire.JOURNAL_PATH}?after={'9' * 30}", None, 400),
        ("POST", wire.ACKNOWLEDGE_PATH, {}, 400),
        ("POST", wire.ACKNOWLEDGE_PATH, {"through": "1"}, 400),
        ("POST", wire.ACKNOWLEDGE_PATH, {"through": -1}, 400),
        ("POST", wire.ACKNOWLEDGE_PATH, None, 400),
        ("POST", wire.DRAIN_PATH, {"draining": 1}, 400),
        ("GET", f"{wire.ATTESTATIONS_PATH}?attempt=0&kind=prefill", None, 400),
        ("GET", f"{wire.ATTESTATIONS_PATH}?request_id=r&attempt=x&kind=prefill", None, 400),
        ("GET", f"{wire.ATTESTATIONS_PATH}?request_id=r&attempt=0&kind=both", None, 400),
        ("GET", f"{wire.ATTESTATIONS_PATH}?request_id=r&attempt=0&kind=decode&wait_s=nan", None, 400),
        ("GET", f"{wire.ATTESTATIONS_PATH}?request_id=r&attempt=0&kind=decode&wait_s=-1", None, 400),
    ],
)
async def test_what_makes_no_sense_is_refused_in_vllms_shape(
    place: Place, method: str, path: str, body: Any, status: int
) -> None:
    answered, answer = await place.ask(method, path, body)
    assert answered == status
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] == status


async def test_a_report_is_the_engine_cores_and_says_whether_the_worker_drains(place: Place) -> None:
    left = WorkerReport(2, 1, 700, 300, draining=False, namespace="ab" * 32, law=(0.01, 6e-4, 4e-7))
    ReportFile.of_engine(place.folder).leave(lambda: engine_says(left, {}), at_once=True)
    _, answer = await place.ask("GET", wire.REPORT_PATH)
    assert WorkerReport.from_json(answer) == left
    await place.ask("POST", wire.DRAIN_PATH, {"draining": True})
    _, answer = await place.ask("GET", wire.REPORT_PATH)
    assert WorkerReport.from_json(answer).draining


class Engine:
    """vLLM's client of an engine core that ends as soon as it is told to."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def shutdown(self, timeout: float) -> None:
        self.told.append(timeout)


async def test_calls_that_a_stopping_engine_will_not_answer_are_refused_or_broken_off(place: Place) -> None:
    """vLLM takes them and never answers: its callers would wait for as long as they have patience."""
    engine, begun = Engine(), asyncio.Event()

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            begun.set()
            await asyncio.Event().wait()

    stack = WorkerRoutes(silent)
    state = SimpleNamespace(engine_client=engine)
    await stack({"type": "lifespan", "app": SimpleNamespace(state=state)}, *[None, None])  # type: ignore[list-item]  # nobody calls
    transport = httpx.ASGITransport(stack)  # type: ignore[arg-type]  # an application all the same
    place.client = httpx.AsyncClient(transport=transport, base_url="http://worker")
    open_call = asyncio.create_task(place.client.post(wire.GENERATE_PATH, json={}))
    await asyncio.wait_for(begun.wait(), 2)
    await asyncio.to_thread(engine.shutdown, timeout=3)
    assert engine.told == [3]
    assert (await place.ask("POST", wire.GENERATE_PATH, {}))[0] == 503
    with pytest.raises(AssertionError):  # httpx asserts that an answer was completed
        await asyncio.wait_for(open_call, 5)
    assert (await place.ask("GET", wire.REPORT_PATH))[1]["draining"] is True


async def test_a_draining_worker_refuses_new_requests_and_is_healthy(place: Place) -> None:
    await place.ask("POST", wire.DRAIN_PATH, {"draining": True})
    answer = await place.client.post(wire.GENERATE_PATH, content=b"{}")
    assert answer.status_code == answer.json()["error"]["code"] == 503
    assert answer.json()["error"]["type"] == "ServiceUnavailableError"
    assert int(answer.headers["retry-after"]) > 0
    assert place.vllm.calls == []
    for path in (wire.HEALTH_PATH, wire.ABORT_PATH):
        assert (await place.ask("POST", path, {}))[0] == 200
    await place.ask("POST", wire.DRAIN_PATH, {"draining": False})
    assert (await place.ask("POST", wire.GENERATE_PATH, {}))[0] == 200
    assert [path for path, _ in place.vllm.calls] == [wire.HEALTH_PATH, wire.ABORT_PATH, wire.GENERATE_PATH]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", wire.GENERATE_PATH),
        ("POST", wire.ABORT_PATH),
        ("GET", "/v1/models"),
        ("GET", wire.JOURNAL_PATH),
        ("POST", wire.ACKNOWLEDGE_PATH),
        ("GET", wire.REPORT_PATH),
        ("POST", wire.DRAIN_PATH),
        ("GET", "/metrics/"),
        ("GET", "/healthy"),
    ],
)
async def test_who_does_not_know_the_secret_may_call_nothing(guarded: Place, method: str, path: str) -> None:
    status, answer = await guarded.ask(method, path, {})
    assert status == answer["error"]["code"] == 401
    assert (await guarded.ask(method, path, {}, **{MAC_HEADER: "0 00"}))[0] == 401
    assert guarded.vllm.calls == []


async def test_health_and_metrics_are_anybodys(guarded: Place) -> None:
    for path in (wire.HEALTH_PATH, "/metrics"):
        assert (await guarded.ask("GET", path))[0] == 200


async def test_a_signed_call_comes_through_with_its_body(guarded: Place) -> None:
    body = {"token_ids": list(range(100_000))}
    assert (await guarded.signed("POST", f"{wire.GENERATE_PATH}?a=%20b", body))[0] == 200
    assert guarded.vllm.calls == [(wire.GENERATE_PATH, json.dumps(body).encode())]
    assert (await guarded.signed("GET", f"{wire.JOURNAL_PATH}?after=0&limit=1"))[0] == 200


async def test_a_word_on_one_call_opens_no_other(guarded: Place) -> None:
    path, body = f"{wire.JOURNAL_PATH}?after=0", {"through": 1}
    at_s = clock.now_s()
    for method, other, content in (
        ("GET", f"{wire.JOURNAL_PATH}?after=1", b""),
        ("POST", path, b""),
        ("GET", path, json.dumps(body).encode()),
    ):
        word = call_mac(SECRET, method, other, content, at_s)
        assert (await guarded.ask("GET", path, None, **{MAC_HEADER: word}))[0] == 401
    for second in (at_s - 90, at_s + 90):
        word = call_mac(SECRET, "GET", path, b"", second)
        assert (await guarded.ask("GET", path, None, **{MAC_HEADER: word}))[0] == 401


async def drive(app: WorkerRoutes, scope: dict[str, Any], *received: dict[str, Any]) -> list[dict[str, Any]]:
    """Call the application as a server does; what it sent."""
    waiting, sent = list(received), []

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def post(path: str, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": list(headers),
    }


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_is_too_large_is_refused_before_all_of_it_is_read(
    guarded: Place, announced: bool
) -> None:
    headers = [(b"content-length", str(64 * 1024**2 + 1).encode())] if announced else []
    part = {"type": "http.request", "body": bytes(40 * 1024**2), "more_body": True}
    sent = await drive(guarded.routes, post(wire.GENERATE_PATH, *headers), part, part)
    assert sent[0]["status"] == 413
    assert guarded.vllm.calls == []


async def test_a_caller_that_goes_while_it_sends_gets_no_answer(guarded: Place) -> None:
    part = {"type": "http.request", "body": b"x", "more_body": True}
    sent = await drive(guarded.routes, post(wire.GENERATE_PATH), part, {"type": "http.disconnect"})
    assert sent == []
    assert guarded.vllm.calls == []


async def test_a_websocket_is_closed_where_callers_must_prove_themselves(guarded: Place) -> None:
    assert await drive(guarded.routes, {"type": "websocket", "path": "/v1/realtime"}) == [
        {"type": "websocket.close", "code": 1008}
    ]


def spec(folder: Path, secret_file: Path | None) -> WorkerSpec:
    return WorkerSpec(
        name="prefill-0",
        role="prefill",
        model_dir=folder,
        served_name="model",
        socket=folder / "socket",
        store_dir=None,
        journal_dir=folder / "journal",
        key_file=folder / "key.pem",
        certificate_file=folder / "certificate",
        call_secret_file=secret_file,
    )


def test_the_secret_of_a_spec_is_read_and_one_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "call.secret"
    file.write_text(SECRET.hex() + "\n")
    assert Desk.of(spec(tmp_path, file)).secret == SECRET
    assert Desk.of(spec(tmp_path, None)).secret is None
    for text in ("", "00" * 31, "not hexadecimal"):
        file.write_text(text)
        with pytest.raises(SpecInvalid):
            Desk.of(spec(tmp_path, file))
    file.unlink()
    with pytest.raises(SpecInvalid):
        Desk.of(spec(tmp_path, file))
