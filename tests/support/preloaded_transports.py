"""As `tests.support.preloaded`, for services alone: a process that has run tests before it connects
by UCX has crashed in it where the library was loaded before the fork."""

import contextlib
import importlib

from connectors.transports import ucx_settings
from protocol.errors import ConfigError

# UCX measures the processor's clock when it is loaded, for 0.3 s.
with contextlib.suppress(ImportError):
    importlib.import_module("nixl")
with contextlib.suppress(ConfigError):
    ucx_settings.load()
