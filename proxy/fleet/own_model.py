"""What this proxy was told its workers serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        """Why requests go nowhere where workers serve `models`, none of them this one."""
        return (
            f"no worker serves {' or '.join(self.names)}, but {', '.join(models)}: see the proxy's "
            "--served-model-name"
        )

    def refusal(self, misfits: Iterable[Instance]) -> str:
        """Why requests that are rendered here cannot go to these workers."""
        return (
            f"the workers serve {', '.join(models_of(misfits))}, whose tokenizer is another than "
            f"that of {self.weights}, with which this proxy renders: start the proxy with their "
            "--model"
        )


_NONE = OwnModel()


class OwnModels:
    """`all`: the models that this proxy was told of, in order: one unless it renders for several,
    which their first names stand for."""

    def __init__(self, *models: OwnModel) -> None:
        self.all: Sequence[OwnModel] = models or (_NONE,)
        self.several = len(self.all) > 1

    def of(self, rendered: str) -> OwnModel:
        """What a worker is to serve, by its `rendered`. Of several one that agrees with any worker,
        if that serves none of them: it gets no requests."""
        if not self.several:
            return self.all[0]
        return next((one for one in self.all if one.names[0] == rendered), _NONE)


def models_of(workers: Iterable[Instance]) -> list[str]:
    """The names of the models that these serve."""
    return sorted({worker.model for worker in workers if worker.model})
