"""A process that has no files left."""

import contextlib
import resource
from collections.abc import Iterator

_STANDARD = 3  # input, output and errors, which are open


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    """Meanwhile nothing can be opened here, whatever is closed: threads of other tests may still
    have files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_STANDARD, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
