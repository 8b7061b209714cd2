"""What an exception ends: the requests it belongs to, and not the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

from protocol.errors import InternalError, TriptychError, Unavailable

logger = logging.getLogger(__name__)

_MOST_IN_A_ROW = 8  # failed steps, after which nothing will mend itself
_RETRY_AFTER_S = 1.0
_T = TypeVar("_T")
_R = TypeVar("_R")


def contained(
    run: Callable[[Sequence[_T]], list[_R]],
    items: Sequence[_T],
    failed: Callable[[_T, TriptychError], list[_R]],
) -> list[_R]:
    """`run(items)`; if that raises, of each half on its own, and so on down to the items that fail
    by themselves, for which `failed` makes the results.

    A batch that is too large for the memory thus runs in parts. `run` may be repeated for an item.
    """
    try:
        return run(items)
    except Exception as caught:
        error = told(caught)
    # Out of the handler, for the exception holds all that the run has allocated.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(items) == 1:
        return failed(items[0], error)
    middle = len(items) // 2
    return [
        *contained(run, items[:middle], failed),
        *contained(run, items[middle:], failed),
    ]


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory, of a GPU or of this process, did not suffice."""
    # PyTorch's allocator of a CPU raises a plain RuntimeError: its words alone tell what it is.
    words = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and ("out of memory" in words or "can't allocate memory" in words)
    )


def told(error: Exception) -> TriptychError:
    """`error` as requests are told it. One after which a GPU computes nothing more is raised."""
    if isinstance(error, TriptychError):
        return error
    if is_out_of_memory(error):
        logger.warning("a request failed because memory ran out: %s", error)
        return Unavailable(
            "this worker has not enough memory for the request",
            code="out_of_memory",
            retry_after_s=_RETRY_AFTER_S,
        )
    if isinstance(error, RuntimeError) and "CUDA error" in str(error):
        raise error
    logger.error("a request failed in the engine", exc_info=error)
    return InternalError(f"the engine failed at this request: {type(error).__name__}")


class StepGuard(Generic[_R]):
    """A part of an engine that goes on after a step that raised.

    `fail` ends all of its requests, since nothing tells to which of them the exception belongs;
    `problems` are what its books show then. The exception is raised if they do not agree, or if the
    steps go on failing.
    """

    def __init__(
        self,
        step: Callable[[], list[_R]],
        fail: Callable[[TriptychError], list[_R]],
        problems: Callable[[], list[str]],
    ) -> None:
        self._step = step
        self._fail = fail
        self._problems = problems
        self._in_a_row = 0

    def step(self) -> list[_R]:
        try:
            outputs = self._step()
        except Exception as caught:
            self._in_a_row += 1
            if self._in_a_row >= _MOST_IN_A_ROW:
                raise
            outputs = self._fail(told(caught))
            if problems := self._problems():
                # A block with wrong books may get two owners, and a request the KV of another.
                logger.error("the engine's books are wrong: %s", "; ".join(problems))
                raise
        else:
            self._in_a_row = 0
        return outputs


def added(
    add: Callable[[_T], list[_R]], request: _T, failed: Callable[[TriptychError], list[_R]]
) -> list[_R]:
    """`add(request)`; if that raises, what `failed` says, which must forget the request."""
    try:
        return add(request)
    except Exception as caught:
        error = told(caught)
    return failed(error)
