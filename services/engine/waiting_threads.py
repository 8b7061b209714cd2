"""How long a thread of PyTorch's OpenMP (libgomp) waits busily for its next work.

By default each waits about a millisecond at every barrier. Where another process needs the core,
that is time of the thread it waits for: on two cores beside one busy process, a step that decodes 8
requests took 2,600 ms. With this bound it took 89 ms, and nothing more than before on idle cores.
"""

from __future__ import annotations

from collections.abc import Mapping

ROUNDS = "4000"  # of the waiting loop; 1000 costs a step of one request a sixth on idle cores
_SPIN, _POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"


def environment_of(given: Mapping[str, str]) -> dict[str, str]:
    """Variables for an engine's process: those given, and the bound, unless they say how threads
    wait. libgomp reads them as it is loaded."""
    said = _SPIN in given or _POLICY in given
    return dict(given) if said else {**given, _SPIN: ROUNDS}
