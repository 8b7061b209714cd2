"""A process that has no files left."""

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    """Meanwhile nothing can be opened here."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
