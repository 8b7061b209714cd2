"""Our engine beside vLLM's for CPUs and transformers: one model, one client, the same cores.

    python -m benchmarks.bench_engine [--quick] [--json FILE] [--markdown FILE] [--vllm PROGRAM]

Contenders: our worker that does it all in one process, our proxy, master and one worker of each
role, `vllm serve` of `--vllm` (as scripts/interop/setup.sh installs it), and transformers without a
server. All servers stand at once and have turns at each load, three each, as the memory of a shared
machine is twice as fast in some minutes as in others; figures are medians of the turns. The model
has the shape of Qwen2.5-VL, 270 million parameters in bfloat16, random. Text prompts of 512 tokens
with 64 to answer and of 64 with 256, 1, 8 and 32 at once; new pictures of 448 × 448 pixels, 1 and 4
at once; then three text streams while a new picture comes every 1.5 s, of which the gaps between
tokens count. Ratios above 1 are better for us, save in rows of the gaps. `--quick`: a small model,
few tokens, no peer but transformers, no bars.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import uvloop

from benchmarks.bench_engine import contenders, loads, mixed, transformers_peer
from benchmarks.bench_engine.contenders import ONE_PROCESS, SPLIT, VLLM, Contender
from benchmarks.bench_engine.loads import Figures, Load
from benchmarks.bench_engine.mixed import Gaps, Seen
from benchmarks.common import random_model
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

BASE = Path("models/demo")
LAYERS, QUICK_LAYERS = 24, 2
TURNS, QUICK_TURNS = 3, 1  # of each contender, at each load
MIXED_S, QUICK_MIXED_S = 20.0, 2.0  # of each turn while pictures come
BAR = 1.0
PATIENCE_S = 600.0  # of transformers, with one load by both its ways
GAP_P99_BAR, GAP_P50_BAR, TOKENS_BAR = 0.5, 1.3, 0.9


@dataclass
class Measured:
    """What was found, by contender and load; `said` are errors of a peer."""

    figures: dict[tuple[str, str], Figures] = field(default_factory=dict)
    gaps: dict[str, Gaps] = field(default_factory=dict)
    rates: dict[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    given = _parse(argv)
    about = hardware(["torch", "transformers"], random_model.SEED)
    print(about)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model = _build(root / "model", QUICK_LAYERS if given.quick else LAYERS)
        asked = [
            load
            for load in (loads.QUICK_LOADS if given.quick else loads.LOADS)
            if any(part in load.name for part in given.loads.split(";"))
        ]
        found = Measured()
        _serve(model, root, asked, given, found)
        if not given.only or "transformers" in given.only:
            _transformers(model, asked, found)
    rows = [*_rows(found, asked, judged=not given.quick), *_gap_rows(found, not given.quick)]
    print("\n".join([head(), *map(line, rows), *found.said]))
    if given.markdown is not None:
        given.markdown.write_text(markdown(rows, about))
    return finish(rows, given.json)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("bench_engine", __doc__)
    parser.add_argument(
        "--vllm", type=Path, help="vLLM's program; without it, no row has that peer"
    )
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--only", default="", help="contenders, comma-separated; empty: all")
    parser.add_argument(
        "--loads", default="", help="parts of names of loads, separated by semicolons; empty: all"
    )
    parser.add_argument(
        "--no-mixed", action="store_true", help="no load in which pictures arrive during decode"
    )
    return parser.parse_args(argv)


def _build(folder: Path, layers: int) -> Path:
    """Qwen2.5-VL's shape, 270 million parameters with 24 layers."""
    text = {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers, "num_attention_heads": 16,
        "num_key_value_heads": 4, "max_position_embeddings": 8192,
        "rope_parameters": {
            "mrope_section": [8, 12, 12], "rope_theta": 10000.0, "rope_type": "default",
        },
    }  # fmt: skip
    vision = {
        "hidden_size": 512, "intermediate_size": 1024, "depth": 8, "num_heads": 8,
        "fullatt_block_indexes": [3, 7], "out_hidden_size": 1024, "window_size": 112,
    }  # fmt: skip
    shape = ModelShape(text, vision, loads.PIXELS**2, torch.bfloat16)
    return random_model.build(BASE, folder, shape)


def _contenders(given: argparse.Namespace) -> Iterator[tuple[str, Contender]]:
    known: list[tuple[str, Contender]] = [
        (ONE_PROCESS, contenders.one_process),
        (SPLIT, contenders.split),
    ]
    if given.vllm is not None and not given.quick:
        known.append((VLLM, contenders.vllm(given.vllm)))
    only = {name for name in given.only.split(",") if name}
    yield from ((name, contender) for name, contender in known if not only or name in only)


