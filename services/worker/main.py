"""Start a worker of one role and serve until told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from connectors.config import parse_ec, parse_kv
from protocol.errors import ConfigError, TriptychError
from protocol.flag_lists import parse_urls
from protocol.fleet_key import NO_KEY, FleetKey
from protocol.generate import ENCODE_PATH, GENERATE_PATH
from protocol.logs import configure_logging
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH
from protocol.settings import describe, resolve
from protocol.termination import closed_by_sigterm, ended_by_sigterm
from services.engine.config import EngineConfig, Speculation, parse_speculation
from services.frontend.render import Frontend
from services.grpc.doors import Behind, Place, door
from services.http.access import Access, ApiKeys, check_reach, gated
from services.http.browsers import for_browsers
from services.http.open_files import raise_limit
from services.http.records import InstanceHeader, Recorded, make_tracer
from services.http.server import bind
from services.http.server import serve as serve_http
from services.membership.config import EventsConfig, advertised_url, parse_events
from services.membership.registration import Changes
from services.worker.app import create_app
from services.worker.chat import service_of
from services.worker.config import WorkerConfig
from services.worker.engine_client import EngineClient
from services.worker.engine_options import parse_modules
from services.worker.member import registered, registration_of
from services.worker.metrics import WorkerMetrics
from services.worker.stall_watch import StallBounds
from services.worker.worker import RoleSpec, Worker

logger = logging.getLogger("worker")
TRACED_PATHS = (GENERATE_PATH, ENCODE_PATH, CHAT_PATH, COMPLETIONS_PATH)


def main(role: RoleSpec, argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a clean stop, 2 for a bad configuration, 1 if the engine died; 143 for
    SIGTERM before it serves."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        config = resolve(WorkerConfig, argv, prog=f"services.{role.name}")
        configure_logging(role.name, config.log_level, config.log_format)
        logger.info("configuration:\n%s", describe(config))
        raise_limit()
        with ended_by_sigterm():
            return asyncio.run(closed_by_sigterm(serve(role, config)))
    except TriptychError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


async def serve(role: RoleSpec, config: WorkerConfig) -> int:
    """Bind, load, serve; the port is taken before the model is loaded."""
    masters = parse_urls("--master-url", config.master_url)
    key = config.read_fleet_key()
    clients = ApiKeys(config.read_api_keys())
    access = Access(key, clients, protect_metrics=config.protect_metrics)
    config.check_tls()
    events = parse_events(config.kv_events_config, config.host, default=bool(masters))
    addresses = [("--host", config.host), *side_channels(role, config, events)]
    check_reach(logger, "--fleet-key", bool(key), addresses, config.allow_unprotected)
    with bind(config.host, config.port) as listener:
        port = listener.getsockname()[1]
        url = advertised_url(
            config.advertise_url, config.host, port, masters, secure=config.serves_tls
        )
        # A worker traces what comes with a trace; what is traced is the proxy's to decide.
        tracer = make_tracer(config, role.name, url, share=0.0)
        frontend = Frontend.load(config.to_config())
        changes = Changes()
        engine = await EngineClient.start(
            engine_config(role, config, frontend, events, key),
            config.start_timeout,
            StallBounds(config.engine_stall_timeout, config.engine_step_timeout),
            changes.announce,
            lambda adapters: _adapt(frontend, changes, adapters),
        )
        try:
            metrics = WorkerMetrics(
                role.name, frontend.config.names[0], vllm_names=config.vllm_metrics
            )
            frontend.served.adapters = engine.ready.adapters
            worker = Worker(role, config, engine, frontend, metrics, changes=changes)
            during = registered(worker, registration_of(worker, url, masters, key))
            app = for_browsers(gated(create_app(worker), access), config)
            if tracer is not None:
                app = Recorded(app, TRACED_PATHS, tracer.end, tracer.begin)
            async with _rtp_door(worker, access) as worker.grpc_port:
                await serve_http(
                    InstanceHeader(app, worker.instance_id),
                    listener,
                    role.name,
                    engine.dead,
                    during=during,
                    tls=config,
                    life=worker.life,
                )
            return 1 if engine.dead.is_set() else 0
        finally:
            await engine.close()
            await frontend.close()
            if tracer is not None:
                await asyncio.to_thread(tracer.close)


def _adapt(frontend: Frontend, changes: Changes, adapters: dict[str, str]) -> None:
    """Clients and masters learn of the engine's LoRA adapters."""
    frontend.served.adapters = adapters
    changes.announce()


