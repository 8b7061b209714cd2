"""Command line of the serving benchmark."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.common.pictures import KINDS
from benchmarks.serve import options
from benchmarks.serve.options import ENDPOINTS, METRICS, SAMPLING, Bucket

GOODPUT_METRICS = ("ttft", "tpot", "e2el")
QUICK = (
    ("num_prompts", 8),
    ("max_concurrency", 4),
    ("random_input_len", 64),
    ("random_output_len", 16),
    ("random_mm_bucket_config", {(224, 224, 1): 1.0}),
)


@dataclass(frozen=True)
class Settings:
    """One resolved configuration; lengths in tokens, rates in requests per second."""

    backend: str  # what is spoken: openai-chat, openai or vllm
    base_url: str  # of the server, without a slash at its end
    endpoint: str  # path of the requests
    headers: dict[str, str]  # sent with every request
    model: str | None  # None: the first of /v1/models
    served_model_name: str | None  # its name in requests; None: as `model`
    tokenizer: str | None  # folder or file; None: the model's own, else the server's /tokenize
    dataset_name: str  # where prompts come from, one of `options.DATASETS`
    dataset_path: Path | None  # the file of sharegpt or custom; None: the dataset has none
    no_oversample: bool  # a dataset with fewer prompts than are asked for is not repeated
    disable_shuffle: bool  # prompts keep the order of the file
    num_prompts: int  # measured requests
    num_warmups: int  # requests before these, not measured
    seed: int  # of prompts, lengths and intervals
    request_rate: float  # requests per second; inf: all at once
    burstiness: float  # shape of the intervals' gamma distribution; 1: Poisson, less: burstier
    max_concurrency: int | None  # requests in flight at once; None: without bound
    ramp_up_strategy: str | None  # linear or exponential; None: the rate stays `request_rate`
    ramp_up_start_rps: float  # the rate of a ramp at its first request
    ramp_up_end_rps: float  # and at its last one
    random_input_len: int  # mean length of a random prompt, chat template aside
    random_output_len: int  # mean length of its answer
    random_range_ratio: float  # lengths are uniform within this share of the mean, in [0, 1)
    random_prefix_len: int  # tokens that all random prompts begin with
    random_mm_base_items_per_request: int  # mean number of pictures of a random-mm prompt
    random_mm_num_mm_items_range_ratio: float  # it is uniform within this share, in [0, 1]
    random_mm_limit_mm_per_prompt: dict[str, int]  # most items, by modality
    random_mm_bucket_config: dict[Bucket, float]  # probability of each size of a picture
    sharegpt_output_len: int | None  # length of an answer; None: that in the file
    custom_output_len: int  # likewise; -1: that of each line
    demo_output_len: int  # likewise
    demo_kinds: tuple[str, ...]  # kinds of questions, some of `pictures.KINDS`
    ignore_eos: bool  # answers go on to their whole length
    sampling: dict[str, float]  # sampling parameters of each request; the server's if not named
    extra_body: dict[str, Any]  # fields merged into each request
    goodput: dict[str, float]  # most milliseconds of a good request, by metric
    percentile_metrics: tuple[str, ...]  # metrics whose percentiles are told
    metric_percentiles: tuple[float, ...]  # which percentiles, from 0 to 100
    request_id_prefix: str | None  # how request ids begin; None: bench-<8 hex>-
    ready_check_timeout_sec: float  # seconds to wait for a first good answer; 0: no check
    disable_tqdm: bool  # no progress bar
    label: str | None  # of the result; None: the backend
    metadata: dict[str, str]  # saved with the result
    save_result: bool  # write the result as JSON
    save_detailed: bool  # with the values of each request
    result_dir: Path | None  # where to; None: the working folder
    result_filename: str | None  # its name there; None: made of label, rate, model and time
    json: Path | None  # a further file for the result; None: none

    @property
    def is_chat(self) -> bool:
        """Whether requests are conversations; otherwise they are completions of one text."""
        return self.backend == "openai-chat"

    @property
    def num_samples(self) -> int:
        """Requests in all: measured ones, warm-up and readiness check."""
        return self.num_prompts + self.num_warmups + (self.ready_check_timeout_sec > 0)


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Settings from the command line. Raises SystemExit(2) with a message if an option is bad."""
    parser = options.parser()
    args = parser.parse_args(argv)
    if args.quick:
        parser.set_defaults(**dict(QUICK))
        args = parser.parse_args(argv)
    try:
        return _resolve(args)
    except ValueError as error:
        parser.error(str(error))


