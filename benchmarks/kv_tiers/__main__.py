"""Turns of many conversations whose KV is four times the pool, with and without tiers below it.

    python -m benchmarks.kv_tiers [--quick] [--json FILE] [--markdown FILE] [--svg FILE]

Workers that do it all (`services.pdfusion`), over HTTP, with the same pool: without tiers (the peer
of every row), with host memory, with files, with both, and one with a pool for everything, which is
the most that tiers could give. Conversations take turns in random order, so that as a rule all
others have spoken since, and an LRU cache of a quarter of the working set finds little; each turn
sends the whole conversation so far, two at once. All workers take a round before the next begins;
the first does not count. Last, two workers start again, one over the files of its predecessor, and
each conversation takes one turn more. All answers must be the same, token for token.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.common import random_model
from benchmarks.common.plotting import bars, check_plots
from benchmarks.common.processes import call, free_port, serving
from benchmarks.common.random_model import ModelShape
from benchmarks.common.rows import (
    Row,
    arguments,
    at_least,
    at_most,
    finish,
    hardware,
    head,
    line,
    markdown,
)
from benchmarks.kv_tiers.conversations import BLOCK, QUICK, SEED, Answers, Load, Run, take_turns

BASE = Path("models/demo")
PLAIN, LARGE = "no tiers", "a pool for everything"
SHAPE = ModelShape(
    {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 10,
     "num_attention_heads": 16, "num_key_value_heads": 4, "layer_types": ["full_attention"] * 10,
     "max_position_embeddings": 8192},
    {"depth": 1, "out_hidden_size": 512},
    3136,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = arguments("kv_tiers", __doc__)
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--svg", type=Path, help="plot here (needs the extra 'bench')")
    args = parser.parse_args(argv)
    check_plots(parser, "--svg", args.svg)
    load = QUICK if args.quick else Load()
    where = hardware(("torch", "transformers"), SEED)
    spoken = f"{load.sessions} conversations of {load.turns} turns"
    about = f"{spoken}, a pool of {load.pool_blocks} blocks; {where}"
    print(about)
    with tempfile.TemporaryDirectory() as folder:
        model = random_model.build(BASE, Path(folder) / "model", SHAPE)
        rows = compare(model, Path(folder), load, quick=args.quick)
    print(head(), *map(line, rows), sep="\n")
    if args.markdown is not None:
        args.markdown.write_text(markdown(rows, about))
    if args.svg is not None:
        draw(args.svg, rows)
    return finish(rows, args.json)


def draw(path: Path, rows: Sequence[Row]) -> None:
    """How many times as good as without tiers; times the other way round."""
    values: dict[str, dict[str, float]] = {}
    for row in rows:
        name, _, what = row.name.partition(": ")
        if row.ratio and "token" in what:
            values.setdefault(name, {})[what.replace("ms to", "time to")] = 1 / row.ratio
        elif row.ratio:
            values.setdefault(name, {})[what] = row.ratio
    bars(path, values, f"times as good as {PLAIN}")


def compare(model: Path, folder: Path, load: Load, *, quick: bool) -> list[Row]:
    disk = ["--kv-disk", "8", "--kv-disk-path"]
    small = ["--num-gpu-blocks-override", str(load.pool_blocks)]
    large = ["--num-gpu-blocks-override", str(2 * load.sessions * load.longest // BLOCK)]
    contenders = {
        PLAIN: small,
        "host memory": [*small, "--kv-host-memory", "4"],
        "files": [*small, *disk, str(folder / "files")],
        "host memory and files": [*small, "--kv-host-memory", "0.05", *disk, str(folder / "both")],
        LARGE: large,
    }
    if quick:
        contenders = {name: contenders[name] for name in (PLAIN, "host memory", "files")}
    runs = race(model, folder, load, contenders, {}, range(1, load.turns))
    plain = runs.pop(PLAIN)
    rows = [Row(f"{PLAIN}: share of prompt tokens found", plain.cached)]
    for name, found in runs.items():
        bar = (None, None) if quick or name == LARGE else (1.3, 0.6)
        rows += beside(name, found, plain, *bar)
    if not quick:
        pair = {name: contenders[name] for name in (PLAIN, "files")}
        said = {PLAIN: plain.answers, "files": runs["files"].answers}
        again = race(model, folder, load, pair, said, range(load.turns, load.turns + 1))
        rows += beside("files, after a restart", again["files"], again[PLAIN], 1.3, 0.6)
    return rows


def beside(
    name: str, ours: Run, peer: Run, faster: float | None, sooner: float | None
) -> list[Row]:
    """`RuntimeError` if the answers are not the same."""
    if ours.answers != peer.answers:
        raise RuntimeError(f"{name}: answers differ from those without tiers")
    return [
        at_least(f"{name}: turns/s", ours.turns_s, peer.turns_s, faster),
        at_most(f"{name}: ms to the first token, median", ours.first_ms(0.5), peer.first_ms(0.5),
                sooner),
        at_most(f"{name}: ms to the first token, p95", ours.first_ms(0.95), peer.first_ms(0.95)),
        Row(f"{name}: share of prompt tokens found", ours.cached, peer.cached),
    ]  # fmt: skip


def race(
    model: Path,
    folder: Path,
    load: Load,
    contenders: Mapping[str, Sequence[str]],
    said: Mapping[str, Answers],
    turns: range,
) -> dict[str, Run]:
    """These `turns` of all conversations at a worker for each of `contenders`, which are given by
    their flags. They take each round one after the other, so that what else the machine does hits
    all alike. Turns before that were not `said` come first, and do not count."""
    runs = {name: Run(answers=dict(said.get(name, {}))) for name in contenders}
    with contextlib.ExitStack() as opened:
        urls = {
            name: opened.enter_context(worker(model, folder / f"{number}.log", flags))
            for number, (name, flags) in enumerate(contenders.items())
        }
        for turn in range(0 if not said else turns.start, turns.stop):
            for name, run in runs.items():
                take_turns(urls[name], load, run, turn, counts=turn in turns)
        for name, run in runs.items():
            run.counters = counters(urls[name])
            if problems := json.loads(call("GET", urls[name], "/integrity")).get("problems"):
                raise RuntimeError(f"{name}: the worker's books are wrong: {problems}")
    return runs


@contextlib.contextmanager
def worker(model: Path, log: Path, flags: Sequence[str]) -> Iterator[str]:
    port = free_port()
    command = [
        sys.executable, "-m", "services.pdfusion", "--model", str(model), "--port", str(port),
        "--dtype", "float32", "--block-size", str(BLOCK), "--max-num-seqs", "8",
        "--num-threads", "1", *flags,
    ]  # fmt: skip
    with serving(command, f"http://127.0.0.1:{port}", log) as url:
        yield url


def counters(url: str) -> dict[str, float]:
    """The worker's counters by their names without prefix and suffix."""
    found: dict[str, float] = {}
    for text in call("GET", url, "/metrics").decode().splitlines():
        name, _, value = text.partition(" ")
        if name.startswith("triptych:") and "_total" in name:
            found[name.removeprefix("triptych:").partition("_total")[0]] = float(value)
    return found


if __name__ == "__main__":
    sys.exit(main())