def _rtp_door(worker: Worker, access: Access) -> AbstractAsyncContextManager[int]:
    """RTP-LLM's gRPC, where the flag asks for it."""
    config, role = worker.config, worker.role
    if config.rtp_grpc_port >= 0 and "language" not in role.parts:
        raise ConfigError(f"--rtp-grpc-port: a worker of the role {role.name} generates nothing")
    place = Place(role.name, config.host, config.max_num_queued, config)

    def able(model: str) -> bool:
        return not (worker.leaving or worker.engine.outage)

    return door(
        "rtp", config.rtp_grpc_port, place, lambda: Behind(service_of(worker), able, access)
    )


def side_channels(
    role: RoleSpec, config: WorkerConfig, events: EventsConfig | None
) -> list[tuple[str, str]]:
    """Where peers of the engine and readers of its events reach it: flags and addresses."""
    ec = parse_ec(config.ec_transfer_config or role.ec_transport)
    kv = parse_kv(config.kv_transfer_config or role.kv_transport)
    # Event sockets that no flag has placed are at --host.
    bound = events.hosts() if events is not None and config.kv_events_config else []
    return [
        ("--ec-transfer-config", ec.host),
        ("--kv-transfer-config", kv.host),
        *(("--kv-events-config", host) for host in bound),
    ]


def _quantization(role: RoleSpec, config: WorkerConfig) -> str:
    """Of the language model's weights: an encode worker takes the flag and has none."""
    if config.quantization == "none" or "language" not in role.parts:
        return ""
    if config.weight_layout == "packed":
        raise ConfigError(
            "--weight-layout packed: cannot be used with --quantization: use auto or plain"
        )
    return config.quantization


def _speculation(role: RoleSpec, config: WorkerConfig, *, pools: bool) -> Speculation | None:
    """A worker that puts out one token of a request, or none, has nothing to guess."""
    idle = role.name == "prefill" or pools
    return None if idle else parse_speculation(config.speculative_config)


def _lora(role: RoleSpec, config: WorkerConfig, *, pools: bool) -> dict[str, Any]:
    """Adapters are the language model's: an encode worker takes the flags and loads none."""
    modules = parse_modules(config.lora_modules)
    if modules and not config.enable_lora:
        raise ConfigError("--lora-modules: needs --enable-lora")
    if taken := next((name for name in modules if name in config.to_config().names), ""):
        raise ConfigError(f"--lora-modules: '{taken}' is the model's own name")
    if config.enable_lora and pools:
        raise ConfigError("--enable-lora: a model that answers vectors or scores takes no adapters")
    if not config.enable_lora or "language" not in role.parts:
        return {}
    return {
        "max_loras": config.max_loras,
        "max_lora_rank": config.max_lora_rank,
        "lora_modules": modules,
    }


def engine_config(
    role: RoleSpec,
    config: WorkerConfig,
    frontend: Frontend,
    events: EventsConfig | None = None,
    key: FleetKey = NO_KEY,
) -> EngineConfig:
    info = frontend.info
    return EngineConfig(
        model_dir=str(info.path),
        model=info.name,
        revision=info.revision,
        parts=role.parts if info.has_media else ("language",),
        pooler=info.pooler,
        dtype=config.dtype,
        device=config.device,
        enforce_eager=config.enforce_eager,
        fused_kernels=config.fused_kernels,
        quantization=_quantization(role, config),
        weight_layout=config.weight_layout,
        kv_cache_dtype=config.kv_cache_dtype,
        block_size=config.block_size,
        num_blocks=config.num_gpu_blocks_override,
        kv_cache_bytes=config.kv_cache_memory_bytes,
        kv_host_bytes=int(config.kv_host_memory * 2**30),
        kv_disk_bytes=int(config.kv_disk * 2**30),
        kv_disk_path=config.kv_disk_path,
        gpu_memory_utilization=config.gpu_memory_utilization,
        max_model_len=info.max_model_len,
        max_num_seqs=config.max_num_seqs,
        scheduling_policy=config.scheduling_policy,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_prefill_beside_decode=config.max_prefill_beside_decode,
        max_decode_delay_s=config.max_decode_delay,
        speculation=_speculation(role, config, pools=info.pooler is not None),
        served_names=frontend.config.names,
        **_lora(role, config, pools=info.pooler is not None),
        max_encoder_patches=config.max_encoder_patches,
        max_media_pixels=config.max_media_pixels,
        clips=frontend.config.media.clips,
        clip_readers=config.video_readers if frontend.config.allow_clips else 0,
        embedding_cache_bytes=config.embedding_cache_bytes,
        prefix_caching=config.enable_prefix_caching,
        eos_token_ids=info.eos_token_ids,
        num_threads=config.num_threads,
        share_cores=config.share_cores,
        ec=parse_ec(config.ec_transfer_config or role.ec_transport),
        kv=parse_kv(config.kv_transfer_config or role.kv_transport),
        events=events,
        fleet_key=key.secret,
        log_level=config.log_level,
        log_format=config.log_format,
    )
