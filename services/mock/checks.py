"""What a mock engine refuses, in the words of the real one."""

from __future__ import annotations

from protocol.errors import InvalidRequest
from protocol.generate_answers import check_spans
from protocol.refs import wants_remote_decode
from protocol.types import GenerateRequest
from services.mock.request import Request
from services.mock.settings import EngineSettings


def check_request(source: GenerateRequest, settings: EngineSettings) -> None:
    """`InvalidRequest` if the request means nothing here."""
    if not settings.generates:
        raise InvalidRequest(f"a worker with the role {settings.role} generates no tokens")
    if not source.token_ids:
        raise InvalidRequest("the prompt is empty", param="token_ids")
    if min(source.token_ids) < 0 or max(source.token_ids) > _LARGEST:
        raise InvalidRequest(f"token ids must lie in 0 … {_LARGEST}", param="token_ids")
    if source.sampling.max_tokens < 1 or source.sampling.n < 1:
        raise InvalidRequest("max_tokens and n must be at least 1", param="sampling_params")
    if wants_remote_decode(source.kv_transfer_params) and settings.role == "pdfusion":
        raise InvalidRequest(
            "this worker has no KV connector and cannot hand over KV: set --kv-transfer-config",
            param="kv_transfer_params",
        )
    check_spans(source)


def check_fits(request: Request, settings: EngineSettings) -> None:
    """`InvalidRequest` if the request could never run to its end here."""
    prompt, most = request.num_prompt, request.source.sampling.max_tokens
    blocks = request.blocks_needed(settings.block_size, most)
    limit = min(settings.max_model_len, settings.num_blocks * settings.block_size)
    if prompt + most > limit or blocks > settings.num_blocks:
        raise InvalidRequest(
            f"prompt of {prompt} tokens and max_tokens {most} exceed the limit of {limit} tokens",
            param="token_ids",
            code="context_length_exceeded",
        )


_LARGEST = 2**31 - 1