def _resolve(args: argparse.Namespace) -> Settings:
    values = vars(args)
    values["base_url"] = (args.base_url or f"http://{args.host}:{args.port}").rstrip("/")
    values["endpoint"] = args.endpoint or dict(ENDPOINTS)[args.backend]
    values["headers"] = _pairs(args.header, "=", "--header")
    values["metadata"] = _pairs(args.metadata, "=", "--metadata")
    values["goodput"] = _goodput(args.goodput)
    values["percentile_metrics"] = _chosen(args.percentile_metrics, METRICS)
    values["demo_kinds"] = _chosen(args.demo_kinds, KINDS)
    values["metric_percentiles"] = _percentiles(args.metric_percentiles)
    # As in vllm bench serve: a random prompt has no natural end.
    values["ignore_eos"] = args.ignore_eos or args.dataset_name.startswith("random")
    chosen = {name: values[name] for name, _ in SAMPLING if values[name] is not None}
    values["sampling"] = {"temperature": 0.0, **chosen} if args.dataset_name == "demo" else chosen
    if args.input_len is not None:
        values["random_input_len"] = args.input_len
    if args.output_len is not None:
        names = ("random_output_len", "sharegpt_output_len", "custom_output_len", "demo_output_len")
        values.update(dict.fromkeys(names, args.output_len))
    settings = Settings(**{field.name: values[field.name] for field in fields(Settings)})
    _check(settings)
    return settings


def _check(s: Settings) -> None:
    rules = (
        (s.num_prompts > 0, "--num-prompts must be positive"),
        (s.seed >= 0, "--seed must not be negative"),
        (s.num_warmups >= 0, "--num-warmups must not be negative"),
        (s.request_rate > 0, "--request-rate must be positive"),
        (s.burstiness > 0, "--burstiness must be positive"),
        (s.max_concurrency is None or s.max_concurrency > 0, "--max-concurrency must be positive"),
        (0 <= s.random_range_ratio < 1, "--random-range-ratio must be in [0, 1)"),
        (s.random_input_len > 0, "--random-input-len must be positive"),
        (s.random_output_len > 0, "--random-output-len must be positive"),
        (s.random_prefix_len >= 0, "--random-prefix-len must not be negative"),
        (
            s.random_mm_base_items_per_request >= 0,
            "--random-mm-base-items-per-request must not be negative",
        ),
        (
            0 <= s.random_mm_num_mm_items_range_ratio <= 1,
            "--random-mm-num-mm-items-range-ratio must be in [0, 1]",
        ),
        (
            s.dataset_path is not None or s.dataset_name not in ("sharegpt", "custom"),
            f"--dataset-name {s.dataset_name} needs --dataset-path",
        ),
        (
            s.is_chat or s.dataset_name not in ("demo", "random-mm"),
            f"--dataset-name {s.dataset_name} has pictures: it needs --backend openai-chat",
        ),
        (
            s.ramp_up_strategy is None or 0 < s.ramp_up_start_rps <= s.ramp_up_end_rps,
            "--ramp-up-strategy needs 0 < --ramp-up-start-rps <= --ramp-up-end-rps",
        ),
        (
            s.ramp_up_strategy is None or s.request_rate == float("inf"),
            "--ramp-up-strategy sets the rate: leave --request-rate out",
        ),
    )
    for holds, message in rules:
        if not holds:
            raise ValueError(message)


def _pairs(items: Sequence[str] | None, separator: str, option: str) -> dict[str, str]:
    pairs = [item.partition(separator) for item in items or ()]
    for key, found, _ in pairs:
        if not (key and found):
            raise ValueError(f"{option} takes KEY{separator}VALUE, got {key!r}")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _goodput(items: Sequence[str] | None) -> dict[str, float]:
    limits = {key: float(value) for key, value in _pairs(items, ":", "--goodput").items()}
    if wrong := [key for key, value in limits.items() if value < 0 or key not in GOODPUT_METRICS]:
        raise ValueError(f"--goodput takes limits >= 0 ms of {GOODPUT_METRICS}, got {wrong[0]!r}")
    return limits


def _chosen(listed: str, allowed: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in listed.split(",") if name.strip())
    if wrong := [name for name in names if name not in allowed]:
        raise ValueError(f"unknown name {wrong[0]!r}, expected some of {','.join(allowed)}")
    return names


def _percentiles(listed: str) -> tuple[float, ...]:
    percentiles = tuple(float(item) for item in listed.split(","))
    if not all(0 <= percentile <= 100 for percentile in percentiles):
        raise ValueError("--metric-percentiles must be between 0 and 100")
    return percentiles
