"""A client's request as workers get it: the model that it names, its parameters, its room.

`Frontend` (render) makes the tokens; what is the same for chats, completions, raw prompts and
pooling is here.
"""

from __future__ import annotations

import time

from protocol.encoder_cache import MAX_NAME_CHARS, by_content
from protocol.errors import InvalidRequest, ModelNotFound
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.openai_answers import ModelCard, ModelList
from protocol.sampling_checks import check_priority
from protocol.types import GenerateRequest, SamplingParams
from services.frontend.config import FrontendConfig
from services.frontend.grammars.requested import grammar_for
from services.frontend.model_info import ModelInfo
from services.frontend.prompts.chat_text import ChatText
from services.frontend.prompts.maker import PromptMaker
from services.frontend.sampling import fit, sampling_params
from services.frontend.tokenizer import Tokenizer
from services.frontend.tool_use import ToolUse

_NO_TOOLS = ToolUse()


class ServedNames:
    """`adapters`: LoRA adapters that clients may name instead of the model, with their revisions;
    kept true by the process that has workers or is one."""

    def __init__(self, config: FrontendConfig, max_model_len: int) -> None:
        self._root, self._names = str(config.model), config.names
        self._max_model_len = max_model_len
        self._created = int(time.time())
        self.adapters: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a client may ask for this; the empty name is the model's."""
        return not name or name in self._names or name in self.adapters

    @property
    def all(self) -> tuple[str, ...]:
        """The model's names, then its adapters."""
        return (*self._names, *self.adapters)

    def cards(self) -> ModelList:
        """The answer to /v1/models."""
        parents = dict.fromkeys(self._names) | dict.fromkeys(self.adapters, self._names[0])
        return ModelList(
            [
                ModelCard(
                    id=name,
                    created=self._created,
                    root=self._root,
                    parent=parent,
                    max_model_len=self._max_model_len,
                )
                for name, parent in parents.items()
            ]
        )


class RequestMaker:
    """The requests of one frontend, whose parts these are."""

    def __init__(
        self,
        config: FrontendConfig,
        info: ModelInfo,
        tokenizer: Tokenizer,
        prompts: PromptMaker,
        chat_text: ChatText,
        served: ServedNames,
    ) -> None:
        self._config = config
        self._info = info
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._chat_text = chat_text
        self._served = served

    async def checked(
        self, request: ChatCompletionRequest | CompletionRequest, use: ToolUse = _NO_TOOLS
    ) -> SamplingParams:
        """What can be checked before media are fetched: a request that is refused costs no download
        and no decoding."""
        if (request.model or "") not in self._served:
            raise ModelNotFound(f"model: '{request.model}' is not served here", param="model")
        if len(request.cache_salt or "") > MAX_NAME_CHARS:
            raise InvalidRequest(
                f"cache_salt must not have more than {MAX_NAME_CHARS} characters",
                param="cache_salt",
            )
        check_priority(request.priority, self._config.min_priority)
        form = self._chat_text.form(request, use)
        return sampling_params(
            request,
            room=self._info.max_model_len,
            vocab_size=self._info.vocab_size,
            defaults=self._info.generation_defaults,
            tokenizer=self._tokenizer,
            grammar=await grammar_for(request, use, form, self._tokenizer),
        )

    def made(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        request_id: str,
        token_ids: list[int],
        sampling: SamplingParams,
        param: str,
    ) -> GenerateRequest:
        """`sampling` with as many tokens as the prompt leaves room for; `InvalidRequest` (`param`)
        if that is none."""
        room = self._prompts.room_beside(len(token_ids), param)
        return GenerateRequest(
            request_id=request_id,
            token_ids=token_ids,
            sampling=fit(
                sampling,
                request,
                room=room,
                limit=self._info.max_model_len,
                defaults=self._info.generation_defaults,
            ),
            model=request.model or self._config.names[0],
            # Block keys contain it, so that KV of another version of the adapter never fits.
            adapter_revision=self._served.adapters.get(request.model or "", ""),
            priority=request.priority,
            cache_salt=request.cache_salt or "",
            kv_transfer_params=request.kv_transfer_params,
            ec_transfer_params=by_content(request.ec_transfer_params),
        )