def _serve(
    model: Path, root: Path, asked: Sequence[Load], given: argparse.Namespace, found: Measured
) -> None:
    turns = range(QUICK_TURNS if given.quick else TURNS)
    with contextlib.ExitStack() as stack:
        urls = {
            name: stack.enter_context(contender(model, root))
            for name, contender in _contenders(given)
        }
        for load in asked:
            seen: dict[str, list[Figures]] = {name: [] for name in urls}
            for turn in turns:
                for name, url in urls.items():
                    seen[name].append(loads.measure(url, model, load, turn, root / "serve.json"))
            for name in urls:
                figures = loads.typical(seen[name])
                found.figures[name, load.name] = figures
                print(f"{name}: {load.name}: {figures}", file=sys.stderr)
        if not given.no_mixed:
            _mixed(urls, turns, QUICK_MIXED_S if given.quick else MIXED_S, found)


def _mixed(urls: Mapping[str, str], turns: range, seconds: float, found: Measured) -> None:
    seen: dict[str, list[Seen]] = {name: [] for name in urls}
    for turn in turns:
        for name, url in urls.items():
            seen[name].append(uvloop.run(mixed.run(url, seconds, turn)))
    for name in urls:
        found.gaps[name] = mixed.gaps(seen[name], seconds)
        print(f"{name}: mixed: {found.gaps[name]}", file=sys.stderr)


def _transformers(model: Path, asked: Sequence[Load], found: Measured) -> None:
    for load in (load for load in asked if not load.pictures):
        words = f"{load.prompt},{load.output},{load.at_once}"
        command = [sys.executable, "-m", transformers_peer.__name__, str(model), words]
        try:
            told = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE_S).stdout
        except subprocess.TimeoutExpired as late:
            found.said.append(f"transformers, {load.name}: not done after {PATIENCE_S:g} s")
            told = late.stdout or b""
        for said in told.splitlines():
            with contextlib.suppress(ValueError):  # of other lines
                answer = json.loads(said)
                if "error" in answer:
                    found.said.append(f"{answer['name']}, {load.name}: {answer['error']}")
                else:
                    found.rates[answer["name"], load.name] = answer


def _rows(found: Measured, asked: Sequence[Load], *, judged: bool) -> Iterator[Row]:
    bar = BAR if judged else None
    for load in asked:
        ours = found.figures.get((ONE_PROCESS, load.name))
        if ours is None:
            continue
        peer = found.figures.get((VLLM, load.name))
        if peer is not None:
            yield at_least(f"{load.name}: tokens/s, {VLLM}", ours.tokens_s, peer.tokens_s, bar)
            yield _faster(f"{load.name}: TTFT ms, {VLLM}", ours.ttft_ms, peer.ttft_ms, bar)
            yield _faster(f"{load.name}: TPOT ms, {VLLM}", ours.tpot_ms, peer.tpot_ms, bar)
        apart = found.figures.get((SPLIT, load.name))
        if apart is not None:
            name = f"{load.name}: tokens/s, {SPLIT} beside {ONE_PROCESS}"
            yield at_least(name, apart.tokens_s, ours.tokens_s)
        for name in (transformers_peer.GENERATE, transformers_peer.CONTINUOUS):
            rates = found.rates.get((name, load.name))
            if rates is not None:
                yield at_least(f"{load.name}: tokens/s, {name}", ours.tokens_s, rates["tokens_s"])


def _faster(name: str, ours: float, peer: float, bar: float | None) -> Row:
    """Less time is better: the ratio is peer / ours."""
    ratio = peer / ours if ours else None
    holds = None if bar is None or ratio is None else ratio >= bar
    return Row(name, ours, peer, ratio, "" if bar is None else f"ratio >= {bar:g}", holds)


def _gap_rows(found: Measured, judged: bool) -> Iterator[Row]:
    peer = found.gaps.get(VLLM)
    for name in (SPLIT, ONE_PROCESS):
        ours = found.gaps.get(name)
        if ours is None:
            continue
        if peer is None:
            yield Row(f"pictures arrive, {name}: gap p50 ms", ours.p50_ms)
            yield Row(f"pictures arrive, {name}: gap p99 ms", ours.p99_ms)
            yield Row(f"pictures arrive, {name}: tokens/s", ours.tokens_s)
            continue
        split = name == SPLIT and judged
        p99 = (GAP_P99_BAR if split else 1.0) if judged else None
        about = f"pictures arrive, {name} beside {VLLM}"
        p50 = GAP_P50_BAR if split else None
        yield at_most(f"{about}: gap p50 ms", ours.p50_ms, peer.p50_ms, p50)
        yield at_most(f"{about}: gap p95 ms", ours.p95_ms, peer.p95_ms)
        yield at_most(f"{about}: gap p99 ms", ours.p99_ms, peer.p99_ms, p99)
        tokens = TOKENS_BAR if split else None
        yield at_least(f"{about}: tokens/s", ours.tokens_s, peer.tokens_s, tokens)


if __name__ == "__main__":
    sys.exit(main())
