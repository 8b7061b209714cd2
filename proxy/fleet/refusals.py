"""Why a request finds no worker."""

from __future__ import annotations

from protocol.errors import IncompatiblePeer, Unavailable


class NoWorker(Unavailable):
    """No worker of a role can be asked."""

    code = "no_worker"


class WrongTokenizer(NoWorker):
    """The workers that are up would read another text than this proxy renders."""

    code = "wrong_tokenizer"


class Unreadable(NoWorker):
    """A request with media goes nowhere, though there are workers for each stage."""

    code = IncompatiblePeer.code

    def __init__(self) -> None:
        super().__init__(
            "no encode worker makes embeddings that a worker which is to read them can read: give "
            "all of them the same --model, --dtype and transport in --ec-transfer-config",
            retry_after_s=1.0,
        )


class WorkerUnknown(Unavailable):
    """A place was found, at a worker that has just come or gone: another one may do."""
