"""Each part of a stack killed, drained and stalled in turn under load; clients notice nothing.

    python -m benchmarks.chaos [--quick] [--json FILE] [--transport shm] [--dtype float32]
                               [--topology e+p+d] [--features clips,lora] [--model DIR]
                               [--only REGEX]

Two encoders, two prefill workers, two decode workers, a master and two proxies, all real, on this
machine. Clients, half of them at each proxy, ask the demonstration model for long answers, greedy
and sampled by a seed, whole and streamed. Each worker is killed with −9 and started again, one of
each role is drained and started again, one of each is stopped by signal and goes on, both of its
processes, its engine alone and its HTTP process alone, one of each answers its work with 503, with
garbage, with nothing and with the 404 of another service while its probes go well, the master is
killed and started again, one proxy is told to stop and started again, at last it is killed. `ours`
counts what must be none (`peer`): requests that failed (at the killed proxy: but those under way;
at the one that was told to stop: but those that were sent once its port was closed), tokens other
than those of an undisturbed run, blocks and bytes still held once all is idle. Exit status 1 if a
row does not hold.

`--topology`: of two workers of each role, or with `one` of three that do all. `--features`: what
workers and questions have beyond pictures and text; `embeddings` wants the topology e+p, which has
nothing that decodes, and `sounds` a `--model` that hears.

In bfloat16 what a token comes out as depends on what is computed beside it, wherever two are about
as likely: answers, all greedy, are the same up to a token that led by no more than a few steps of
that format. The leads at which answers parted are printed; those about sounds may part at leads of
0.0001, as a model for tests has random weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.chaos.acts import CLIENTS, SEED, TOKENS, VERSIONS, Play
from benchmarks.chaos.features import NAMES, Added, added
from benchmarks.chaos.report import DRAIN_DELAY_S, left_rows, outcome_rows, tell
from benchmarks.common.rows import Row, arguments, at_most, finish, hardware, head, line
from benchmarks.soak.books import settle
from benchmarks.soak.load import Load
from benchmarks.soak.stack import MODEL, TRANSPORTS, running

_FLAGS = (
    "--drain-delay", str(DRAIN_DELAY_S), "--encode-timeout", "8", "--prefill-timeout", "8",
    "--first-token-timeout", "8", "--video-timeout", "4",
)  # fmt: skip
_TIE = 0.25  # of logits, whose steps in bfloat16 are an eighth from 16 on
TOPOLOGIES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "e+p+d": {"encoder": 2, "prefill": 2, "decode": 2},
        "e+pd": {"encoder": 2, "pdfusion": 2},
        "one": {"pdfusion": 3},
        "e+p": {"encoder": 2, "prefill": 2},
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row does not hold."""
    args = _arguments(argv)
    print(hardware(VERSIONS, SEED))
    what = f"chaos of {args.topology} over {args.transport}, {args.features or 'pictures and text'}"
    print(f"{what}, {CLIENTS} clients, {TOKENS} tokens each", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        names = args.features.split(",") if args.features else []
        rows = chaos(args, added(names, args.model, folder), folder)
    print("\n".join([head(), *map(line, rows)]))
    return finish(rows, args.json)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("chaos", __doc__)
    parser.add_argument("--transport", choices=TRANSPORTS, default="shm")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--topology", choices=tuple(TOPOLOGIES), default="e+p+d")
    parser.add_argument("--features", default="", help=f"comma-separated, of {', '.join(NAMES)}")
    parser.add_argument(
        "--model", default=MODEL, help="folder of the model; others for sounds alone"
    )
    parser.add_argument("--only", default="", help="acts whose names this regular expression finds")
    args = parser.parse_args(argv)
    names = args.features.split(",") if args.features else []
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"--features: {unknown[0]!r} is none of {', '.join(NAMES)}")
    if ("embeddings" in names) != (args.topology == "e+p"):
        parser.error("--features embeddings goes with --topology e+p, and only with it")
    if ("sounds" in names) != (args.model != MODEL):
        parser.error("--features sounds goes with another --model, and only with it")
    return args


def chaos(args: argparse.Namespace, more: Added, folder: Path) -> list[Row]:
    """Learn the right answers, play, look what is left, ask the new questions once more."""
    counts = TOPOLOGIES[args.topology]
    tie = _TIE if args.dtype == "bfloat16" else more.tie
    with running(
        args.transport, counts, folder, master=True, proxies=2, dtype=args.dtype, interposed=True,
        proxy_flags=(*_FLAGS, *more.proxy_flags), model=args.model,
        flags_of=dict.fromkeys(counts, more.flags),
    ) as stack:  # fmt: skip
        ports = [proxy.port for proxy in stack.proxies]
        load = Load(
            ports, SEED, fresh=0.3, aborted=0.0, length=TOKENS, tie=tie, kinds=more.kinds,
            make=more.make,
        )  # fmt: skip
        load.learn()
        before = settle(stack)
        load.start(CLIENTS)
        play = Play(stack)
        play.run(args.quick, args.only)
        load.stop()
        after = settle(stack)
        changed = load.check_new()
        stopped = [s.stop() for s in (*stack.proxies, *stack.workers, *stack.masters)]
    tell(load.outcomes, play.acts)
    if load.ties:
        print(
            f"{len(load.ties)} answers parted at leads of", *sorted(map("{:.2g}".format, load.ties))
        )
    return [
        *outcome_rows(load.outcomes, play.acts, ports[1]),
        at_most("new questions answered otherwise once more, undisturbed", changed, 0, 1),
        Row("spoiled workers that no request met", play.unmet),
        *left_rows(before, after),
        at_most("exit statuses not 0", sum(map(bool, stopped)), 0, 1),
    ]


if __name__ == "__main__":
    sys.exit(main())
