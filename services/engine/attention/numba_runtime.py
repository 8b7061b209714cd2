"""Kernels that Numba compiles for this CPU, run by PyTorch's own threads; and whether oneDNN has
bfloat16 here.

Threads of another OpenMP would wait, busily, for work on the cores that PyTorch's need, and the
other way round. So kernels are C functions, which the OpenMP that PyTorch uses is asked to run.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
logging.getLogger("numba").setLevel(logging.WARNING)  # its own debugging is of no use here
_POLL_S = 0.02
_PATIENCE_S = 20.0  # a kernel takes seconds to compile
_OPENMP = re.compile(r"\S*/lib(gomp|iomp5|omp)\S*\.so\S*$")


class Kernel:
    """A compiled function of a pointer to int64 words: the next item of work, which threads count
    up, the number of all, then its arguments."""

    def __init__(self, compiled: Any, parallel: Any) -> None:
        """`parallel`: OpenMP's GOMP_parallel."""
        # The address is enough: Numba does not unload what it has compiled.
        self._address = compiled.address
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)
        self._parallel = parallel

    def __call__(self, items: int, *arguments: int | float, alone: bool = False) -> None:
        """Do `items` pieces of work; `alone`, by this thread. A kernel reads an argument as what it
        is given here: an int is an integer or an address, a float a number."""
        words = (ctypes.c_int64 * (2 + len(arguments)))(
            0, items, *[_bits(a) if isinstance(a, float) else a for a in arguments]
        )
        # Either call returns once all is done, so addresses of tensors that the caller holds stay
        # good. ctypes lets Python's other threads run meanwhile.
        if alone or items < 2:
            self._alone(words)
        else:  # by all: OpenMP ends threads that a smaller team leaves out
            self._parallel(self._address, words, torch.get_num_threads(), 0)


@lru_cache(maxsize=64)  # of scales and epsilons, the same ones in every layer
def _bits(value: float) -> int:
    """The integer that has a float's bits."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


@cache
def team() -> Any:
    """GOMP_parallel of the OpenMP that PyTorch uses, None where kernels cannot run: without Numba,
    or if it is not known which OpenMP that is. The first call takes seconds."""
    if find_spec("numba") is None:
        return None
    try:
        parallel = ctypes.CDLL(_openmp()).GOMP_parallel
        parallel.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
        parallel.restype = None
        with compiling_alone():
            _try(parallel)
    except Exception as error:  # of Numba or the system: PyTorch computes as well
        logger.warning("no kernels are compiled for this CPU: %s", error)
        return None
    return parallel


def compiled(make: Callable[[Any], _T], what: str, *, products: bool = False) -> _T | None:
    """What `make` compiles, which is given `team()`; None where it cannot, and PyTorch computes as
    well: the log says so of `what`. `products`: of bfloat16, by instructions of their own."""
    if (parallel := team()) is None or (products and not has_bfloat16_products()):
        return None
    try:
        with compiling_alone():
            return make(parallel)
    except Exception as error:  # of many kinds, Numba's and the system's
        logger.warning("%s: there is no kernel for this CPU: %s", what, error)
        return None


@contextmanager
def compiling_alone() -> Iterator[None]:
    """One process compiles at a time, of those with the same folder of kernels; the next ones find
    what it has kept. Numba notes what it keeps in a file without a lock: of two processes one may
    lose its entry, or find the other's kernel under its own name. One that has stopped while it
    compiles is not waited for longer than `_PATIENCE_S`, and the log says so."""
    try:
        file = _lock_file()
    except OSError:  # also where the folder takes no files: nothing is kept then
        yield
        return
    try:
        end = time.monotonic() + _PATIENCE_S
        while not _locked(file):
            if time.monotonic() >= end:
                logger.warning(
                    "another process has been compiling a kernel for %g s, which locks %s: this "
                    "one compiles beside it", _PATIENCE_S, os.environ["NUMBA_CACHE_DIR"],
                )  # fmt: skip
                break
            time.sleep(_POLL_S)
        yield
    finally:
        # Closing alone would leave it to a process that was forked meanwhile.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _lock_file() -> int:
    """A descriptor of the file that is locked, `OSError` where there can be none."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    if not folder:
        raise FileNotFoundError("no folder for compiled kernels is set")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return os.open(Path(folder) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(file: int) -> bool:
    """Whether this process has the lock now; also where the file system knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _try(parallel: Any) -> None:
    from services.engine.attention.numba_bfloat16 import count_up

    numbers = torch.zeros(64, dtype=torch.int64)
    Kernel(count_up, parallel)(64, numbers.data_ptr())
    if not torch.equal(numbers, torch.arange(64)):
        raise RuntimeError("its kernels do not compute")


def _openmp() -> str:
    """The file of PyTorch's OpenMP."""
    lines = Path(f"/proc/{os.getpid()}/maps").read_text().splitlines()
    loaded = {found.group().strip() for line in lines if (found := _OPENMP.search(line))}
    own = Path(torch.__file__).parent.parent
    beside = sorted(name for name in loaded if Path(name).is_relative_to(own))
    if len(beside or loaded) != 1:
        raise RuntimeError(f"which OpenMP PyTorch uses is not clear: {sorted(loaded)}")
    return (beside or sorted(loaded))[0]


def has_bfloat16_products() -> bool:
    """Whether Numba, which is installed, compiles for a processor with AVX512-BF16. For another one
    LLVM would end the process at such an instruction."""
    from llvmlite import binding
    from numba import config

    own = config.CPU_NAME is None and config.CPU_FEATURES is None
    return own and bool(binding.get_host_cpu_features().get("avx512bf16"))


def onednn_has_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU (from AVX-512 on). Where it does not, PyTorch
    does, at a quarter of the rate of float32."""
    return torch.backends.mkldnn.is_available() and bool(
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
