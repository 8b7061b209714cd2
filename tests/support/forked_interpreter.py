"""`python -m tests.support.forked_interpreter SOCKET -u -c CODE` does what `python -u -c CODE`
does, in a process forked by the server at that socket (tests/support/shared_run.py)."""

import os
import sys

from tests.support.forked import SERVER, Forked


def interpret(read: int, write: int, errors: int, code: str, env: dict[str, str]) -> None:
    """In the forked process: become the interpreter."""
    for standard, given in enumerate((read, write, errors)):
        os.dup2(given, standard)
        os.close(given)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c"]
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    from tests.support.forked_interpreter import interpret as target  # by the name it has there

    given = dict(os.environ)
    os.environ[SERVER] = sys.argv[1]
    sys.exit(Forked(target, sys.argv[-1], given, descriptors=[0, 1, 2]).wait())
