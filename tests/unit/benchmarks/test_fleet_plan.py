"""The planner: what it refuses, what it searches, what it prints."""

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from benchmarks.plan.__main__ import choose, main
from benchmarks.plan.measured import fleet_profile, profile_of
from benchmarks.plan.options import named, parse
from benchmarks.plan.report import deployment
from benchmarks.plan.search import NoFleet, Planner, Trial, within
from benchmarks.simulate.bench import Bench
from benchmarks.simulate.cases import case
from benchmarks.simulate.contenders import Contender
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.profile import calibrated
from benchmarks.simulate.records import Shape, Span
from benchmarks.simulate.study_results import Case
from protocol.fleet_key import HEADER, FleetKey
from protocol.registry import WORKERS_PATH, InstanceInfo, InstanceRole, Rates, WorkerView

GIVEN = ["--trace", "chat", "--rate", "5", "--slo", "ttft=1,tpot=0.05", "--model", "calibrated"]
OUTCOME = Outcome(10.0, 9.5, 0.95, 12.0, 1, 2, 3, 4, 0.0, 0.5, 0.0, {"prefill": 0.8}, 1.5)


class Known(Bench):
    """Fleets of which each stage serves so many requests/s a worker; the scarcest one decides."""

    each = (2.0, 3.0, 1.0)

    def run(self, contender: Contender, seed: int, pace: float, *, whole: bool = False) -> Outcome:
        self.runs += 1
        shape = contender.shape
        counts = (shape.encode, shape.prefill, shape.decode)
        most = min(c * e for c, e in zip(counts, self.each, strict=True) if c)
        return replace(OUTCOME, attained=min(1.0, 0.95 * most / pace), offered=pace)


@dataclass
class KnownTotals(Known):
    """Workers of the role any suffice if there are `needed` of them."""

    needed: int = 0

    def run(self, contender: Contender, seed: int, pace: float, *, whole: bool = False) -> Outcome:
        if not contender.elastic:
            return super().run(contender, seed, pace, whole=whole)
        return replace(OUTCOME, attained=float(contender.shape.total >= self.needed))


@cache
def pictures() -> Case:
    return case("pictures", calibrated(), 16)


def planner(rate: float = 20.0, most: int = 64, **costs: float) -> Planner:
    made = pictures()
    prices = {"encode": 1.0, "prefill": 1.0, "decode": 1.0, "any": 1.0} | costs
    return Planner(Known(made, calibrated()), rate, 0.9, prices, [1, 2], most, lambda trial: None)


@pytest.mark.parametrize("rate", [1.0, 20.0])
def test_the_cheapest_fleet_has_no_worker_to_spare(rate: float) -> None:
    """0.95 * capacity / rate >= 0.9: each stage needs 0.947 of the rate."""
    found = planner(rate).cheapest()
    needed = [math.ceil(0.9 / 0.95 * rate / each) for each in Known.each]
    assert found.shape == Shape(*needed) and found.attained >= 0.9


def test_around_it_fleets_with_one_worker_less_fail() -> None:
    made = planner()
    best = made.cheapest()
    around = {trial.shape: trial.attained for trial in made.around(best)}
    smaller = [share for shape, share in around.items() if shape.total < best.shape.total]
    assert len(smaller) == 3 and all(share < 0.9 for share in smaller)
    curve = [trial.attained for trial in made.curve(best, (0.5, 1.0, 2.0))]
    assert curve == sorted(curve, reverse=True) and curve[0] == 1.0 and curve[2] < 0.6


def test_a_fleet_is_simulated_once() -> None:
    made = planner()
    made.cheapest()
    runs = made.bench.runs
    made.cheapest()
    assert made.bench.runs == runs


@pytest.mark.parametrize(("price", "elastic"), [(0.5, True), (1.0, False)])
def test_workers_of_the_role_any_are_taken_where_they_are_cheaper(
    price: float, elastic: bool
) -> None:
    made = planner(any=price)
    split = made.cheapest()
    moving = made.of_any_role(split)
    assert moving is not None and made.keeps(moving)
    plan = choose(made, split)
    assert plan.best.elastic == elastic and plan.cost == made.price(plan.best)
    assert plan.other is not None and plan.other.elastic != elastic
    assert {trial.elastic for trial in (*plan.around, *plan.curve)} == {elastic}
    assert ("--num-any" in "".join(deployment(plan.best))) == elastic


def test_no_number_of_workers_of_the_role_any_is_passed_over() -> None:
    split = planner().cheapest()
    for needed in range(3, split.shape.total + 1):
        made = planner()
        made.bench = KnownTotals(made.bench.case, made.bench.profile, needed=needed)
        moving = made.of_any_role(split)
        assert moving is not None and moving.shape.total == needed


