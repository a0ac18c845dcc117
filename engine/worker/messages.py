"""What the connector's two halves tell each other, once a step. They live in different processes."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from engine.proof.prefix import ROOT_HASH


@dataclass(frozen=True, slots=True)
class BlockJob:
    """Consecutive full blocks of one request to load or to publish.

    ``first`` is the index of the first of them in the request. ``block_ids`` are rows of the KV cache,
    ``block_hashes`` their names; both have the same length. ``parent`` is the name of the block
    before the first.
    """

    request_id: str
    tenant: str
    retention_class: str
    first: int
    block_ids: tuple[int, ...]
    block_hashes: tuple[bytes, ...]
    parent: bytes = ROOT_HASH


@dataclass
class StepOrders(KVConnectorMetadata):  # type: ignore[misc]  # vllm is untyped here
    """Scheduler to worker: what to load from now on, what to publish in this step."""

    loads: list[BlockJob] = field(default_factory=list)
    saves: list[BlockJob] = field(default_factory=list)


@dataclass
class StepReport(KVConnectorWorkerMetadata):  # type: ignore[misc]  # vllm is untyped here
    """Worker to scheduler: loads that ended, publications that were refused.

    ``loaded`` maps a request to the number of its blocks that are really there, counted from the first one
    asked for. ``refused`` maps a request to the index of its first block that could not be published.
    """

    loaded: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def aggregate(self, other: "StepReport") -> "StepReport":
        """Of several workers the one with the least decides."""
        return StepReport(_least(self.loaded, other.loaded), _least(self.refused, other.refused))


def _least(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: min(one.get(key, count), other.get(key, count)) for key, count in {**one, **other}.items()}
