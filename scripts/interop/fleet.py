"""One encoder and two workers that prefill and decode, all of them vLLM's, behind three proxies:
round robin as in vLLM's example, our proxy alone, our proxy and master. The same open-loop trace of
pictures and system prompts that come again; hits as vLLM's own metrics count them."""

from __future__ import annotations

import base64
import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import uvloop
from PIL import Image

from benchmarks.bench_fleet import load, processes
from benchmarks.bench_fleet.processes import Fleet
from benchmarks.bench_fleet.report import (
    ROUND_ROBIN,
    WITH_MASTER,
    Measured,
    Objectives,
    measured,
    sustained,
    table,
)
from benchmarks.bench_fleet.trace import Drawing
from scripts.interop.launched import Launched, launched
from scripts.interop.shared import Site
from scripts.interop.vllm import forget, metric

NUMBERS = {"NUM_E": 1, "NUM_P": 0, "NUM_D": 2}
RATES = (2.0, 6.0, 12.0, 18.0, 24.0, 32.0)
SECONDS, UNCOUNTED_S, DRAIN_S = 40.0, 8.0, 20.0
OBJECTIVES = Objectives(1.5, 0.15)
SEED, PICTURES, SIDE = 7, 40, 96
_PROXY_ALONE = "proxy alone"
Contender = Callable[[], contextlib.AbstractContextManager[str]]


@dataclass(frozen=True)
class Workers(Fleet):
    """vLLM's own figures of its workers."""

    def reset(self) -> None:
        for url in self.all:
            forget(url)

    def counters(self) -> dict[str, float]:
        def total(urls: Sequence[str], name: str) -> float:
            return sum(metric(url, f"vllm:{name}") for url in urls)

        return {
            "items": total(self.encode, "mm_cache_queries_total"),
            "item_hits": total(self.encode, "mm_cache_hits_total"),
            "tokens": total(self.decode, "prefix_cache_queries_total"),
            "token_hits": total(self.decode, "prefix_cache_hits_total"),
            "bytes": 0.0,
        }


def compare(site: Site) -> None:
    """The curves, as a table; checks that the master sends prompts where their beginning is."""
    drawing = Drawing(
        SEED, 24, model=str(site.model), pictures_each=1, systems=12, system_bytes=600,
        urls=[_png(number) for number in range(PICTURES)],
    )  # fmt: skip
    flags = {"MASTER_FLAGS": f"--ttft-slo {OBJECTIVES.ttft_s} --tpot-slo {OBJECTIVES.tpot_s}"}
    with launched(site, "fleet", NUMBERS, flags) as stack:
        workers = Workers([stack.encode], [], stack.decode)
        contenders: dict[str, Contender] = {
            ROUND_ROBIN: partial(processes.round_robin, workers),
            _PROXY_ALONE: partial(processes.ours, workers),
            WITH_MASTER: partial(_as_launched, stack),
        }
        curves: dict[str, list[Measured]] = {name: [] for name in contenders}
        for rate in RATES:  # by turns: a minute of other work meets all contenders
            for name, contender in contenders.items():
                curves[name].append(_measured(contender, workers, drawing, rate))
    print("\n".join(["", *table(curves), ""]), flush=True)
    _judge(site, curves)


@contextlib.contextmanager
def _as_launched(stack: Launched) -> Iterator[str]:
    yield stack.proxy


def _measured(
    contender: Contender, workers: Workers,
    drawing: Drawing, rate: float,
) -> Measured:  # fmt: skip
    workers.reset()
    before = workers.counters()
    with contender() as url:
        answers = uvloop.run(load.run(url, drawing.trace(rate, SECONDS), DRAIN_S))
    time.sleep(1.0)
    after = workers.counters()
    used = {key: after[key] - before[key] for key in after}
    return measured(rate, answers, UNCOUNTED_S, SECONDS, used, OBJECTIVES)


def _judge(site: Site, curves: dict[str, list[Measured]]) -> None:
    ours = curves[WITH_MASTER]
    for name, curve in curves.items():
        rate, hits = sustained(curve), curve[0].prefix_hits
        figure = f"{rate:.2f} requests/s within the objectives, prefix hits {hits:.0%}"
        whole = not any(one.broken for one in curve[:2])
        site.table.add(f"{name}: no request broken at half the load", whole, figure)
    others = max(curve[0].prefix_hits for name, curve in curves.items() if name != WITH_MASTER)
    figure = f"{ours[0].prefix_hits:.0%} beside {others:.0%}"
    site.table.add("prefix hits, with the master", ours[0].prefix_hits > others, figure)


def _png(number: int) -> str:
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    output = io.BytesIO()
    Image.fromarray(pixels).resize((SIDE, SIDE)).save(output, "png")
    return f"data:image/png;base64,{base64.b64encode(output.getvalue()).decode()}"
