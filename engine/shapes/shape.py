"""A deployment's shape as data: which workers there are, on which cores, and what they may do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Self

from engine.shapes.worker import Role, SpecInvalid, WorkerSpec, default_cores

__all__ = ["Role", "Seat", "Shape", "SpecInvalid", "WorkerSpec", "default_cores"]

# Lengths of the endings that are looked for in what was said before.
NGRAM: Final = {"prompt_lookup_min": 2, "prompt_lookup_max": 3}


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place on a machine.

    It computes with one thread on each of its ``cores`` and nowhere else; None leaves one thread unbound.
    """

    name: str
    role: Role
    cores: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The workers of one machine, in the order of a request's way, and what all of them do alike.

    ``step_budget_s`` as in `WorkerSpec`. ``first_token``: prefill's token is the client's wherever nothing
    depends on decode's state; else decode draws it. ``store`` False leaves blocks in the workers' memory
    alone; ``promise`` False stores them without promising to keep them, so that nothing is ever owed.
    ``speculate``: tokens drafted a step from what the request has said before (n-grams); 0: none.
    """

    seats: tuple[Seat, ...]
    step_budget_s: float | None = None
    first_token: bool = True
    store: bool = True
    promise: bool = True
    speculate: int = 0

    @property
    def speculative(self) -> dict[str, str | int] | None:
        """As in `WorkerSpec`."""
        if not self.speculate:
            return None
        return {"method": "ngram", "num_speculative_tokens": self.speculate, **NGRAM}

    @classmethod
    def split(cls, prefill: int, decode: int, cores: Sequence[int]) -> Self:
        """Workers of two roles: ``prefill-1``, ..., ``decode-1``, ....

        With too few cores for all, the two roles still share none: generating stays undisturbed.
        """
        half = (len(cores) + 1) // 2
        if len(cores) >= prefill + decode:
            shares = _divided(cores, prefill + decode)
        else:
            shares = _dealt(cores[:half], prefill) + _dealt(cores[half:] or cores, decode)
        roles: list[tuple[Role, int]] = [("prefill", number + 1) for number in range(prefill)]
        roles += [("decode", number + 1) for number in range(decode)]
        seated = zip(roles, shares, strict=True)
        return cls(tuple(Seat(f"{role}-{number}", role, share) for (role, number), share in seated))

    @classmethod
    def mono(cls, workers: int, cores: Sequence[int]) -> Self:
        """Workers that do everything, ``mono-1``, ..., on equal shares of all cores."""
        shares = _divided(cores, workers) if len(cores) >= workers else _dealt(cores, workers)
        return cls(
            tuple(Seat(f"mono-{number}", "both", share) for number, share in enumerate(shares, start=1))
        )

    def encoding(self, workers: int) -> Self:
        """This shape behind workers that encode images and nothing else: ``encode-1``, ....

        They are bound to no core. On an accelerator of their own they keep images out of prompts' steps; on
        a CPU they compete with the others for the same cores.
        """
        seats = tuple(Seat(f"encode-{number + 1}", "encode") for number in range(workers))
        return replace(self, seats=(*seats, *self.seats))

    @property
    def encodes(self) -> bool:
        """Whether images are encoded by workers of their own."""
        return any(seat.role == "encode" for seat in self.seats)


def _divided(cores: Sequence[int], workers: int) -> list[tuple[int, ...] | None]:
    """Give each worker its own cores, all of them used."""
    bounds = [len(cores) * index // workers for index in range(workers + 1)]
    return [tuple(cores[start:end]) for start, end in pairwise(bounds)]


def _dealt(cores: Sequence[int], workers: int) -> list[tuple[int, ...] | None]:
    """Give each worker one core, in turn; None for all where this machine tells of none."""
    return [(cores[index % len(cores)],) if cores else None for index in range(workers)]
