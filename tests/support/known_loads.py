"""Benches of the simulator whose runs have a known result."""

from dataclasses import replace

from benchmarks.simulate.bench import Bench
from benchmarks.simulate.contenders import Contender
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.profile import calibrated
from benchmarks.simulate.records import Objectives, Shape, Span
from benchmarks.simulate.study_results import Case

ONE = Shape(1, 1, 1)
OUTCOME = Outcome(
    offered=10.0, goodput=9.5, attained=0.95, lifetimes=12.0, ttft_p50=1, ttft_p99=2, tpot_p50=3,
    tpot_p99=4, kv_hits=0.5, ec_hits=0.0, refused=0.0,
    utilisation={"prefill": 0.8, "decode": 0.9}, imbalance=1.5,
)  # fmt: skip


class Known(Bench):
    """Runs whose result is known: all is well up to a load that depends on fleet and options."""

    def run(self, contender: Contender, seed: int, pace: float, *, whole: bool = False) -> Outcome:
        self.runs += 1
        limit = 10.0 + float(contender.options.get("overlap_credit", 0.0)) + contender.shape.prefill
        attained = min(1.0, max(0.0, 1.0 - (pace / limit - 1.0)))
        return replace(OUTCOME, attained=attained, offered=pace)

    def run_for(self, contender: Contender, seed: int, pace: float, seconds: float) -> Outcome:
        return self.run(contender, seed, pace)


def known(*shapes: Shape) -> Known:
    profile = calibrated()
    found = Case("c", shapes or (ONE,), 5.0, Span(), Objectives(profile), lambda seed: [])
    return Known(found, profile)
