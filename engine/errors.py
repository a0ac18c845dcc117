"""Everything that can go wrong in the engine, as a tree. The gateway's table gives each leaf its status.

EngineError
├── EngineUnavailable       no worker could take the request before its first token; ask again after a while
├── EngineFailed            the stream broke after its first token and could not go on elsewhere
├── WorkerAnswerInvalid     a worker answered with something no honest worker sends
├── PromptRefused           the worker refused the request itself: another worker would refuse it too
│   ├── ConstraintRefused   what it refused is the constraint on the answer
│   └── ImageRefused        what it refused is an image
└── GenerationCancelled     ours: `Generation.cancel` came before what was asked for
"""


class EngineError(Exception):
    """Root of the tree."""


class EngineUnavailable(EngineError):
    """No worker could take the request before its first token. Nothing of it is billable."""

    def __init__(self, reason: str, *, retry_after_s: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class EngineFailed(EngineError):
    """The stream broke after its first token: death, abort, error, silence; and its one retry, if it had any.

    A stream whose tokens depend on more than the tokens before (`Sampling.needs_decoder_state`) has none. The
    request is not billable.
    """

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(f"{worker}: {reason}")
        self.worker = worker
        self.reason = reason


class WorkerAnswerInvalid(EngineError):
    """A worker's answer is none to the question: garbage, a bad signature, another request's attestation."""

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(f"{worker}: {reason}")
        self.worker = worker
        self.reason = reason


class PromptRefused(EngineError):
    """The worker refused the request (its 4xx): too long for its context, a parameter out of its range."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConstraintRefused(PromptRefused):
    """The worker's grammar backend does not take the request's constraint."""


class ImageRefused(PromptRefused):
    """The worker cannot read an image, or its tokens are not those of the model's processor."""


class GenerationCancelled(EngineError):
    """`Generation.prefilled` was asked for a prefill that `Generation.cancel` had stopped."""
