"""`few_files SOFT:HARD MODULE ...` is `python -m MODULE ...` with such limits of open files, in a
service that is forked as others are: an interpreter of its own imports for seconds."""

import resource
import runpy
import sys


def main() -> None:
    """`tests.support.stack` may have put flags of the service before all others."""
    place = next(n for n, word in enumerate(sys.argv) if word == "few_files")
    soft, _, hard = sys.argv[place + 1].partition(":")
    module = sys.argv[place + 2]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard)))
    sys.argv[:] = [module, *sys.argv[1:place], *sys.argv[place + 3 :]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
