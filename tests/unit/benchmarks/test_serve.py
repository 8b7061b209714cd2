"""The serving benchmark's parts on hand-made data; whole runs are in test_bench_serve_run.py."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serve.args import parse
from benchmarks.serve.client import Outcome
from benchmarks.serve.metrics import failures, summarize
from benchmarks.serve.report import failure_summary
from benchmarks.serve.runner import arrival_times, ramped_arrival_times
from benchmarks.serve.sse import Choice, Delta, SSEParser, error_text
from benchmarks.serve.tokens import LocalCounter, TokenCounter, WordCounter, random_text
from tests.support import tiny_text


def outcome(start: float, ttft: float, itls: list[float], **more: Any) -> Outcome:
    values = {"prompt_len": 10, "output_len": len(itls) + 1, **more}
    return Outcome(start=start, ttft=ttft, itls=itls, latency=ttft + sum(itls), **values)


class TestMetrics:
    def test_known_run(self) -> None:
        outcomes = [
            outcome(100.0, 0.1, [0.02] * 10),
            outcome(100.2, 0.3, [0.04] * 20),
            outcome(100.4, 0.2, [], output_len=1),
            Outcome(start=100.0, error="HTTP 500: no"),
        ]
        metrics = summarize(outcomes, 2.0, (50, 99), {"ttft": 250, "tpot": 30})
        assert (metrics.completed, metrics.failed) == (3, 1)
        assert (metrics.total_input, metrics.total_output) == (30, 33)
        assert metrics.request_throughput == 1.5
        assert metrics.output_throughput == 16.5
        assert metrics.total_throughput == 31.5
        # The second misses its TTFT; the third has no TPOT, which counts as 0.
        assert metrics.request_goodput == 1.0
        ttft = metrics.latencies["ttft"]
        assert ttft.mean == pytest.approx(200)
        assert [percentile for percentile, _ in ttft.percentiles] == [50, 99]
        assert [value for _, value in ttft.percentiles] == pytest.approx([200, 298])
        assert metrics.latencies["tpot"].mean == pytest.approx((20 + 40) / 2)
        assert metrics.latencies["itl"].median == pytest.approx(40)
        assert metrics.latencies["e2el"].mean == pytest.approx((300 + 1100 + 200) / 3)

    def test_tokens_bundled_in_chunks_count_in_tpot(self) -> None:
        assert outcome(0.0, 0.1, [0.2, 0.2], output_len=9).tpot == pytest.approx(0.05)

    def test_peaks(self) -> None:
        outcomes = [
            outcome(5.0, 0.5, [0.1, 0.1]),
            outcome(5.0, 0.5, [0.8]),  # its second token falls into the next second
            outcome(5.7, 0.6, []),  # starts as the first ends
        ]
        metrics = summarize(outcomes, 1.0)
        assert metrics.peak_output_throughput == 4
        assert metrics.peak_concurrency == 2

    def test_a_run_without_success_has_zeros(self) -> None:
        metrics = summarize([Outcome(error="x")], 1.0)
        assert (metrics.completed, metrics.peak_concurrency) == (0, 0)
        assert metrics.latencies["ttft"].mean == 0

    def test_failures_are_counted_by_reason(self) -> None:
        outcomes = [Outcome(error="a"), Outcome(error="b"), Outcome(error="b"), Outcome()]
        assert failures(outcomes) == [("b", 2), ("a", 1)]
        assert failure_summary(outcomes).splitlines()[1].split() == ["2", "x", "b"]
        assert failure_summary([Outcome()]) == ""


class TestArrivals:
    def test_poisson(self) -> None:
        times = arrival_times(20_000, 50.0, 1.0, np.random.default_rng(0))
        gaps = np.diff([0.0, *times])
        assert times[-1] == pytest.approx(20_000 / 50.0)
        assert gaps.min() >= 0
        assert gaps.std() == pytest.approx(1 / 50.0, rel=0.05)
        assert (gaps > 1 / 50.0).mean() == pytest.approx(np.exp(-1), abs=0.02)

    @pytest.mark.parametrize("burstiness", [0.25, 4.0])
    def test_gamma(self, burstiness: float) -> None:
        gaps = np.diff(arrival_times(20_000, 10.0, burstiness, np.random.default_rng(1)))
        variation = gaps.std() / gaps.mean()
        assert variation == pytest.approx(burstiness**-0.5, rel=0.05)

    def test_infinite_rate_and_infinite_burstiness(self) -> None:
        rng = np.random.default_rng(0)
        assert arrival_times(3, np.inf, 1.0, rng) == [0.0] * 3
        assert arrival_times(4, 2.0, np.inf, rng) == pytest.approx([0.5, 1.0, 1.5, 2.0])

    @pytest.mark.parametrize(("strategy", "middle"), [("linear", 5.5), ("exponential", 10**0.5)])
    def test_ramp(self, strategy: str, middle: float) -> None:
        rng = np.random.default_rng(0)
        gaps = np.diff(ramped_arrival_times(101, (1.0, 10.0), strategy, np.inf, rng), prepend=0.0)
        assert 1 / gaps[[0, 50, 100]] == pytest.approx([1.0, middle, 10.0])


class TestSSE:
    STREAM = (
        ': ping\r\n\r\ndata: {"a": "é"}\r\n\r\nevent: x\ndata:two\ndata: lines\n\ndata: [DONE]\r\r'
    ).encode()
    EVENTS = ('{"a": "é"}'.encode(), b"two\nlines", b"[DONE]")

    @given(st.lists(st.integers(0, len(STREAM))))
    def test_pieces_may_end_anywhere(self, cuts: list[int]) -> None:
        parser, bounds = SSEParser(), [0, *sorted(cuts), len(self.STREAM)]
        pieces = [self.STREAM[i:j] for i, j in pairwise(bounds)]
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert (*events, *parser.close()) == self.EVENTS

    def test_an_event_is_given_as_soon_as_it_is_complete(self) -> None:
        parser = SSEParser()
        assert parser.feed(b"data: 1\n") == []
        assert parser.feed(b"\ndata: 2") == [b"1"]
        assert parser.close() == [b"2"]

    def test_which_chunks_are_tokens(self) -> None:
        assert not Choice(Delta(role="assistant", content="")).has_token
        assert Choice(Delta(role="assistant", content="x")).has_token
        assert Choice(Delta(content="")).has_token
        assert Choice(Delta(reasoning="x")).has_token
        assert not Choice(Delta(), finish_reason="stop").has_token
        assert Choice(text="").has_token

    @pytest.mark.parametrize(
        "body",
        [b'{"error": {"message": "no"}}', b'{"message": "no"}', b'{"detail": "no"}', b" no\n"],
    )
    def test_error_bodies(self, body: bytes) -> None:
        assert error_text(body) == "no"


class TestOptions:
    @pytest.mark.parametrize(
        "argv",
        [
            ["--request-rate", "0"],
            ["--request-rate", "nan"],
            ["--goodput", "itl:5"],
            ["--goodput", "ttft"],
            ["--percentile-metrics", "ttft,x"],
            ["--dataset-name", "custom"],
            ["--dataset-name", "demo", "--backend", "openai"],
            ["--random-mm-bucket-config", "{(256, 256, 16): 1}"],
            ["--extra-body", "[1]"],
            ["--header", "x"],
            ["--ramp-up-strategy", "linear"],
        ],
    )
    def test_bad_values_are_refused(self, argv: list[str]) -> None:
        with pytest.raises(SystemExit) as refused:
            parse(argv)
        assert refused.value.code == 2

    def test_quick_gives_way_to_other_options(self) -> None:
        quick = parse(["--quick", "--random-output-len", "5"])
        assert (quick.num_prompts, quick.random_output_len) == (8, 5)
        assert parse([]).num_prompts == 1000


class TestRandomText:
    @pytest.mark.parametrize("length", [1, 2, 50, 1024])
    @pytest.mark.parametrize("counter", ["words", "tokenizer"])
    async def test_has_the_wanted_length(self, counter: str, length: int, tmp_path: Path) -> None:
        tiny_text.write(tiny_text.LLAMA, tmp_path)
        local = LocalCounter(tmp_path / "tokenizer.json")
        counting: TokenCounter = WordCounter() if counter == "words" else local
        text, count = await random_text(counting, length, random.Random(length))
        assert count == await counting.count(text)
        assert abs(count - length) <= 1
