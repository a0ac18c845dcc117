"""Draining journals: every line once that its worker signed, and no worker stands in another's way."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.api import Attested, Deadlines, EngineOptions, Journals
from engine.cluster.journal import LINES_MAX
from engine.proof.attestation import DecodeAttestation, PrefillAttestation
from engine.wire import JournalLine, RequestParams

BRIEF = Deadlines(connect_s=0.2, health_s=0.2)


class Kept:
    """Stores what it is given, in memory."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Attested]] = []

    async def __call__(self, batch: Sequence[Attested]) -> None:
        self.batches.append(batch)

    @property
    def attempts(self) -> list[int]:
        return [attested.attestation.attempt for batch in self.batches for attested in batch]


def body(attempt: int, stage: Any = "both") -> dict[str, Any]:
    params = RequestParams(f"r-{attempt}", attempt, stage, "chat", b"n" * 32, "memo", "ten_1")
    return {"token_ids": list(range(1, 131)), "kv_transfer_params": params.to_params()}


@pytest.fixture
async def workers(make_worker: Callable[..., Any]) -> Any:
    doubles = [make_worker(f"w{n}", "both") for n in range(2)]
    for double in doubles:
        await double.start()
    yield doubles
    for double in doubles:
        await double.stop()


@pytest.fixture
async def journals(workers: Any, journal_options: Callable[..., EngineOptions]) -> Any:
    options = dataclasses.replace(journal_options(*workers), deadlines=BRIEF)
    opened = Journals(options)
    await opened.open()
    yield opened
    await opened.close()


async def test_lines_of_all_workers_are_kept_and_then_acknowledged(workers, journals) -> None:
    first, second = workers
    first.keep(first.attestation(body(0)))
    first.keep(first.decode_attestation(body(0), 3, "stop"))
    second.keep(second.attestation(body(1)))
    kept = Kept()
    drained = await journals.drain(kept)
    assert (drained.lines, drained.unreachable, drained.refused) == (3, (), 0)
    known = {(type(one.attestation), one.attestation.worker) for batch in kept.batches for one in batch}
    assert known == {(PrefillAttestation, "w0"), (DecodeAttestation, "w0"), (PrefillAttestation, "w1")}
    documents = {(one.document, one.certificate) for batch in kept.batches for one in batch}
    assert documents == {(line.attestation, line.certificate) for line in (*first.lines, *second.lines)}
    assert (first.acknowledged, second.acknowledged) == ([2], [1])
    assert (await journals.drain(kept)).lines == 0, "nothing comes twice"
    assert len(kept.batches) == 2


async def test_a_journal_of_many_lines_is_drained_to_its_end(workers, journals) -> None:
    first, _ = workers
    text = first.keep(first.attestation(body(0)))
    first.lines += [JournalLine(n, text, first.certificate) for n in range(2, LINES_MAX + 12)]
    kept = Kept()
    assert (await journals.drain(kept)).lines == LINES_MAX + 11
    assert first.acknowledged == [LINES_MAX, LINES_MAX + 11]


async def test_what_could_not_be_kept_is_not_acknowledged_and_comes_again(workers, journals) -> None:
    first, second = workers
    first.keep(first.attestation(body(0)))
    second.keep(second.attestation(body(1)))

    async def refuses_w0(batch: Sequence[Attested]) -> None:
        if batch[0].attestation.worker == "w0":
            raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        await journals.drain(refuses_w0)
    assert (first.acknowledged, second.acknowledged) == ([], [1])
    kept = Kept()
    await journals.drain(kept)
    assert kept.attempts == [0]


async def test_lines_that_nobody_certified_has_signed_do_not_block_the_others(
    workers, journals, caplog
) -> None:
    first, _ = workers
    stranger = Ed25519PrivateKey.generate()
    good, bad = first.attestation(body(0)), first.attestation(body(1))
    first.keep(good)
    forged = (
        JournalLine(2, bad.sign(stranger), first.certificate),
        JournalLine(3, bad.sign(first.key), "no certificate"),
        JournalLine(4, "garbage", first.certificate),
        JournalLine(5, dataclasses.replace(bad, worker="w1").sign(first.key), first.certificate),
    )
    first.lines += forged
    first.keep(first.decode_attestation(body(6), 1, "abort"))
    kept = Kept()
    with caplog.at_level(logging.ERROR):
        drained = await journals.drain(kept)
    assert (drained.lines, drained.refused, drained.unreachable) == (2, 4, ())
    assert kept.attempts == [0, 6]
    assert first.acknowledged == [6]
    assert len(caplog.records) == 4
    assert "ten_1" not in caplog.text


async def test_a_worker_that_changed_its_key_is_still_believed(workers, journals, deployment) -> None:
    first, _ = workers
    first.keep(first.attestation(body(0)))
    first.key = Ed25519PrivateKey.generate()
    first.certificate = deployment.certify("w0", first.key.public_key(), 1_790_000_001)
    first.keep(first.attestation(body(1)))
    kept = Kept()
    await journals.drain(kept)
    assert kept.attempts == [0, 1]


def answering(content: bytes, status: int = 200) -> Any:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=content, status=status)

    return handler


LINE = b'{"sequence":%d,"attestation":"a","certificate":"c"}'
WRONGS = {
    "garbage": answering(b"<html>"),
    "no lines": answering(b"{}"),
    "half a line": answering(b'{"lines":[{"sequence":1}]}'),
    "falling sequences": answering(b'{"lines":[' + LINE % 2 + b"," + LINE % 1 + b"]}"),
    "a line already passed": answering(b'{"lines":[' + LINE % 0 + b"]}"),
    "an error": answering(b"{}", 500),
    "no such route": answering(b"{}", 404),
    "draining": answering(b"{}", 503),
}


@pytest.mark.parametrize("wrong", [*WRONGS, "silence", "death"])
async def test_a_worker_that_answers_wrongly_or_never_does_not_stop_the_others(
    workers, journals, wrong
) -> None:
    first, second = workers
    second.keep(second.attestation(body(1)))
    if wrong == "death":
        await first.stop()
    elif wrong == "silence":
        first.on_journal = lambda request: first.hang(request, {})
    else:
        first.on_journal = WRONGS[wrong]
    kept = Kept()
    drained = await journals.drain(kept)
    assert (drained.lines, drained.unreachable) == (1, ("w0",))
    assert kept.attempts == [1]
    assert not first.acknowledged


async def test_a_journal_that_never_ends_is_left_for_the_next_time(workers, journals, monkeypatch) -> None:
    monkeypatch.setattr("engine.cluster.journal.DRAIN_S", 0.0)
    first, _ = workers
    text = first.keep(first.attestation(body(0)))

    async def more(request: web.Request) -> web.StreamResponse:
        after = int(request.query["after"])
        lines = [JournalLine(after + n, text, first.certificate).to_json() for n in range(1, LINES_MAX + 1)]
        return web.json_response({"lines": lines})

    first.on_journal = more
    drained = await journals.drain(Kept())
    assert (drained.lines, drained.unreachable) == (LINES_MAX, ("w0",))
