"""The environment that an engine's process starts with.

Compiled kernels: the home folder may be read-only, as it often is in a container; then a folder
among the temporary files is used. Numba finds a kernel that it has compiled by the file of its
outermost function alone. What that calls lies in other files, and another machine may have the same
home folder: so the folder's name tells of all sources and of the processor.

Threads: by default each thread of PyTorch's OpenMP (libgomp) waits busily for about a millisecond
at every barrier. Where another process needs the core, that is time of the thread it waits for: on
two cores beside one busy process, a step that decodes 8 requests took 2,600 ms. With the bound here
it took 89 ms, and nothing more than before on idle cores.

Large pages: where each page of 4 KiB has to be looked up, reading weights takes a sixth to a
quarter longer on a virtual machine. glibc (from 2.35 on) asks for pages of 2 MiB for what it
allocates; others do not know the variable.

Quiet libraries: transformers warns of what a worker does on purpose (parts of a model, files read
once), and draws a bar while it reads weights. It reads its variables where it is imported.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from connectors.owners import make_private

_QUIET: Mapping[str, str] = MappingProxyType(
    {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
)
_LARGE_PAGES: Mapping[str, str] = MappingProxyType({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
ROUNDS = "4000"  # of the waiting loop; 1000 costs a step of one request a sixth on idle cores
_SPIN, _POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"


def ensure_writable() -> None:
    """Point Triton and Numba to folders that can be written to: in the home folder, or private ones
    among the temporary files.

    `ConfigError` if one of these belongs to another user. A folder that is set by TRITON_CACHE_DIR
    or NUMBA_CACHE_DIR is kept.
    """
    _ensure("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache", "triton")
    kernels, numba = _kernels(), Path.home() / ".cache" / "triptych" / "numba"
    _ensure("NUMBA_CACHE_DIR", numba / kernels, f"numba-{kernels}")


def _kernels() -> str:
    """A name for the kernels as they are compiled here."""
    found = hashlib.sha256()
    here = Path(__file__).parent
    for folder in ("attention", "model"):
        for file in sorted((here / folder).glob("*.py")):
            found.update(file.read_bytes())
    try:
        found.update(version("numba").encode())
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except (PackageNotFoundError, OSError):
        lines = []
    told = {line for line in lines if line.startswith(("model name", "flags"))}
    found.update("".join(sorted(told)).encode())
    return found.hexdigest()[:16]


def _ensure(variable: str, usual: Path, name: str) -> None:
    if os.environ.get(variable):
        return
    folder = usual
    if not _can_write(usual):
        folder = Path(tempfile.gettempdir()) / f"triptych-{os.getuid()}-{name}"
        # Code is loaded from there: another user could have made the folder first, with code in it.
        make_private(folder, f"set {variable} to a folder of your own")
    os.environ[variable] = str(folder)


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def environment_of(given: Mapping[str, str]) -> dict[str, str]:
    """Variables for an engine's process: those given, which win, those that keep libraries quiet
    (`_QUIET`), large pages, and the bound, unless they say how threads wait. libgomp reads it as it
    is loaded.
    """
    said = _SPIN in given or _POLICY in given
    return {**_QUIET, **_LARGE_PAGES, **({} if said else {_SPIN: ROUNDS}), **given}
