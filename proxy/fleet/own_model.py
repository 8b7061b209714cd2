"""What this proxy was told its workers serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.fleet.worker import Instance


@dataclass(frozen=True)
class OwnModel:
    """By flags, which the workers may not agree with.

    `names`: those that clients use, of --served-model-name or --model; none if it takes any.
    `weights`, `revision`: of --model, as in content keys; "" if it renders nothing.
    `tokenizer`: digest of the vocabulary that it renders with, "" if it renders nothing.
    """

    names: tuple[str, ...] = ()
    weights: str = ""
    revision: str = ""
    tokenizer: str = ""

    def misreads(self, worker: Instance) -> bool:
        """Whether the worker's model would take what is rendered here for another text. One that
        does not tell its tokenizer is taken to have this one; encoders read no tokens."""
        if worker.role == "encode" or worker.dialect != "tokens":
            return False
        return bool(self.tokenizer and worker.tokenizer) and worker.tokenizer != self.tokenizer

    def unserved(self, models: Iterable[str]) -> str:
        """Why requests go nowhere where workers serve `models`, none of them this proxy's."""
        return (
            f"no worker serves {' or '.join(self.names)}, but {', '.join(models)}: see the proxy's "
            "--served-model-name"
        )

    def refusal(self, misfits: Iterable[Instance]) -> str:
        """Why requests that are rendered here cannot go to these workers."""
        return (
            f"the workers serve {models_of(misfits)}, whose tokenizer is another than that of "
            f"{self.weights}, with which this proxy renders: start the proxy with their --model"
        )


def models_of(workers: Iterable[Instance]) -> str:
    """The names of the models that these serve."""
    return ", ".join(sorted({worker.model for worker in workers if worker.model}))
