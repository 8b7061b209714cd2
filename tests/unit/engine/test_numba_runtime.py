"""Kernels for CPUs that several processes compile at once, and find again later."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from services.engine.attention import numba_runtime
from services.engine.attention.numba_runtime import compiled, compiling_alone
from tests.support.forked import Forked

DEADLINE_S = 240.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Another process compiles."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_one_waits_for_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numba_runtime.team()  # locks for itself
    waiting, made = threading.Event(), threading.Event()
    locked = numba_runtime._locked

    def look(file: int) -> bool:
        found = locked(file)
        if not found:
            waiting.set()
        return found

    monkeypatch.setattr(numba_runtime, "_locked", look)
    thread = threading.Thread(target=lambda: compiled(lambda _: made.set(), "a kernel"))
    with held(folder):
        thread.start()
        assert waiting.wait(DEADLINE_S) and not made.wait(0.3)
    thread.join(DEADLINE_S)
    assert made.is_set()
    with held(folder):
        pass


def test_one_that_stands_still_is_not_waited_for_without_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    numba_runtime.team()  # locks for itself
    monkeypatch.setattr(numba_runtime, "_PATIENCE_S", 0.05)
    with held(folder):
        assert compiled(lambda _: "made", "a kernel") == "made"
    assert f"locks {folder}: this one compiles beside it" in caplog.text


def test_a_folder_that_takes_no_files_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where the folder should be: also root cannot write there."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    with compiling_alone():
        pass
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    with compiling_alone():
        pass


@pytest.mark.slow
def test_kernels_compiled_at_once_are_all_found_again(folder: Path) -> None:
    """Each process another one, into the same file of Numba's."""
    shapes = [(1, 16, 16, 16), (2, 16, 16, 16), (1, 32, 32, 16), (2, 32, 32, 16)]
    assert _compiled(folder, [[shape] for shape in shapes]) == [0, 0, 0, 0]
    assert _compiled(folder, [shapes]) == [4]


def _compiled(folder: Path, shares: list[list[tuple[int, int, int, int]]]) -> list[int]:
    """How many kernels each of as many processes found, where it compiles its share."""
    pipes = [Pipe(duplex=False) for _ in shares]
    processes = [
        Forked(_compile, str(folder), share, descriptors=[say.fileno()])
        for share, (_, say) in zip(shares, pipes, strict=True)
    ]
    found = []
    for hear, _ in pipes:
        assert hear.poll(DEADLINE_S), "no answer"
        found.append(hear.recv())
    for process in processes:
        process.wait(DEADLINE_S)
    return found


def _compile(say: int, folder: str, shapes: list[tuple[int, int, int, int]]) -> None:
    import numba

    os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = folder
    from services.engine.attention import cpu_decode_kernel

    cpu_decode_kernel._attend.enable_caching()  # in that folder
    kernels = [
        compiled(lambda _, shape=shape: cpu_decode_kernel.compile_kernel(*shape), "a kernel")
        for shape in shapes
    ]
    Connection(say, readable=False).send(
        sum(kernel.cache_hits for kernel in kernels if kernel is not None)
    )
