"""From the outputs of a rendered request to the bytes of its answer; proxy and workers share it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from protocol.errors import TriptychError, from_info
from protocol.openai_answers import DONE, Answer, encode_event
from protocol.types import RequestOutput
from services.frontend.answer_form import AnswerForm
from services.frontend.answers import AnswerBuilder
from services.frontend.chunks import ChunkBuilder
from services.frontend.output import Gain, OutputAssembler
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer

Steps = AsyncGenerator[list[RequestOutput], None]


class Answering:
    """One request's way back. `stop_choice` is told of a choice that a stop string has ended, so
    that whoever computes it can stop; `ec_transfer_params` go with the answer's end."""

    def __init__(
        self,
        spec: OutputSpec,
        tokenizer: Tokenizer,
        *,
        stop_choice: Callable[[int], None] | None = None,
        ec_transfer_params: dict[str, Any] | None = None,
    ) -> None:
        self._assembler = OutputAssembler(spec, tokenizer)
        self._form = AnswerForm(spec, tokenizer)
        self._stop_choice = stop_choice
        self._stopped = False
        self._ec = ec_transfer_params

    @property
    def _satisfied(self) -> bool:
        """Whether every choice has ended, and a stop string did it: whoever computes them may go
        on. Otherwise the steps end by themselves."""
        return self._stopped and self._assembler.finished

    async def whole(self, steps: Steps) -> Answer:
        """The whole answer, once every choice has ended. `steps` is closed."""
        kv: dict[str, Any] | None = None
        builder = AnswerBuilder(self._form)
        async with contextlib.aclosing(steps):
            async for outputs in steps:
                for output in outputs:
                    kv = output.kv_transfer_params or kv
                    builder.add(self._feed(output))
                if self._satisfied:
                    break
        return builder.answer(
            self._assembler.usage(), kv_transfer_params=kv, ec_transfer_params=self._ec
        )

    async def events(self, first: list[RequestOutput], rest: Steps) -> AsyncGenerator[bytes, None]:
        """Server-sent events, from `first` on, which has been awaited already.

        An error on the way becomes one error event; the stream ends with the end mark either way.
        """
        builder = ChunkBuilder(self._form)
        try:
            async with contextlib.aclosing(rest):
                yield b"".join(encode_event(chunk) for chunk in builder.first_chunks())
                if data := self._chunks(builder, first):
                    yield data
                while not self._satisfied:
                    outputs = await anext(rest, None)
                    if outputs is None:
                        break
                    if data := self._chunks(builder, outputs):
                        yield data
            usage = builder.usage_chunk(self._assembler.usage())
            yield (encode_event(usage) if usage is not None else b"") + DONE
        except TriptychError as error:
            yield b"data: " + msgspec.json.encode(error.to_openai()) + b"\n\n" + DONE

    def _chunks(self, builder: ChunkBuilder, outputs: list[RequestOutput]) -> bytes:
        data = b""
        for output in outputs:
            gain = self._feed(output)
            chunk = builder.chunk(
                gain,
                self._assembler.usage(),
                kv_transfer_params=output.kv_transfer_params,
                ec_transfer_params=self._ec if gain.finish_reason is not None else None,
            )
            if chunk is not None:
                data += encode_event(chunk)
        return data

    def _feed(self, output: RequestOutput) -> Gain:
        if output.error is not None:
            raise from_info(output.error)
        gain = self._assembler.feed(output)
        if gain.stopped:
            self._stopped = True
            if self._stop_choice is not None:
                self._stop_choice(gain.index)
        return gain
