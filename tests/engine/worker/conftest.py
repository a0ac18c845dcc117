"""Two real vLLM workers over Unix sockets, as the stack starts them, and a client that is only HTTP."""

import base64
import contextlib
import dataclasses
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Self

import psutil
import pytest
import tokenizers
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine import wire
from engine.cluster.request import ImageInput
from engine.mac import MAC_HEADER, call_mac
from engine.proof import signed
from engine.proof.attestation import Attestation, DecodeAttestation, PrefillAttestation, read_attestation
from engine.proof.certificate import DeploymentKey, worker_ring
from engine.shapes.render import worker_command
from engine.shapes.shape import Role, WorkerSpec, default_cores
from engine.worker import clock
from engine.worker.journal import JournalReader

ROOT = Path(__file__).resolve().parents[3]
TENANT = "ten_0123456789abcdef01234567"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


@dataclass
class Ask:
    """One request to a worker; salt and tenant together are the isolation that the cluster chooses."""

    ids: Sequence[int]
    stage: wire.Stage = "prefill"
    max_tokens: int = 1
    salt: str | None = "salt-of-a-tenant"
    tenant: str = TENANT
    with_params: bool = True
    sampling: dict[str, Any] = field(default_factory=dict)
    output_from: int = 0
    first_token: bool = False
    request_id: str = field(default_factory=lambda: secrets.token_hex(12))
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    images: Sequence[ImageInput] = ()

    def body(self, stream: bool) -> dict[str, Any]:
        params = wire.RequestParams(
            request_id=self.request_id,
            attempt=0,
            stage=self.stage,
            retention_class="chat",
            nonce=self.nonce,
            memo="a memo",
            tenant=self.tenant,
            scope_digest="scope",
            output_from=self.output_from,
            first_token=self.first_token,
        )
        body: dict[str, Any] = {
            "request_id": self.request_id,
            "token_ids": list(self.ids),
            "sampling_params": {"max_tokens": self.max_tokens, "temperature": 0.0, "detokenize": False}
            | self.sampling,
            "stream": stream,
            "stream_options": {"include_usage": True} if stream else None,
        }
        if self.salt is not None:
            body["cache_salt"] = self.salt
        if self.images:
            body[wire.IMAGES] = [
                {
                    "offset": image.offset,
                    "tokens": image.tokens,
                    "data": base64.b64encode(image.data).decode(),
                }
                for image in self.images
            ]
        if self.with_params:
            body["kv_transfer_params"] = params.to_params()
        return body


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict[str, Any]
    attestation: PrefillAttestation | None = None

    @property
    def ids(self) -> list[int]:
        return list(self.body["choices"][0]["token_ids"])

    @property
    def cached_by_vllm(self) -> int:
        return int(self.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    @property
    def attested(self) -> PrefillAttestation:
        assert self.attestation is not None
        return self.attestation


class Worker:
    """A worker process and a client of it."""

    def __init__(self, spec: WorkerSpec, deployment: DeploymentKey, log: Path) -> None:
        self.spec = spec
        self.log = log
        self._deployment = deployment
        self.process: subprocess.Popen[bytes]

    def start(self) -> Self:
        spec_file = self.spec.socket.with_suffix(".json")
        self.spec.write(spec_file)
        command = worker_command(spec_file, self.spec)
        environment = {**os.environ, **command.environment}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command.argv, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def wait_ready(self) -> Self:
        deadline = time.monotonic() + 180
        while True:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            try:
                if self.get(wire.HEALTH_PATH)[0] == 200:
                    return self
            except OSError:
                wait_a_little(self.process)

    def get(self, path: str) -> tuple[int, bytes]:
        with contextlib.closing(UnixConnection(self.spec.socket, 10)) as connection:
            connection.request("GET", path, headers=self._signature("GET", path, b""))
            response = connection.getresponse()
            return response.status, response.read()

    def send(self, path: str, body: dict[str, Any]) -> UnixConnection:
        """A call whose answer is still to come."""
        connection = UnixConnection(self.spec.socket, 60)
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json", "connection": "close"}
        connection.request("POST", path, content, headers | self._signature("POST", path, content))
        return connection

    def post(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        return self.send(path, body).getresponse()

    def stranger(self) -> Self:
        """A client of the same worker that does not know the secret."""
        spec = dataclasses.replace(self.spec, call_secret_file=None)
        return type(self)(spec, self._deployment, self.log)

    def _signature(self, method: str, path: str, content: bytes) -> dict[str, str]:
        if self.spec.call_secret_file is None:
            return {}
        secret = bytes.fromhex(self.spec.call_secret_file.read_text())
        return {MAC_HEADER: call_mac(secret, method, path, content, clock.now_s())}

    def ask(self, ask: Ask) -> Answer:
        response = self.post(wire.GENERATE_PATH, ask.body(stream=False))
        body = json.loads(response.read())
        params = body.get("kv_transfer_params")
        if response.status != 200 or params is None:
            return Answer(response.status, body)
        answer = wire.AnswerParams.from_params(params)
        ring = worker_ring([answer.certificate], self._deployment.public)
        return Answer(200, body, PrefillAttestation.verify(answer.attestation, ring))

    def stream(self, ask: Ask) -> http.client.HTTPResponse:
        return self.post(wire.GENERATE_PATH, ask.body(stream=True))

    def journalled(self, ask: Ask) -> list[Attestation]:
        """What the worker has attested of one request by now, in order."""
        lines = JournalReader(self.spec.journal_dir).lines(0, 100_000)
        ring = worker_ring({line.certificate for line in lines}, self._deployment.public)
        attested = [read_attestation(line.attestation, ring) for line in lines]
        return [attestation for attestation in attested if attestation.request_id == ask.request_id]

    def decoded(self, ask: Ask) -> DecodeAttestation:
        """What the worker attests of one decode, which may still be running."""
        deadline = time.monotonic() + 30
        while True:
            for attestation in self.journalled(ask):
                if isinstance(attestation, DecodeAttestation):
                    return attestation
            assert time.monotonic() < deadline, "never attested"
            wait_a_little(self.process)

    def running(self) -> float:
        """Requests that vLLM has running, by its own metrics."""
        return self.metric("vllm:num_requests_running")

    def metrics(self) -> dict[str, float]:
        """All that it measures, by name and labels."""
        lines = [line for line in self.get("/metrics")[1].decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def metric(self, name: str) -> float:
        """One metric, summed over its labels."""
        return sum(value for full, value in self.metrics().items() if full.partition("{")[0] == name)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)


def wait_a_little(process: subprocess.Popen[bytes], seconds: float = 0.2) -> None:
    """Wait so long, or less when the process ends."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def chunks(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Events of a stream up to its [DONE]."""
    for line in response:
        text = line.decode().strip()
        if text == "data: [DONE]":
            return
        if text.startswith("data: "):
            yield json.loads(text[6:])


def tokens_of(events: Iterable[dict[str, Any]]) -> list[int]:
    """Token ids that events of a stream bring."""
    return [token for event in events for choice in event["choices"] for token in choice["token_ids"]]


@dataclass(frozen=True)
class Pair:
    prefill: Worker
    decode: Worker
    store_dir: Path


@dataclass(frozen=True)
class Place:
    """Where the workers of a test module keep their files: a folder short enough for sockets."""

    folder: Path
    model_dir: Path
    deployment: DeploymentKey = field(default_factory=DeploymentKey.generate)

    @property
    def store_dir(self) -> Path:
        return self.folder / "store"

    def worker(self, name: str, role: Role, **changes: Any) -> Worker:
        """A worker with a key and a certificate, not started; ``changes`` are of its spec."""
        key = Ed25519PrivateKey.generate()
        key_file, certificate_file = self.folder / f"{name}.pem", self.folder / f"{name}.certificate"
        key_file.write_bytes(signed.private_pem(key))
        certificate_file.write_text(self.deployment.certify(name, key.public_key(), 1))
        fields: dict[str, Any] = {
            "name": name,
            "role": role,
            "model_dir": self.model_dir,
            "served_name": "smollm2-135m-instruct",
            "socket": self.folder / f"{name}.sock",
            "store_dir": self.store_dir,
            "journal_dir": self.store_dir.parent / f"{name}.journal",
            "key_file": key_file,
            "certificate_file": certificate_file,
            "kv_cache_bytes": 256 * 1024**2,
            "cpu_cores": default_cores(role, os.cpu_count() or 1),
            "threads": 1,
        }
        spec = WorkerSpec(**fields | changes)
        return Worker(spec, self.deployment, self.folder / f"{name}.log")


@pytest.fixture(scope="module")
def place(model_dir: Path) -> Iterator[Place]:
    """A folder for workers, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="kvw-", dir="/tmp"))
    yield Place(folder, model_dir)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def worker_pair(place: Place) -> Iterator[Pair]:
    """A prefill and a decode worker, each on its own core, sharing one store."""
    prefill, decode = place.worker("prefill-0", "prefill"), place.worker("decode-0", "decode")
    pair = Pair(prefill.start(), decode.start(), place.store_dir)
    try:
        pair.prefill.wait_ready()
        pair.decode.wait_ready()
        yield pair
    finally:
        for worker in (pair.prefill, pair.decode):
            worker.stop()


@pytest.fixture(scope="module")
def prose(model_dir: Path) -> Callable[[str, int], list[int]]:
    """Tokens of natural English: a chapter of Python's own manual, by name, cut to a length."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def tokens(chapter: str, count: int) -> list[int]:
        ids = tokenizer.encode(topics[chapter]).ids[:count]
        assert len(ids) == count
        return list(ids)

    return tokens
