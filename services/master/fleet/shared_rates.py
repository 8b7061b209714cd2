"""What workers that are measured say of those that are not.

A worker whose first call took long by chance, or that was slow for a while, is not chosen any more,
so that nothing is measured that would say otherwise. It is taken to be like the others of its kind
until it is measured itself, and again once it has been idle for some time while others were
measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.master.fleet.learned_rates import LineFit, RateLearner

_ENOUGH = 8.0  # measurements after which a worker is known by its own
_PATIENCE = 10  # looks at an idle worker until what was measured is forgotten
_KEPT = 0.9  # of it with each further look
_ASKED = 16  # workers whose rates tell what is typical: of thousands, all would take long


def share(
    learners: Sequence[RateLearner], idle: Sequence[bool], told: Sequence[tuple[float, float]] = ()
) -> list[bool]:
    """A look at the workers of one kind, once a second: what is known of each that does not measure
    itself, and whether it has no requests. `told`: (ms, ms per token) of computing by those that
    do. Returns for each learner whether its rates are others from now on."""
    computing = _share([one.computing.fit for one in learners], idle, told)
    steps = _share([one.steps for one in learners], idle, ())
    return [a or b for a, b in zip(computing, steps, strict=True)]


def _share(
    fits: Sequence[LineFit], idle: Sequence[bool], told: Sequence[tuple[float, float]]
) -> list[bool]:
    for fit, rests in zip(fits, idle, strict=True):
        fit.look(idle=rests)
    known = [fit for fit in fits if fit.weight >= _ENOUGH and fit.silent < _PATIENCE]
    if len(known) == len(fits) or not (known or told):
        return [False] * len(fits)
    lines = [*told[:: _every(told)], *(fit.solve() for fit in known[:: _every(known)])]
    # By what a typical call takes, which is the same for all of a kind. The middle one: few odd
    # workers do not move it, and its base and slope belong together.
    lines.sort(key=lambda line: line[0] + line[1] * fits[0].typical)
    base, slope = lines[len(lines) // 2]
    return [_learn(fit, base, slope) for fit in fits]


def _every(workers: Sequence[object]) -> int:
    return max(1, -(-len(workers) // _ASKED))


def _learn(fit: LineFit, base: float, slope: float) -> bool:
    forgotten = fit.silent > _PATIENCE and fit.forget(_KEPT)
    return (fit.weight < _ENOUGH and fit.expect(base, slope)) or forgotten
