"""What the engine of a worker is told: flags under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from protocol.errors import ConfigError
from protocol.options import count, option, seconds, size
from protocol.registry import Name
from services.engine.config import parse_speculation
from services.engine.scheduling.ranking import check_policy

_DEVICE = r"auto|cpu|cuda(:\d{1,4})?"


def parse_modules(text: str) -> dict[str, str]:
    """Folders by name; `ConfigError` says what is wrong."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, folder = (piece.strip() for piece in part.partition("="))
        if not (name and equals and folder):
            raise ConfigError(f"--lora-modules: '{part[:200]}' is not of the form name=folder")
        try:
            msgspec.convert(name, Name)
        except msgspec.ValidationError as error:
            raise ConfigError(f"--lora-modules: name '{name[:200]}': {error}") from None
        if name in found:
            raise ConfigError(f"--lora-modules: '{name[:200]}' is given twice")
        found[name] = folder
    return found


def _check_speculation(text: str) -> None:
    parse_speculation(text)


def _check_modules(text: str) -> None:
    parse_modules(text)


@dataclass(frozen=True)
class EngineOptions:
    """A part of a worker's configuration."""

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
        "How linear layers are computed. packed: projections of one input merged, and on a CPU by"
        " oneDNN with weights in its order, or by our kernel for bfloat16 that oneDNN has none for."
        " plain: one by one, by PyTorch. auto: packed where it can be, plain elsewhere.",
        choices=("auto", "plain", "packed"),
    )
    device: str = option(
        "auto",
        "Device of the model: auto, cpu, cuda or cuda:N. auto: a GPU if there is one.",
        "device",
        pattern=_DEVICE,
        form="auto, cpu, cuda or cuda:N",
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
    enable_prefix_caching: bool = option(
        True, "Reuse the KV of prompts that start as earlier ones did."
    )
    enforce_eager: bool = option(
        False,
        "Launch the kernels of a decode step one by one. Without this flag a GPU captures decode"
        " steps as CUDA graphs when the engine starts, and replays them. No effect on a CPU.",
    )
    fused_kernels: bool = option(
        True,
        "Compute norms, rotary positions with the KV cache's write, and SiLU gates by one kernel"
        " each, in layers where this gives the model's own logits and on a GPU in vision towers"
        " where it gives their own embeddings: of Triton on a GPU, of Numba on a CPU in bfloat16.",
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
    num_threads: int = count(
        0, "CPU threads of the engine. 0: PyTorch's default.", "threads", minimum=0, maximum=4096
    )
    share_cores: bool = option(
        False,
        "On a CPU, let the engine use more threads than OMP_NUM_THREADS says, up to all cores,"
        " while other engines with this flag on this machine (in the same TRIPTYCH_NAMESPACE) do"
        " not compute. No effect with --num-threads.",
    )
    seed: int = option(
        0,
        "No effect: accepted for scripts made for vLLM. Requests bring their own seeds.",
        "number",
        minimum=-(1 << 63),
        maximum=(1 << 63) - 1,
    )
    mm_encoder_only: bool = option(
        False, "No effect: accepted for scripts made for vLLM. The role decides what is loaded."
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
        " the older. fcfs: the older, at any priority. Packages may bring more (see"
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
        " disable_by_batch_size (requests of a step beyond which none are guessed), adaptive (guess"
        " less, or nothing, where measured steps say that it does not pay; on unless false)."
        " Answers stay the same. Empty: no guesses.",
        "json",
        check=_check_speculation,
    )
    max_num_queued: int = count(
        1024, "Requests in the worker beyond which a new one is answered with 503.", "requests"
    )
    max_encoder_patches: int = count(
        16384, "Patches that one run of the vision model takes; one picture always fits.", "patches"
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