def rates(
    encode: float = 0.0, prefill: float = 0.0, decode: float = 0.0, moved: float = 2e6
) -> Rates:
    return Rates(encode_ms_per_token=encode, prefill_ms_per_token=prefill, decode_base_ms=decode,
                 transfer_bytes_per_ms=moved)  # fmt: skip


def seen(
    name: str, role: InstanceRole, known: Rates, model: str = "m", kv_bytes: int = 1000
) -> WorkerView:
    info = InstanceInfo(
        name, role, "http://w:1", model, block_size=64, max_running=32, kv_bytes_per_token=kv_bytes
    )
    return WorkerView(info, rates=known, total_blocks=500)


def test_speeds_are_those_of_the_median_worker_that_has_measured() -> None:
    views = [
        seen("p1", "prefill", rates(prefill=0.1)), seen("p2", "prefill", rates(prefill=0.3)),
        seen("p3", "prefill", Rates()), seen("d1", "decode", rates(decode=20.0)),
        seen("e1", "encode", rates(encode=0.5)),
    ]  # fmt: skip
    found = profile_of(views, "http://m:1")
    assert found.timing.prefill_token_ms == pytest.approx(0.2)
    assert (found.timing.decode_base_ms, found.timing.encode_token_ms) == (20.0, 0.5)
    assert found.timing.kv_block_ms == pytest.approx(64 * 1000 / 2e6)
    assert (found.block_size, found.max_running, found.decode_blocks) == (64, 32, 500)


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ([], "a fleet of one model"),
        ([seen("d", "decode", rates(decode=1.0))], "no prefill worker that has measured"),
        ([seen("d", "decode", Rates()), seen("p", "prefill", rates(prefill=1.0))], "no decode"),
        ([seen("d", "decode", rates(decode=1.0, moved=0.0)),
          seen("p", "prefill", rates(prefill=1.0, moved=0.0))], "has measured its transfers"),
        ([seen("d", "decode", rates(decode=1.0)), seen("x", "decode", rates(), "n")],
         r"not \['m', 'n'\]"),
    ],
)  # fmt: skip
def test_what_is_not_measured_is_said(views: list[WorkerView], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        profile_of(views, "http://m:1")


def test_a_fleet_whose_workers_do_it_all_makes_no_transfers() -> None:
    alone = rates(prefill=1.0, decode=1.0, moved=0.0)
    found = profile_of([seen("w", "prefill_decode", alone)], "http://m:1")
    assert found.timing.kv_block_ms == 0.0 and "make no transfers" in found.facts["hardware"]


def test_where_no_worker_tells_the_size_of_kv_its_transfers_take_time_all_the_same() -> None:
    both = rates(prefill=1.0, decode=1.0)
    views = [seen("p", "prefill", both, kv_bytes=0), seen("d", "decode", both, kv_bytes=0)]
    found = profile_of(views, "http://m:1")
    assert found.timing.kv_block_ms == pytest.approx(64 * found.kv_bytes_per_token / 2e6)


class Redirecting(BaseHTTPRequestHandler):
    """Sends callers on to /elsewhere; `server.calls` has (path, fleet key) of each."""

    def do_GET(self) -> None:
        cast(Any, self.server).calls.append((self.path, self.headers[HEADER]))
        self.send_response(302)
        self.send_header("location", "/elsewhere")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Silent."""


def test_the_fleet_key_follows_no_redirect() -> None:
    with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        calls = cast(Any, server).calls = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ValueError, match="cannot be asked: HTTP Error 302"):
                fleet_profile(f"http://127.0.0.1:{server.server_port}", FleetKey("k" * 16))
        finally:
            server.shutdown()
            thread.join()
    assert calls == [(WORKERS_PATH, "k" * 16)]


def test_too_few_workers_are_said_to_be_too_few() -> None:
    with pytest.raises(NoFleet, match=r"10 workers, keeps the objectives of \d+% of requests"):
        planner(most=10).cheapest()


def test_a_first_guess_stays_within_the_bound() -> None:
    assert within(Shape(3, 1, 3), 10) == Shape(3, 1, 3)
    assert within(Shape(600, 200, 1200), 10).total == 10
    assert within(Shape(0, 2, 3), 4).total == 4
    assert within(Shape(2, 2, 2), 5).total == 5 and within(Shape(1, 1, 60), 7) == Shape(1, 1, 5)
    assert within(Shape(0, 5, 500), 3) == Shape(0, 1, 2)
    with pytest.raises(NoFleet, match="2 workers"):
        within(Shape(5, 5, 5), 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--slo", "ttft=1"], "--slo: tpot is missing"),
        (["--slo", "ttft=1,tpot=fast"], "--slo: tpot: 'fast' is no number"),
        (["--slo", "ttft=0,tpot=1"], "--slo: ttft: 0 is not positive"),
        (["--slo", "ttft=nan,tpot=1"], "--slo: ttft: nan"),
        (["--slo", "e2e=1"], "--slo: 'e2e' is none of"),
        (["--costs", "encode=1"], "--costs: prefill, decode is missing"),
        (["--rate", "0"], "--rate: 0.0 is not a number above 0"),
        (["--rate", "inf"], "--rate: inf is not a number above 0"),
        (["--max-workers", "1"], "--max-workers: 1 is not a number above 1"),
        (["--rate", "nan"], "--rate: nan is not a number above 0"),
        (["--share", "1.5"], "--share: 1.5"),
        (["--model", "http://127.0.0.1:9"], "--model: the master at http://127.0.0.1:9 cannot be"),
        (["--model", "gpu"], "--model: 'gpu' is no file and none of calibrated, "),
        (["--trace", "nothing"], "--trace: 'nothing' is no file"),
        (["--seeds", "0"], "--seeds: 0 is not a number above 0"),
    ],
)
def test_a_wrong_flag_is_named(
    change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse([*GIVEN, *change])
    assert said in capsys.readouterr().err


def test_rates_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"timing": {"prefill_token_ms": 0.5}, "hardware": "a test"}))
    options = parse([*GIVEN, "--model", str(path)])
    assert options.profile.timing.prefill_token_ms == 0.5
    path.write_text("{}")
    with pytest.raises(SystemExit, match="2"):
        parse([*GIVEN, "--model", str(path)])


def test_what_starts_the_fleet_is_valid(tmp_path: Path) -> None:
    lines = deployment(Trial(Shape(2, 1, 3), 1.0, ()))
    assert "  triptych serve --num-e 2 --num-p 1 --num-d 3" in lines
    start = lines.index("  workers:")
    values = yaml.safe_load("\n".join(lines[start : start + 4]))
    assert values["workers"]["decode"] == {"replicas": 3}
    services = yaml.safe_load("\n".join(lines[lines.index("  services:") :]))["services"]
    assert set(services) == {"encode-plan-1", "decode-plan-1", "decode-plan-2"}
    base = yaml.safe_load(Path(__file__).parents[3].joinpath("deploy/compose.yaml").read_text())
    ports = {service["command"][3] for service in services.values()}
    assert len(ports) == 3
    for service in services.values():
        extended = base["services"][service["extends"]["service"]]
        assert extended["command"][:3] == service["command"][:3]
        assert extended["command"][3] not in ports
        assert extended["command"][4:] == service["command"][4:]


def test_numbers_by_name() -> None:
    assert named("b=2,a=1.5", ("a", "b"), "--x") == {"a": 1.5, "b": 2.0}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Short runs: what is planned is of no interest."""

    def shorten() -> None:
        monkeypatch.setattr("benchmarks.simulate.cases._LEAST_REQUESTS", 20)
        monkeypatch.setattr("benchmarks.simulate.cases._WARM_S", 1.0)
        monkeypatch.setattr("benchmarks.simulate.cases.Span", partial(Span, lifetimes=2.0))
        monkeypatch.setattr("benchmarks.plan.__main__.LOADS", (0.5, 1.0, 1.5))

    return shorten


def test_a_plan_for_a_fleet_is_printed_and_written(
    tmp_path: Path, small: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    small()
    file = tmp_path / "plan.json"
    slo = ["--slo", "ttft=3,tpot=0.06", "--rate", "2", "--seeds", "1", "--trace", "pictures"]
    costs = ["--costs", "encode=1,prefill=1,decode=1,any=9"]
    assert main([*GIVEN, *slo, *costs, "--json", str(file)]) == 0
    printed, plan = capsys.readouterr().out, json.loads(file.read_text())
    fleet = plan["fleet"]
    assert min(fleet["encode"], fleet["prefill"], fleet["decode"]) >= 1
    assert fleet["attained"] >= 0.9
    assert printed.startswith(f"{fleet['encode']}E{fleet['prefill']}P{fleet['decode']}D: ")
    loads = [point["rate"] for point in plan["curve"]]
    assert loads == sorted(loads) and 2.0 in loads


def test_objectives_that_no_fleet_keeps_are_an_error(
    small: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    small()
    slo = ["--slo", "ttft=0.001,tpot=0.0001", "--rate", "1", "--max-workers", "3", "--seeds", "1"]
    assert main([*GIVEN, *slo]) == 1
    assert "no fleet suffices" in capsys.readouterr().err
