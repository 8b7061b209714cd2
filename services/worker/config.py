"""What a worker is told: flags named as vLLM's, environment, file."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.config import parse_ec, parse_kv
from protocol.fleet_key import FleetOptions
from protocol.options import (
    count,
    drain_delay_option,
    grpc_port_option,
    log_format_option,
    log_level_option,
    option,
    port_option,
    seconds,
    shutdown_timeout_option,
    size,
    vllm_metrics_option,
)
from protocol.server_options import ClientKeyOptions, CorsOptions, TlsOptions, TraceOptions
from protocol.settings import urls
from services.engine.config import parse_speculation
from services.engine.scheduling.ranking import check_policy
from services.frontend.options import FrontendOptions
from services.membership.config import parse_events
from services.worker.lora_modules import parse_modules

_DEVICE = r"auto|cpu|cuda(:\d{1,4})?"


def _check_ec(text: str) -> None:
    if text:
        parse_ec(text)


def _check_kv(text: str) -> None:
    if text:
        parse_kv(text)


def _check_speculation(text: str) -> None:
    parse_speculation(text)


def _check_modules(text: str) -> None:
    parse_modules(text)


def _check_events(text: str) -> None:
    parse_events(text, "", default=False)


@dataclass(frozen=True)
class WorkerConfig(
    FrontendOptions, FleetOptions, ClientKeyOptions, CorsOptions, TlsOptions, TraceOptions
):
    """Resolved once at start."""

    revision: str = option(
        "",
        "Name of the weights in content keys. Empty: derived from the model's files.",
        "name",
        section="Model",
    )
    host: str = option(
        "127.0.0.1",
        "Address to listen on; 0.0.0.0 or :: for all of this machine.",
        "address",
        section="Server",
    )
    port: int = port_option(8000, "TCP port to listen on. 0: any free port.")
    rtp_grpc_port: int = grpc_port_option("RTP-LLM's model service (GenerateStreamCall)")
    dtype: str = option(
        "auto",
        "Element type of weights and KV cache; workers that share embeddings or KV need the same."
        " auto: bfloat16 on a GPU and on a CPU that has instructions for it (AVX-512, AMX) or, with"
        " Numba, our kernel, float32 on other CPUs.",
        choices=("auto", "float32", "float16", "bfloat16"),
        section="Engine",
    )
    quantization: str = option(
        "none",
        "Store the language model's linear weights in fewer bits, by torchao (extra quant): int8 or"
        " fp8 with a scale for each output, int4 (GPU with bfloat16 alone) with one for each group"
        " of inputs. Workers that share KV need the same. none: as the files have them.",
        choices=("none", "int8", "fp8", "int4"),
    )
    weight_layout: str = option(
        "auto",
        "How linear layers are computed. packed: on a CPU, projections of one input merged, by"
        " oneDNN with weights in its order, or by our kernel for bfloat16 that oneDNN has none for."
        " plain: one by one, by PyTorch. auto: packed where it can be, plain elsewhere.",
        choices=("auto", "plain", "packed"),
    )
    device: str = option(
        "auto",
        "Device of the model: auto, cpu, cuda or cuda:N. auto: a GPU if there is one.",
        "one of auto, cpu, cuda, cuda:N",
        pattern=_DEVICE,
    )
    kv_cache_dtype: str = option(
        "auto",
        "Element type of the KV cache. int8 and fp8 (e4m3) take half the bytes of bfloat16, with a"
        " scale for each token and KV head, and as many bytes less to hand over; workers that share"
        " KV need the same. int8_per_token_head, fp8_e4m3 and fp8_per_token_head: vLLM's names for"
        " them. auto: as --dtype.",
        choices=(
            "auto",
            "int8",
            "fp8",
            "int8_per_token_head",
            "fp8_e4m3",
            "fp8_per_token_head",
        ),
    )
    block_size: int = count(16, "Tokens in one KV block.", "tokens", maximum=65536)
    num_gpu_blocks_override: int = count(
        0, "Blocks of the KV cache. 0: as many as its memory holds.", "blocks", minimum=0
    )
    kv_cache_memory_bytes: int = size(
        0,
        "Memory of the KV cache. 0: on a GPU what --gpu-memory-utilization leaves, on a CPU up to"
        " 256 MiB.",
        minimum=0,
    )
    kv_host_memory: float = option(
        0.0,
        "Host memory for KV blocks that the KV cache has no room for; prompts that start with them"
        " get them back instead of being computed again. 0: none.",
        "GiB",
        minimum=0,
        maximum=1 << 20,
    )
    kv_disk: float = option(
        0.0,
        "Largest total size of the files that hold KV blocks; they survive a restart. Needs"
        " --kv-disk-path. Without --kv-host-memory, host memory for 64 blocks is taken too. 0: no"
        " files.",
        "GiB",
        minimum=0,
        maximum=1 << 20,
    )
    kv_disk_path: str = option(
        "",
        "Folder for the files of --kv-disk, in its subfolder kv-blocks. Each worker needs its own."
        " Files of another model, dtype or layout are removed.",
        "path",
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Share of the GPU's memory that weights and KV cache may use together.",
        "share",
        above=0,
        maximum=1,
    )
    max_num_seqs: int = count(
        64,
        "Requests that the engine computes at once; others wait.",
        "requests",
        maximum=65536,
        section="Batching",
    )
    scheduling_policy: str = option(
        "priority",
        "Which waiting request the engine computes first. priority: the lower priority value, then"
        " the older. fcfs: the older, whatever its priority. Packages may bring more (see"
        " examples/plugin).",
        "policy",
        check=check_policy,
    )
    max_num_batched_tokens: int = count(
        2048, "Tokens that one step of the engine computes at most.", "tokens", maximum=1 << 24
    )
    max_prefill_beside_decode: int = count(
        512,
        "Prompt tokens of a step in which other requests decode. Fewer keep the time between two"
        " tokens of an answer short, more compute prompts sooner. 0: no bound of its own.",
        "tokens",
        minimum=0,
        maximum=1 << 24,
    )
    max_decode_delay: float = seconds(
        0.25,
        "Time by which prompts and, in a worker that encodes as well, pictures may delay a step in"
        " which other requests decode; 16 tokens of a prompt and one layer of the vision model run"
        " in any case. 0: no bound but --max-prefill-beside-decode.",
        minimum=0,
    )
    speculative_config: str = option(
        "",
        "Guess tokens of an answer ahead and check several in one step, as a JSON object: method"
        " ngram (what followed the last tokens before) or draft_model (what the small model in the"
        " folder model puts out), num_speculative_tokens, prompt_lookup_min, prompt_lookup_max,"
        " disable_by_batch_size (requests of a step beyond which none are guessed). Answers stay"
        " the same. Empty: no guesses.",
        "json",
        check=_check_speculation,
    )
    enable_lora: bool = option(
        False,
        "Take LoRA adapters in PEFT's form: a request names one as its model, and one batch may mix"
        " several. They are given by --lora-modules or loaded by POST /v1/load_lora_adapter.",
        section="LoRA",
    )
    lora_modules: str = option(
        "",
        "Comma-separated LoRA adapters to load at the start, each as name=folder.",
        "name=folder",
        check=_check_modules,
    )
    max_loras: int = count(
        4, "LoRA adapters that may be loaded at the same time.", "adapters", maximum=4096
    )
    max_lora_rank: int = count(
        16, "Largest rank of a LoRA adapter; one of a larger rank is refused.", "rank", maximum=4096
    )
    max_num_queued: int = count(
        1024, "Requests in the worker beyond which a new one is answered with 503.", "requests"
    )
    max_encoder_patches: int = count(
        16384, "Patches that one run of the vision model takes; one picture always fits.", "patches"
    )
    embedding_cache_bytes: int = size(
        256 << 20, "Memory for the embeddings that requests of the engine use.", minimum=0
    )
    media_cache_bytes: int = size(
        64 << 20,
        "Bytes of pictures that a worker which encodes keeps: if the embedding of one is gone, it"
        " is encoded again without being sent again.",
        minimum=0,
    )
    max_body_bytes: int = size(256 << 20, "Largest body of a request.", section="Server")
    max_received_bytes: int = size(
        512 << 20,
        "Bytes of all request bodies that are being received and rendered; a body that does not fit"
        " is answered with 503 and Retry-After. gRPC answers RESOURCE_EXHAUSTED; one gRPC message"
        " may have 1/32 of this.",
    )
    enable_prefix_caching: bool = option(
        True, "Reuse the KV of prompts that start as earlier ones did.", section="Engine"
    )
    enforce_eager: bool = option(
        False,
        "Launch the kernels of a decode step one by one. Without this flag a GPU captures decode"
        " steps as CUDA graphs when the engine starts, and replays them. No effect on a CPU.",
    )
    fused_kernels: bool = option(
        True,
        "Compute norms, rotary positions with the KV cache's write, and SiLU gates by one kernel"
        " each, in layers where this gives the model's own logits: of Triton on a GPU, of Numba on"
        " a CPU in bfloat16.",
    )
    mm_encoder_only: bool = option(
        False, "No effect: accepted for scripts made for vLLM. The role decides what is loaded."
    )
    enable_request_id_headers: bool = option(
        True, "Return the X-Request-Id header of a request with its answer.", section="Server"
    )
    ec_transfer_config: str = option(
        "",
        "Connector of embeddings: local, shm, shared_storage, nixl, ucx, or vLLM's JSON object."
        " Empty: the role's default.",
        "connector",
        check=_check_ec,
        section="Connectors",
    )
    kv_transfer_config: str = option(
        "",
        "Connector of KV blocks: local, shm, shared_storage, nixl, ucx, or vLLM's JSON object."
        " Empty: the role's default.",
        "connector",
        check=_check_kv,
    )
    master_url: str = urls(
        "Comma-separated URLs of the masters that the worker registers with.", section="Fleet"
    )
    advertise_url: str = urls(
        "URL by which masters and other workers reach this worker. Empty: derived from --host and"
        " --port.",
        unit="URL",
    )
    heartbeat_interval: float = seconds(
        1.0,
        "Time between load reports to a master; a master's lease shortens it to a third of the"
        " lease.",
        minimum=0.01,
    )
    kv_events_config: str = option(
        "",
        "Cache events, as vLLM's JSON object. Empty: published on free ports if --master-url is"
        " given.",
        "JSON",
        check=_check_events,
    )
    seed: int = option(
        0,
        "No effect: accepted for scripts made for vLLM. Requests bring their own seeds.",
        "number",
        minimum=-(1 << 63),
        maximum=(1 << 63) - 1,
        section="Engine",
    )
    num_threads: int = count(
        0, "CPU threads of the engine. 0: PyTorch's default.", "threads", minimum=0, maximum=4096
    )
    share_cores: bool = option(
        False,
        "On a CPU, let the engine use more threads than OMP_NUM_THREADS says, up to all cores,"
        " while other engines with this flag on this machine (in the same TRIPTYCH_NAMESPACE) do"
        " not compute. No effect with --num-threads.",
    )
    engine_stall_timeout: float = seconds(
        3.0,
        "Silence of the engine's process beyond which the worker takes no requests and gives up"
        " those it has, until the engine goes on. A step may take longer: the process says so while"
        " it computes.",
        minimum=0.5,
        section="Health of the engine",
    )
    engine_step_timeout: float = seconds(
        0.0,
        "How long one step of the engine may take before it counts as stalled. 0: 10 s, or twice"
        " the longest step so far; for a step that does more than any before, or work of another"
        " kind, which kernels may have to be compiled for, 120 s or four times.",
        minimum=0,
    )
    profile_folder: str = option(
        "",
        "Folder for traces of the engine's steps, which /start_profile and /stop_profile take with"
        " PyTorch's profiler. Empty: these routes are not there.",
        "path",
    )
    start_timeout: float = seconds(600.0, "How long the engine may take to load the model.")
    drain_delay: float = drain_delay_option(section="Server")
    shutdown_timeout: float = shutdown_timeout_option()
    log_level: str = log_level_option()
    log_format: str = log_format_option()
    vllm_metrics: bool = vllm_metrics_option()
