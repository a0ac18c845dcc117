"""As much of vLLM's scheduler and its requests as the planner meets, at the process border."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.proof.attestation import Attestation, PrefillAttestation, read_attestation
from engine.proof.certificate import DeploymentKey, worker_ring
from engine.proof.prefix import block_hashes
from engine.store.block import Term
from engine.store.directory import PrefixStore
from engine.store.places import Place, Removed, Remover
from engine.store.tombstone import Reason
from engine.wire import AnswerParams, RequestParams
from engine.worker import clock
from engine.worker.attest import Attestor
from engine.worker.journal import Journal, JournalReader
from engine.worker.planner import Planner

NAMESPACE = "ab" * 32
SALT = "salt"
DEPLOYMENT = DeploymentKey.generate()
KEY = Ed25519PrivateKey.generate()
CERTIFICATE = DEPLOYMENT.certify("prefill-0", KEY.public_key(), 1)


@dataclass
class Request:
    """As much of a vLLM request as the planner reads."""

    prompt_token_ids: list[int]
    request_id: str = "engine-id"
    stage: Any = "prefill"
    cache_salt: str | None = SALT
    num_preemptions: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    output_from: int = 0
    first_token: bool = False
    ended: str | None = None
    kv_transfer_params: dict[str, Any] | None = field(init=False)

    def __post_init__(self) -> None:
        params = RequestParams(
            request_id="ours",
            attempt=3,
            stage=self.stage,
            retention_class="chat",
            nonce=bytes(32),
            memo="memo",
            tenant="ten_a",
            output_from=self.output_from,
            first_token=self.first_token,
        )
        self.kv_transfer_params = params.to_params()

    def get_finished_reason(self) -> str | None:
        return self.ended

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def block_hashes(self) -> list[bytes]:
        return block_hashes([*self.prompt_token_ids, *range(self.num_output_tokens)], SALT)


def step(request: Request, scheduled: int, sync: bool = False) -> Any:
    rows = SimpleNamespace(get_block_ids=lambda _: (list(range(100, 200)),))
    return SimpleNamespace(
        has_sync_kv_loads=sync,
        num_scheduled_tokens={request.request_id: scheduled},
        kv_connector_block_state=rows,
    )


def asked(planner: Planner, request: Request, device_tokens: int = 0) -> int:
    """Ask as the scheduler does: again in the next step while the answer is not there."""
    for _ in range(1000):
        tokens = planner.match(request, device_tokens)
        if tokens is not None:
            return tokens
    raise AssertionError("never answered")


def attested(planner: Planner, request: Request) -> PrefillAttestation:
    """Finish a request whose token was drawn; what its answer says."""
    request.num_output_tokens, request.ended = 1, "length"
    answer = AnswerParams.from_params(planner.finish(request))
    return PrefillAttestation.verify(answer.attestation, worker_ring([CERTIFICATE], DEPLOYMENT.public))


def planner_of(store: PrefixStore | None, journal_dir: Path) -> Planner:
    attestor = Attestor("prefill-0", KEY, CERTIFICATE, NAMESPACE if store is not None else "", 64)
    return Planner(store, attestor, Journal(journal_dir))


def journalled(journal_dir: Path) -> list[Attestation]:
    """All that was ever attested, in order."""
    ring = worker_ring([CERTIFICATE], DEPLOYMENT.public)
    return [read_attestation(line.attestation, ring) for line in JournalReader(journal_dir).lines(0, 1000)]


def keep(store: PrefixStore, hashes: Sequence[bytes]) -> None:
    blocks = store.namespace(NAMESPACE, "ten_a")
    for block_hash in hashes:
        blocks.publish(block_hash, [memoryview(b"kv")], "chat")


def break_promise(store: PrefixStore, block_hash: bytes) -> None:
    """As the deployment's quota does: the block goes, a tombstone stays."""
    place = Place(store.root, NAMESPACE, "ten_a")
    term = Term.of(place.path(block_hash).stat())
    remover = Remover(store.pins, clock.now_s, store.log)
    done = remover.remove(place, block_hash, term, store.tombstones(place), Reason.QUOTA)
    assert done is Removed.REMOVED
