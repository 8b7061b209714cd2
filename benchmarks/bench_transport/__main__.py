"""Our connectors beside the libraries they stand on, and what their overlap is worth in a request.

    python -m benchmarks.bench_transport [--quick] [--json FILE] [--only transports|overlap]

Transports: two processes, each on a core of its own, move bytes by NIXL, ucxx, memcpy and files
alone, and by our transport, KV connector (publish → fetch) and EC connector (put → get). A read is
the transport polled without pause, as its library is; KV and EC are the whole way, driven as an
engine drives it: side channel, leases, confirmation. `ratio` of bandwidths is ours / peer, of times
ours / peer. Contestants take turns; a figure is the first quartile, as other load only adds time.

Overlap: see `bench_transport_overlap`.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bench_transport import measures as transports
from benchmarks.bench_transport import overlap
from benchmarks.bench_transport.pair import SEED
from benchmarks.common.rows import Row, arguments, finish, hardware, head, line, markdown, two_cores

_PACKAGES = {"nixl": "nixl", "ucx": "ucxx"}
_VERSIONS = ("torch", "transformers", "numpy", "nixl", "ucxx-cu13", "pyzmq", "blake3")
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_TOKENS, _QUICK_TOKENS = 4096, 2048


def installed() -> list[str]:
    """The transports whose library is here."""
    return [
        name
        for name in transports.TRANSPORTS
        if name not in _PACKAGES or importlib.util.find_spec(_PACKAGES[name]) is not None
    ]


def _congestion() -> str:
    """How TCP is paced here. BBR halves what loopback moves whenever its estimate is low, for us as
    for the libraries."""
    try:
        return f"TCP {_CONGESTION.read_text().strip()}"
    except OSError:
        return "TCP unknown"


def measure(args: argparse.Namespace, cores: tuple[int, int]) -> Iterator[Row]:
    """Rows as they are found."""
    names = args.transports.split(",") if args.transports else installed()
    if args.only in ("", "transports"):
        size = transports.QUICK if args.quick else transports.Size()
        yield from transports.rows(size, cores, names)
    if args.only in ("", "overlap"):
        tokens, rounds = (_QUICK_TOKENS, 1) if args.quick else (_TOKENS, 4)
        kinds = [name for name in ("shm", "nixl") if name in names]
        kinds = kinds[:1] if args.quick else kinds
        yield from overlap.rows(args.model, cores, kinds, tokens, rounds)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row misses its bar."""
    parser = arguments("bench_transport", __doc__)
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--only", choices=("", "transports", "overlap"), default="")
    parser.add_argument("--transports", default="", help="comma-separated, all that are installed")
    parser.add_argument("--cores", default="", help="producer's and consumer's, as in 0,1")
    parser.add_argument("--model", type=Path, default=Path("models/demo"),
                        help="whose family and tokenizer the overlap's model has")  # fmt: skip
    args = parser.parse_args(argv)
    about, rows = f"{hardware(_VERSIONS, SEED)}, {_congestion()}", []
    print(f"{about}\n{head()}")
    for row in measure(args, two_cores(args.cores)):
        rows.append(row)
        print(line(row), flush=True)
    if args.markdown:
        args.markdown.write_text(markdown(rows, about))
    return finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
