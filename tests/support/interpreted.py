"""A plugin of pytest for tests that Triton's interpreter runs: it makes the interpreter faster.

The interpreter puts its own operations into Triton's language at each launch and at each call of a
device function, such as `tl.sum`, and looks through a few hundred names for that. This is most of
its time. Here that is done once for each set of modules that functions see, and lasts.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from triton import language
from triton.runtime import interpreter


def pytest_configure(config: pytest.Config) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(interpreter, "_patch_lang", _once(interpreter._patch_lang))
    config.add_cleanup(patch.undo)


def _once(patch_language: Callable[[Any], Any]) -> Callable[[Any], Any]:
    done: set[frozenset[str]] = set()

    def patched(function: Any) -> Any:
        """A scope with nothing to restore."""
        seen = frozenset(
            value.__name__
            for value in function.__globals__.values()
            if isinstance(value, ModuleType) and value in (language, language.core)
        )
        if seen not in done:
            patch_language(function)
            done.add(seen)
        return interpreter._LangPatchScope()

    return patched
