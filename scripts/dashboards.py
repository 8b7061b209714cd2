"""`python -m scripts.dashboards`: writes deploy/grafana/dashboards/*.json from the lists below.

Each panel is a title, a unit of Grafana's and its queries. They name metrics of docs/metrics.md
only, which a unit test checks.
"""

from __future__ import annotations

from pathlib import Path

from scripts.grafana import Dashboard, Panel, Query, render

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
_PROXY, _MASTER, _WORKER = "triptych_proxy:", "triptych_master:", "triptych:"


def _rate(metric: str, by: str = "") -> str:
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate({metric}[$__rate_interval]))"


def _quantiles(metric: str, by: str = "", legend: str = "") -> tuple[Query, ...]:
    labels = f"le, {by}" if by else "le"
    series = _rate(f"{metric}_bucket", labels)
    return tuple(
        Query(f"histogram_quantile({share}, {series})", f"p{share * 100:g} {legend}".strip())
        for share in (0.5, 0.95, 0.99)
    )


def _p95(metric: str, by: str, legend: str) -> tuple[Query, ...]:
    return _quantiles(metric, by, legend)[1:2]


def _share(part: str, whole: str, by: str = "") -> str:
    return f"{_rate(part, by)} / {_rate(whole, by)}"


FLEET = Dashboard("fleet", "Triptych: fleet", (
    Panel("Workers that are up", "none", "As each proxy sees them, by role.", (
        Query(f"sum by (instance, role) ({_PROXY}instance_up)", "{{role}} ({{instance}})"),)),
    Panel("Workers by state", "none", "As the masters see them.", (
        Query(f"max by (model, role, state) ({_MASTER}instances)", "{{role}} {{state}} {{model}}"),
    )),
    Panel("Processes that answer", "none", "0: Prometheus cannot scrape the process.", (
        Query('up{job="triptych"}', "{{instance}}"),)),
    Panel("Workers avoided because calls failed", "none", "1: the circuit breaker is open.",
        (Query(f"max by (role, url) ({_PROXY}instance_breaker_open)", "{{role}} {{url}}"),)),
    Panel("Requests in progress, by worker", "none", "Of all proxies.", (
        Query(f"sum by (role, url) ({_PROXY}instance_in_flight)", "{{role}} {{url}}"),)),
    Panel("Running batch", "none", "Choices in each engine's batch.", (
        Query(f"{_WORKER}num_requests_running", "{{role}} {{instance}}"),)),
    Panel("Waiting in engines", "none", "Choices that wait to be computed, or for KV.", (
        Query(f"{_WORKER}num_requests_waiting", "{{role}} {{instance}}"),)),
    Panel("Waiting before placement", "none", "Requests in the queues of proxies and masters.", (
        Query(f"sum({_PROXY}requests_waiting)", "proxies"),
        Query(f"sum({_MASTER}requests_waiting)", "masters"))),
    Panel("Engine steps", "ops", "0 while requests run: the engine is stalled.", (
        Query(_rate(f"{_WORKER}steps_total", "role, instance"), "{{role}} {{instance}}"),)),
    Panel("GPU memory", "percentunit", "Share in use, by all processes of the GPU.", (
        Query(f"{_WORKER}gpu_memory_used_bytes / {_WORKER}gpu_memory_total_bytes",
            "{{role}} {{instance}}"),)),
    Panel("Placements", "ops", "By proxy: no master answered.", (
        Query(_rate(f"{_PROXY}placements_total", "by"), "{{by}}"),)),
    Panel("Failed calls to workers", "ops", "By role of the worker and kind of the failure.", (
        Query(_rate(f"{_PROXY}upstream_failures_total", "role, kind"), "{{role}} {{kind}}"),)),
    Panel("Repeated attempts", "ops", "By stage; resumed: another worker continued a stream.", (
        Query(_rate(f"{_PROXY}retries_total", "stage"), "{{stage}}"),)),
))  # fmt: skip
STAGES = Dashboard("stages", "Triptych: stages", (
    Panel("Calls to workers, p95 by stage", "s", "Seconds of a successful call, as proxies see it.",
        _p95(f"{_PROXY}stage_seconds", "stage", "{{stage}}")),
    Panel("Calls to workers, by stage", "ops", "Successful calls a second.", (
        Query(_rate(f"{_PROXY}stage_seconds_count", "stage"), "{{stage}}"),)),
    Panel("Encoding", "s", "Seconds that the media of one request took in an encode worker.",
        _quantiles(f"{_WORKER}encode_time_seconds")),
    Panel("Pictures", "ops", "Encoded, those of them that had been encoded before, and found.", (
        Query(_rate(f"{_WORKER}mm_encoded_total"), "encoded"),
        Query(_rate(f"{_WORKER}mm_reencoded_total"), "encoded again"),
        Query(_rate(f"{_WORKER}mm_cache_hits_total"), "found"))),
    Panel("Pictures that wait for an encoder", "none", "Many for long: add encode workers.", (
        Query(f"{_WORKER}num_items_encoding", "{{instance}}"),)),
    Panel("Encoder's queue and runs, p95", "s", "Of a picture, preparing it included; of a run.", (
        *_p95(f"{_WORKER}encoder_queue_time_seconds", "model", "queue {{model}}"),
        *_p95(f"{_WORKER}encoder_run_time_seconds", "model", "run {{model}}"))),
    Panel("Stages in engines, p95", "s", "Queue and prefill where the prompt is computed.", (
        *_p95(f"{_WORKER}request_queue_time_seconds", "model", "queue {{model}}"),
        *_p95(f"{_WORKER}request_prefill_time_seconds", "model", "prefill {{model}}"),
        *_p95(f"{_WORKER}request_decode_time_seconds", "model", "decode {{model}}"))),
    Panel("Waits for other workers, p95", "s", "From arrival. Long: look at the stage before.", (
        *_p95(f"{_WORKER}request_embedding_wait_seconds", "model", "for embeddings {{model}}"),
        *_p95(f"{_WORKER}request_kv_wait_seconds", "model", "for KV {{model}}"))),
    Panel("Time per output token, p95", "s", "The mean of each choice, where it decodes.",
        _p95(f"{_WORKER}request_time_per_output_token_seconds", "model, role",
            "{{role}} {{model}}")),
    Panel("First token, p95 by role", "s", "From the request's arrival at the worker.",
        _p95(f"{_WORKER}time_to_first_token_seconds", "role", "{{role}}")),
    Panel("Between two outputs, p95 by role", "s", "As workers see it.",
        _p95(f"{_WORKER}inter_token_latency_seconds", "role", "{{role}}")),
    Panel("Tokens", "ops", "Prompt tokens computed or found; output tokens computed.", (
        Query(_rate(f"{_WORKER}prompt_tokens_total", "role"), "prompt {{role}}"),
        Query(_rate(f"{_WORKER}generation_tokens_total", "role"), "output {{role}}"))),
    Panel("Transfers, p95", "s", "From the first byte asked for to the last byte there.",
        _p95(f"{_WORKER}transfer_seconds", "connector, transport", "{{connector}} {{transport}}")),
    Panel("Transferred", "Bps", "Bytes received a second.", (
        Query(_rate(f"{_WORKER}transfer_bytes_total", "connector, transport"),
            "{{connector}} {{transport}}"),)),
    Panel("Bandwidth of transfers", "Bps", "Bytes by the seconds in which they moved.", (
        Query(_share(f"{_WORKER}transfer_bytes_total", f"{_WORKER}transfer_copy_seconds_total",
            "connector, transport"), "{{connector}} {{transport}}"),)),
    Panel("Failed transfers", "ops", "By cause; docs/troubleshooting.md explains them.", (
        Query(_rate(f"{_WORKER}transfer_failures_total", "connector, cause"),
            "{{connector}} {{cause}}"),
        Query(_rate(f"{_WORKER}kv_failed_total"), "KV fetches given up"))),
    Panel("Placing a request", "s", "Seconds a master takes to place one request.",
        _quantiles(f"{_MASTER}schedule_seconds")),
))  # fmt: skip
CACHES = Dashboard("caches", "Triptych: caches", (
    Panel("Prompt tokens from prefix caches", "percentunit", "Share that was not computed.", (
        Query(_share(f"{_WORKER}cached_tokens_total", f"{_WORKER}prompt_tokens_total"), "found"),
        Query(_share(f"{_MASTER}hit_tokens_total", f"{_MASTER}prompt_tokens_total"),
            "foreseen by masters"))),
    Panel("Pictures found encoded", "percentunit", "By the encoder, of those it was asked for.", (
        Query(_share(f"{_WORKER}mm_cache_hits_total", f"{_WORKER}mm_cache_queries_total"),
            "found"),)),
    Panel("Embeddings found beside the engine", "percentunit", "Of lookups in that cache.", (
        Query(_share(f"{_WORKER}embedding_hits_total", f"{_WORKER}embedding_queries_total",
            "role"), "{{role}}"),)),
    Panel("Embeddings lost", "ops", "Gone before prefill had them: the store is too small.", (
        Query(_rate(f"{_WORKER}embedding_lost_total", "model"), "{{model}}"),)),
    Panel("Media items, by where their embeddings come from", "ops", "As masters placed them.", (
        Query(_rate(f"{_MASTER}items_total", "state"), "{{state}}"),)),
    Panel("KV blocks in use", "percentunit", "At 100 % requests are preempted.", (
        Query(f"{_WORKER}kv_cache_usage_perc", "{{role}} {{instance}}"),)),
    Panel("Preemptions", "ops", "Choices whose KV blocks were taken for older ones.", (
        Query(_rate(f"{_WORKER}preemptions_total", "role, instance"), "{{role}} {{instance}}"),)),
    Panel("Embeddings beside the engine", "bytes", "Bound: --embedding-cache-bytes.", (
        Query(f"{_WORKER}embedding_cache_bytes", "{{role}} {{instance}}"),)),
    Panel("Held for peers", "bytes", "Embeddings and KV that others may still fetch.", (
        Query(f"sum by (instance, connector) ({_WORKER}transfer_bytes_held)",
            "{{connector}} {{instance}}"),)),
    Panel("Evictions and leases that expired", "ops", "Expired: no consumer came, or it died.", (
        Query(_rate(f"{_WORKER}transfer_evictions_total", "connector"), "evicted {{connector}}"),
        Query(_rate(f"{_WORKER}transfer_leases_expired_total", "connector"),
            "expired {{connector}}"))),
    Panel("Keys in the masters' index", "none", "Bound: --max-index-entries.", (
        Query(f"max by (model, kind) ({_MASTER}index_entries)", "{{kind}} {{model}}"),)),
    Panel("Cache events", "ops", "Applied by masters.", (
        Query(_rate(f"{_MASTER}events_total", "kind"), "{{kind}}"),)),
    Panel("Caches of which not all is known", "none", "Above 0 for long: events get lost.", (
        Query(f"{_MASTER}event_sources_incomplete", "{{instance}}"),)),
))  # fmt: skip
MODELS = Dashboard("models", "Triptych: models", (
    Panel("Requests", "ops", "Ended well. Relayed ones are counted with --log-requests.", (
        Query(_rate(f"{_PROXY}model_request_latency_seconds_count", "model"), "{{model}}"),)),
    Panel("First token, p95", "s", "Of streams, from the arrival at the proxy.",
        _p95(f"{_PROXY}model_time_to_first_token_seconds", "model", "{{model}}")),
    Panel("Time per output token, p95", "s", "Of streams, the mean of each.",
        _p95(f"{_PROXY}model_time_per_output_token_seconds", "model", "{{model}}")),
    Panel("Whole requests, p95", "s", "From arrival to end.",
        _p95(f"{_PROXY}model_request_latency_seconds", "model", "{{model}}")),
    Panel("Stages, p95", "s", "Queue, render and place are the proxy's. Stages may overlap.",
        _p95(f"{_PROXY}model_stage_seconds", "model, stage", "{{stage}} {{model}}")),
    Panel("Tokens of a prompt", "none", "Mean.", (
        Query(_share(f"{_PROXY}model_prompt_tokens_sum", f"{_PROXY}model_prompt_tokens_count",
            "model"), "{{model}}"),)),
    Panel("Tokens of an answer", "none", "Mean.", (
        Query(_share(f"{_PROXY}model_completion_tokens_sum",
            f"{_PROXY}model_completion_tokens_count", "model"), "{{model}}"),)),
))  # fmt: skip
SLO = Dashboard("slo", "Triptych: objectives", (
    Panel("Requests that failed by our fault", "percentunit", "See alerts.yaml for the codes.", (
        Query("triptych_slo:faults:ratio_rate5m", "5 min"),
        Query("triptych_slo:faults:ratio_rate1h", "1 h"))),
    Panel("Requests that found no room", "percentunit", "Refused or timed out in a queue.", (
        Query("triptych_slo:refusals:ratio_rate5m", "5 min"),)),
    Panel("First token", "s", "From the arrival at the proxy to the first output.",
        _quantiles(f"{_PROXY}time_to_first_token_seconds")),
    Panel("First tokens later than 2.5 s", "percentunit", "The objective of alerts.yaml is 5 %.", (
        Query("triptych_slo:slow_first_tokens:ratio_rate5m", "5 min"),)),
    Panel("Between two outputs", "s", "Rendered requests, each gap.",
        _quantiles(f"{_PROXY}inter_token_latency_seconds")),
    Panel("Time per output event", "s", "Relayed streams, mean of each.",
        _quantiles(f"{_PROXY}request_time_per_output_event_seconds")),
    Panel("Whole requests", "s", "From arrival to end, successes only.",
        _quantiles(f"{_PROXY}e2e_request_latency_seconds")),
    Panel("Requests", "ops", "Ended well, and ended with an error or left by the client.", (
        Query(_rate(f"{_PROXY}e2e_request_latency_seconds_count"), "ok"),
        Query(_rate(f"{_PROXY}request_errors_total") + " or vector(0)", "error"),
        Query(_rate(f"{_PROXY}request_aborted_total"), "client left"))),
    Panel("Errors by code", "ops", "docs/troubleshooting.md has the codes.", (
        Query(_rate(f"{_PROXY}request_errors_total", "code"), "{{code}}"),)),
    Panel("Requests in progress", "none", "In the proxies, waiting ones included.", (
        Query(f"sum by (instance) ({_PROXY}requests_in_flight)", "{{instance}}"),)),
))  # fmt: skip
DASHBOARDS = (FLEET, STAGES, CACHES, MODELS, SLO)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(render(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
