"""The options of `vllm bench serve` that apply here, under its names."""

import argparse
import ast
import json
from pathlib import Path
from typing import Any

from benchmarks.common.pictures import KINDS

ENDPOINTS = (
    ("openai-chat", "/v1/chat/completions"),
    ("openai", "/v1/completions"),
    ("vllm", "/v1/completions"),
)
DATASETS = ("random", "random-mm", "demo", "sharegpt", "custom")
METRICS = ("ttft", "tpot", "itl", "e2el")
SAMPLING = (
    ("temperature", float),
    ("top_p", float),
    ("top_k", int),
    ("min_p", float),
    ("frequency_penalty", float),
    ("presence_penalty", float),
    ("repetition_penalty", float),
)

Bucket = tuple[int, int, int]  # height, width (pixels), frames


def parser() -> argparse.ArgumentParser:
    """The command line. Values still need the checks of `args.parse`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m benchmarks.serve",
        description="Loads an OpenAI-compatible server and prints what its users would see.",
    )
    _add_server(parser)
    _add_load(parser)
    _add_dataset(parser)
    _add_random(parser)
    _add_request(parser)
    _add_report(parser)
    return parser


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--backend", choices=[name for name, _ in ENDPOINTS], default="openai-chat")
    group.add_argument("--base-url", help="instead of --host and --port")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--endpoint", help="path of requests; by default the backend's")
    group.add_argument("--header", nargs="*", metavar="KEY=VALUE", help="sent with every request")
    group.add_argument("--model", help="by default the first of /v1/models")
    group.add_argument("--served-model-name", help="the model's name in requests, if another")
    group.add_argument(
        "--tokenizer",
        help="directory with tokenizer.json, or that file; by default the model's directory if it"
        " is on this machine, else the server's /tokenize",
    )
    group.add_argument(
        "--ready-check-timeout-sec",
        type=float,
        default=0,
        help="wait this long for a first good answer; 0: do not check",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--num-prompts", type=int, default=1000)
    group.add_argument(
        "--num-warmups", type=int, default=0, help="requests sent first, not measured"
    )
    group.add_argument("--seed", type=int, default=0)
    group.add_argument(
        "--request-rate", type=float, default=float("inf"), help="requests/s; inf: all at once"
    )
    group.add_argument(
        "--burstiness",
        type=float,
        default=1.0,
        help="shape of the gamma distribution of intervals; 1: Poisson, less: burstier",
    )
    group.add_argument("--max-concurrency", type=int, help="requests in flight at once")
    group.add_argument("--ramp-up-strategy", choices=["linear", "exponential"])
    group.add_argument("--ramp-up-start-rps", type=float, default=0)
    group.add_argument("--ramp-up-end-rps", type=float, default=0)
    group.add_argument(
        "--quick", action="store_true", help="few, short requests where options do not say more"
    )


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dataset")
    group.add_argument("--dataset-name", choices=DATASETS, default="random")
    group.add_argument(
        "--dataset-path", type=Path, help="sharegpt: JSON file; custom: JSON lines with prompt"
    )
    group.add_argument("--no-oversample", action="store_true", help="do not repeat short datasets")
    group.add_argument("--disable-shuffle", action="store_true")
    group.add_argument("--input-len", type=int, help="same as --random-input-len")
    group.add_argument("--output-len", type=int, help="the dataset's own --*-output-len")
    group.add_argument("--sharegpt-output-len", type=int, help="by default the answer's length")
    group.add_argument(
        "--custom-output-len", type=int, default=256, help="-1: output_tokens of each line"
    )
    group.add_argument("--demo-output-len", type=int, default=48)
    group.add_argument(
        "--demo-kinds", default=",".join(KINDS), help="kinds of questions, with commas"
    )


def _add_random(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("random and random-mm")
    group.add_argument(
        "--random-input-len", type=int, default=1024, help="tokens of a prompt without the template"
    )
    group.add_argument("--random-output-len", type=int, default=128)
    group.add_argument(
        "--random-range-ratio",
        type=float,
        default=0.0,
        help="lengths are uniform in [length * (1 - ratio), length * (1 + ratio)]",
    )
    group.add_argument(
        "--random-prefix-len", type=int, default=0, help="tokens that all prompts share"
    )
    group.add_argument("--random-mm-base-items-per-request", type=int, default=1)
    group.add_argument(
        "--random-mm-num-mm-items-range-ratio",
        type=float,
        default=0.0,
        help="items are uniform in [floor(n * (1 - ratio)), ceil(n * (1 + ratio))]",
    )
    group.add_argument(
        "--random-mm-limit-mm-per-prompt",
        type=_limits,
        default={"image": 255, "video": 1},
        help="""as '{"image": 3}'""",
    )
    group.add_argument(
        "--random-mm-bucket-config",
        type=_buckets,
        default={(256, 256, 1): 0.5, (720, 1280, 1): 0.5},
        help="{(height, width, 1): probability, ...}",
    )


def _add_request(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("request")
    group.add_argument(
        "--ignore-eos", action="store_true", help="always so for random and random-mm"
    )
    for name, kind in SAMPLING:
        group.add_argument(f"--{name.replace('_', '-')}", type=kind)
    group.add_argument(
        "--extra-body", type=_json_object, default={}, help="JSON object merged into each request"
    )
    group.add_argument("--request-id-prefix", help="by default bench-<8 hex>-")


def _add_report(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("report")
    group.add_argument(
        "--goodput",
        nargs="+",
        metavar="METRIC:MS",
        help="limits of ttft, tpot, e2el that a good request keeps",
    )
    group.add_argument("--percentile-metrics", default=",".join(METRICS))
    group.add_argument("--metric-percentiles", default="99")
    group.add_argument("--disable-tqdm", action="store_true")
    group.add_argument("--label", help="name of the result; by default the backend")
    group.add_argument("--metadata", nargs="*", metavar="KEY=VALUE", help="saved with the result")
    group.add_argument("--save-result", action="store_true", help="write the result as JSON")
    group.add_argument("--save-detailed", action="store_true", help="with values per request")
    group.add_argument("--result-dir", type=Path)
    group.add_argument("--result-filename")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the result JSON here")


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {text}")
    return value


def _limits(text: str) -> dict[str, int]:
    value = ast.literal_eval(text)
    if not isinstance(value, dict) or not all(isinstance(n, int) for n in value.values()):
        raise ValueError(f"expected a limit by modality, got {text}")
    return value


def _buckets(text: str) -> dict[Bucket, float]:
    try:
        chances = {tuple(bucket): float(p) for bucket, p in ast.literal_eval(text).items()}
    except (AttributeError, SyntaxError, TypeError) as error:
        raise ValueError(f"expected {{(height, width, frames): probability}}: {error}") from error
    buckets = {(h, w, frames): chance for (h, w, frames), chance in chances.items() if chance > 0}
    if not buckets or any(min(bucket) < 1 for bucket in buckets):
        raise ValueError(f"sizes and at least one probability must be positive: {text}")
    if any(frames != 1 for _, _, frames in buckets):
        raise ValueError("videos (frames > 1) are not supported")
    return buckets
