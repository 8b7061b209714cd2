"""What `triptych serve` is told. Second names of variables are those of scripts/disagg.sh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.options import (
    count,
    drain_delay_option,
    option,
    port_option,
    seconds,
    shutdown_timeout_option,
)


def _first_port(default: int, what: str, env: str) -> Any:
    return port_option(default, f"TCP port of {what}.", env=env, minimum=1)


def _devices(role: str, env: str, **rule: Any) -> Any:
    help = f"Devices of the {role} workers, comma-separated, dealt out in turn."
    return option("0", help, "devices", env=env, **rule)


def _share(default: float, role: str, env: str) -> Any:
    help = f"Share of a GPU's memory for one {role} worker."
    return option(default, help, "share", env=env, above=0, maximum=1)


def _words(what: str, env: str, **rule: Any) -> Any:
    return option("", f"Further flags of {what}, as on a command line.", "flags", env=env, **rule)


@dataclass(frozen=True)
class ServeConfig:
    """Resolved once at start."""

    model: str = option(
        "demo",
        "Directory of the model, its name at the hub if the hub's local cache has it, or demo. It"
        " may also be given without the flag: triptych serve MODEL.",
        "path",
        env="MODEL",
        section="Stack",
    )
    num_e: int = count(
        1, "Encode workers. A text model gets none.", "workers", minimum=0, maximum=1000,
        env="NUM_E",
    )  # fmt: skip
    num_p: int = count(
        1, "Prefill workers. 0: decode workers prefill.", "workers", minimum=0, maximum=1000,
        env="NUM_P",
    )  # fmt: skip
    num_d: int = count(1, "Decode workers; at least one.", "workers", maximum=1000, env="NUM_D")
    num_any: int = count(
        0,
        "Workers of the role any, which encode, prefill or decode as the master says, in the place"
        " of those that --num-e, --num-p and --num-d count. 0: none.",
        "workers", minimum=0, maximum=1000, env="NUM_ANY",
    )  # fmt: skip
    engine: str = option(
        "triptych",
        "Workers to start: triptych, vllm (`vllm serve` with its EC and KV connectors), mock"
        " (without a model, on a timing model).",
        env="ENGINE",
        choices=("triptych", "vllm", "mock"),
    )
    host: str = option(
        "127.0.0.1",
        "Address of the proxy; 0.0.0.0 or :: for all of this machine.",
        "address",
        section="Addresses",
    )
    port: int = _first_port(10001, "the proxy", "PROXY_PORT")
    master: bool = option(True, "Start a master, which places the requests.", env="MASTER")
    master_port: int = _first_port(10002, "the master", "MASTER_PORT")
    encode_port: int = _first_port(19534, "the first encode worker", "ENCODE_PORT")
    prefill_port: int = _first_port(19634, "the first prefill worker", "PREFILL_PORT")
    decode_port: int = _first_port(19734, "the first decode worker", "DECODE_PORT")
    any_port: int = _first_port(20034, "the first worker of the role any", "ANY_PORT")
    gpu_e: str = _devices("encode", "GPU_E", section="Devices")
    gpu_p: str = _devices("prefill", "GPU_P")
    gpu_d: str = _devices("decode", "GPU_D")
    gpu_any: str = _devices("any", "GPU_ANY")
    device_platform: str = option(
        "cuda",
        "Kind of the devices; decides the variable that gives a worker its device.",
        env="DEVICE_PLATFORM",
        choices=("cuda", "xpu"),
    )
    device_affinity_env: str = option(
        "",
        "Variable that gives a worker its device. Empty: that of --device-platform.",
        "name",
        env="DEVICE_AFFINITY_ENV",
        pattern=r"[A-Za-z_][A-Za-z0-9_]*|",
        form="the name of an environment variable",
    )
    gpu_memory_e: float = _share(0.1, "encode", "GPU_MEMORY_UTILIZATION_E")
    gpu_memory_p: float = _share(0.4, "prefill", "GPU_MEMORY_UTILIZATION_P")
    gpu_memory_d: float = _share(0.7, "decode", "GPU_MEMORY_UTILIZATION_D")
    gpu_memory_any: float = _share(0.8, "any", "GPU_MEMORY_UTILIZATION_ANY")
    max_num_seqs: int = count(
        64,
        "Requests that one worker computes at once.",
        "requests",
        env="MAX_NUM_SEQS",
        section="Workers",
    )
    max_model_len: int = count(
        0, "Longest request, prompt and output together. 0: the model's own limit.", "tokens",
        minimum=0, env="MAX_MODEL_LEN",
    )  # fmt: skip
    ec_transport: str = option(
        "shm",
        "Connector of embeddings: shm, shared_storage, nixl, ucx, or vLLM's JSON object.",
        "connector",
        env="EC_TRANSPORT",
    )
    kv_transport: str = option(
        "shm",
        "Connector of KV blocks: shm, nixl, ucx, or vLLM's JSON object.",
        "connector",
        env="KV_TRANSPORT",
    )
    ec_shared_storage_path: str = option(
        "/tmp/ec_cache", "Folder of shared storage.", "path", env="EC_SHARED_STORAGE_PATH"
    )
    worker_flags: str = _words("all workers", "WORKER_FLAGS", section="Further flags")
    proxy_flags: str = _words("the proxy", "PROXY_FLAGS")
    master_flags: str = _words("the master", "MASTER_FLAGS")
    vllm: str = option(
        "vllm", "Executable of vLLM, for --engine vllm.", "path", env="VLLM", section="vLLM"
    )
    vllm_flags: str = _words("vLLM's workers", "VLLM_FLAGS")
    vllm_kv_buffer_device: str = option(
        "",
        "Value of kv_buffer_device of vLLM's NixlConnector; cpu without a GPU. Empty: vLLM's own.",
        "device",
        env="VLLM_KV_BUFFER_DEVICE",
    )
    vllm_prefill_encodes: bool = option(
        True,
        "Whether vLLM's prefill workers may encode pictures where the encoders are busier.",
        env="VLLM_PREFILL_ENCODES",
    )
    events_port: int = _first_port(
        19834, "the first vLLM worker's cache events; each worker takes two", "EVENTS_PORT"
    )
    side_port: int = _first_port(19934, "the first vLLM worker's side channel", "SIDE_PORT")
    log_path: str = option("logs", "Folder of the logs, one file a process.", "path",
                           env="LOG_PATH", section="Run")  # fmt: skip
    timeout_seconds: float = seconds(
        600.0, "How long the stack may take to be up.", env="TIMEOUT_SECONDS"
    )
    ask: bool = option(
        False, "Ask about drawn pictures once the stack is up.", section="Once the stack is up"
    )
    num_prompts: int = count(
        0, "Requests of a serving benchmark once the stack is up. 0: none.", "requests", minimum=0,
        env="NUM_PROMPTS",
    )  # fmt: skip
    request_rate: str = option(
        "inf", "Requests per second of that benchmark; inf: all at once.", "rate",
        env="REQUEST_RATE",
    )  # fmt: skip
    keep_running: bool = option(
        True, "Serve until Ctrl-C instead of stopping once all is asked.", env="KEEP_RUNNING"
    )
    drain_delay: float = drain_delay_option(section="Run")
    shutdown_timeout: float = shutdown_timeout_option()

    @property
    def affinity(self) -> str:
        """The variable that gives a worker its device."""
        if self.device_affinity_env:
            return self.device_affinity_env
        return "ZE_AFFINITY_MASK" if self.device_platform == "xpu" else "CUDA_VISIBLE_DEVICES"

    @property
    def master_url(self) -> str:
        """ "" without a master."""
        return f"http://127.0.0.1:{self.master_port}" if self.master else ""
