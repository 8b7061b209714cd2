"""The way in: OpenAI requests to token ids, media spans and sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from blake3 import blake3

from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.types import FrameSampling, GenerateRequest, Modality
from services.frontend.config import FrontendConfig
from services.frontend.families import Family, load_family
from services.frontend.grammars.requested import after_reasoning
from services.frontend.media.items import ItemLoader
from services.frontend.media.lookups import ANONYMOUS, Caller
from services.frontend.media.store import MediaStore
from services.frontend.model_info import ModelInfo
from services.frontend.parsing.reading import Parsers, Reading
from services.frontend.pooling.inputs import PoolingInputs
from services.frontend.pooling.model import with_pooler
from services.frontend.prompts.chat_text import ChatText
from services.frontend.prompts.guard import Guard
from services.frontend.prompts.maker import (
    OFFLOAD_BYTES,
    PromptMaker,
    check_untruncated,
    offloaded,
    prompts_of,
    truncated,
)
from services.frontend.prompts.messages import read_messages
from services.frontend.prompts.other_templates import RequestTemplates
from services.frontend.prompts.raw import RawPrompts
from services.frontend.prompts.template import ChatTemplate
from services.frontend.requests import RequestMaker, ServedNames
from services.frontend.spec import RenderedRequest, describe_output
from services.frontend.tokenizer import Tokenizer
from services.frontend.tool_use import tool_use

_END_TOKENS = 16  # tokens of a prompt's end that are looked at


class Frontend:
    """Everything that turns one model's requests into tokens. `load` it once per process."""

    def __init__(
        self,
        config: FrontendConfig,
        info: ModelInfo,
        tokenizer: Tokenizer,
        family: Family,
        store: MediaStore | None = None,
    ) -> None:
        """`store`: for media of requests under way; None: one of its own, as `config` says."""
        self.config = config
        self.name = config.names[0]  # which answers show
        self.info = info
        self.tokenizer = tokenizer
        self.family = family
        placeholders = family.placeholders
        guard = Guard([*tokenizer.special, *(p.pad for p in placeholders.values())])
        self._chat_text = ChatText(
            {name: ChatTemplate(t, info.special_tokens) for name, t in info.templates.items()},
            RequestTemplates(info.special_tokens, trusted=config.trust_request_chat_template),
            guard,
            placeholders,
            Parsers(config.tool_call_parser, config.reasoning_parser),
        )
        self._items = ItemLoader(config, info, family, store)
        self._prompts = PromptMaker(
            tokenizer,
            placeholders,
            room=info.max_model_len,
            vocab_size=info.vocab_size,
            answers=info.pooler is None,
        )
        self.served = ServedNames(config, info.max_model_len)
        self._requests = RequestMaker(
            config, info, tokenizer, self._prompts, self._chat_text, self.served
        )
        self._raw = RawPrompts(
            self._items, self._prompts, placeholders.get("image"), self._requests
        )
        self.pooling = PoolingInputs(info, tokenizer, self._prompts, guard, self._requests)
        self._fingerprint = "fp_" + blake3(f"{info.name} {info.revision}".encode()).hexdigest(5)

    @staticmethod
    def load(config: FrontendConfig, store: MediaStore | None = None) -> Frontend:
        """Read the model directory; `ConfigError` says what is wrong with it. `store`: as of the
        constructor."""
        info = ModelInfo.load(
            config.model,
            max_model_len=config.max_model_len,
            allow_longer=config.allow_long_max_model_len,
            chat_template=config.chat_template,
            generation_defaults=config.generation_defaults,
        )
        tokenizer = Tokenizer.load(info)
        info = with_pooler(info, tokenizer, config.task)
        return Frontend(config, info, tokenizer, load_family(info, tokenizer), store)

    async def close(self) -> None:
        await self._items.close()

    def name_of(
        self,
        data: bytes,
        pixels: tuple[int, int] | None = None,
        modality: Modality = "image",
        frames: FrameSampling | None = None,
    ) -> str:
        """The `mm_hash` that a picture or clip has here; `pixels` and `frames` as in `MMItem`.
        `InvalidRequest` if the model takes none of its kind."""
        return self._items.name_of(data, pixels, modality, frames)

    async def render_chat(
        self,
        request: ChatCompletionRequest,
        *,
        request_id: str,
        resolved: Mapping[str, bytes] | None = None,
        caller: Caller = ANONYMOUS,
        size: int = 0,
    ) -> RenderedRequest:
        """Token ids, media and parameters of a chat; `RequestError` names the field at fault.

        `resolved`: bytes by URL of media that are at hand and need not be fetched. `caller`: who
        asks; the work done for one caller at a time is bounded. `size`: bytes of its JSON.
        """
        large = size > OFFLOAD_BYTES
        use = await offloaded(lambda: tool_use(request), large=large)
        sampling = await self._requests.checked(request, use)
        asked = self._items.asked(request.mm_processor_kwargs, request.media_io_kwargs)
        read = partial(read_messages, request.messages, self.family.placeholders)
        chat = await offloaded(read, large=large)
        salt = request.cache_salt or ""
        reports = request.ec_transfer_params
        items = await self._items.load(
            chat.media, reports, salt=salt, resolved=resolved or {}, caller=caller, asked=asked
        )
        if items:
            check_untruncated(request)
        spans = [item.span for item in items]
        # Before the span is spelled out: a reference may claim any number of tokens.
        self._prompts.room_beside(sum(span.length for span in spans), "messages")
        prompt = await self._prompts.of_chat(
            lambda: self._chat_text.render(request, chat, use),
            chat.num_chars,
            spans,
            add_special_tokens=bool(request.add_special_tokens),
            size=size,
        )
        token_ids = truncated(request, prompt.token_ids, self.info.max_model_len)
        generate = self._requests.made(request, request_id, token_ids, sampling, "messages")
        generate.mm_items = [
            item.at(offset, gaps)
            for item, offset, gaps in zip(items, prompt.offsets, prompt.gaps, strict=True)
        ]
        media = {item.mm_hash: item.data for item in items if item.data is not None}
        prompt_end = self.tokenizer.decode(
            prompt.token_ids[-_END_TOKENS:], skip_special_tokens=False
        )
        # By the prompt's end: many templates open the reasoning themselves.
        reading = self._chat_text.reading(request, use, prompt_end)
        self._allow_reasoning(generate, reading)
        spec = describe_output(
            request,
            generate,
            self.info.eos_token_ids,
            system_fingerprint=self._fingerprint,
            reading=reading,
        )
        uuids = [part.uuid for part in chat.media]
        session = request.session_id or request.chat_id or ""
        return RenderedRequest(generate, media, spec, session=session, uuids=uuids, model=self.name)

    def _allow_reasoning(self, generate: GenerateRequest, reading: Reading) -> None:
        """Before what the answer is held to, if it is held to anything."""
        if held_to := generate.sampling.grammar:
            held_to = after_reasoning(held_to, reading, self.tokenizer)
            generate.sampling = msgspec.structs.replace(generate.sampling, grammar=held_to)

    async def render_completion(
        self, request: CompletionRequest, *, request_id: str
    ) -> list[RenderedRequest]:
        """One request per prompt, in order; `RequestError` names the field at fault.

        The text of a prompt is taken as it is, special tokens in it included, for it has no chat
        template around it; tokens that stand for media are refused.
        """
        sampling = await self._requests.checked(request)
        prompts = prompts_of(request.prompt)
        rendered = []
        for index, prompt in enumerate(prompts):
            several = len(prompts) > 1
            param = f"prompt[{index}]" if several else "prompt"
            name = f"{request_id}-{index}" if several else request_id
            special = request.add_special_tokens is not False
            given = await self._prompts.of_completion(prompt, param, add_special_tokens=special)
            token_ids = truncated(request, given, self.info.max_model_len)
            generate = self._requests.made(request, name, token_ids, sampling, param)
            if index:
                # An answer has room for one handle: the others' KV could not be fetched.
                generate.kv_transfer_params = None
            # A prompt that was cut is echoed by its tokens.
            text = prompt if isinstance(prompt, str) and token_ids is given else None
            spec = describe_output(
                request,
                generate,
                self.info.eos_token_ids,
                first_index=index * (request.n or 1),
                prompt_text=text,
                answer_id=request_id,
                system_fingerprint=self._fingerprint,
            )
            session = request.session_id or ""
            rendered.append(RenderedRequest(generate, {}, spec, session=session, model=self.name))
        return rendered

    async def render_raw(
        self,
        request: CompletionRequest,
        images: Sequence[str],
        *,
        request_id: str,
        pixels: Mapping[str, Any] | None = None,
        caller: Caller = ANONYMOUS,
    ) -> RenderedRequest:
        """A prompt as it is with pictures in it, as `RawPrompts` has it."""
        generate, media = await self._raw.render(
            request, images, request_id=request_id, pixels=pixels, caller=caller
        )
        spec = describe_output(
            request, generate, self.info.eos_token_ids, system_fingerprint=self._fingerprint
        )
        uuids = [None] * len(generate.mm_items)
        return RenderedRequest(generate, media, spec, uuids=uuids, model=self.name)
