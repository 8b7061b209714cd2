"""From the outputs of a rendered request to the bytes of its answer; proxy and workers share it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from protocol.errors import TriptychError, from_info
from protocol.openai_answers import DONE, Answer, Usage, encode_event
from protocol.types import RequestOutput
from services.frontend.answers.form import AnswerForm, ChunkBuilder
from services.frontend.answers.output import Gain, OutputAssembler
from services.frontend.answers.whole import AnswerBuilder
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer

Steps = AsyncGenerator[list[RequestOutput], None]


class Answering:
    """One request's way back. `stop_choice` is told of a choice that a stop string has ended, so
    that its computation can stop; `ec_transfer_params` go with the answer's end."""

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
        self._builder = ChunkBuilder(self._form)
        self._stop_choice = stop_choice
        self._stopped = False
        self._ec = ec_transfer_params
        self._kv: dict[str, Any] | None = None

    @property
    def _satisfied(self) -> bool:
        """Whether every choice has ended, and a stop string did it: they may be computed
        further. Otherwise the steps end by themselves."""
        return self._stopped and self._assembler.finished

    async def whole(self, steps: Steps) -> Answer:
        """The whole answer, once every choice has ended. `steps` is closed."""
        builder = AnswerBuilder(self._form)
        async with contextlib.aclosing(self.gains(steps)) as all_gains:
            async for gains in all_gains:
                for gain in gains:
                    builder.add(gain)
        return builder.answer(
            self.usage(), kv_transfer_params=self._kv, ec_transfer_params=self._ec
        )

    async def gains(self, steps: Steps) -> AsyncGenerator[list[Gain], None]:
        """What the choices gain, until every one has ended. `steps` is closed."""
        async with contextlib.aclosing(steps):
            async for outputs in steps:
                for output in outputs:
                    self._kv = output.kv_transfer_params or self._kv
                yield [self._feed(output) for output in outputs]
                if self._satisfied:
                    break

    def usage(self) -> Usage:
        """Tokens so far."""
        return self._assembler.usage()

    async def events(self, first: list[RequestOutput], rest: Steps) -> AsyncGenerator[bytes, None]:
        """Server-sent events, from `first` on, which has been awaited already.

        An error on the way becomes one error event; the stream ends with the end mark either way.
        """
        try:
            async with contextlib.aclosing(self.chunks(first, rest)) as chunks:
                async for data in chunks:
                    yield data
            yield self.end(self.usage())
        except TriptychError as error:
            yield failed(error)

    async def chunks(self, first: list[RequestOutput], rest: Steps) -> AsyncGenerator[bytes, None]:
        """As `events`, without the stream's end; an error is raised."""
        async with contextlib.aclosing(rest):
            if data := b"".join(map(encode_event, self._builder.first_chunks())):
                yield data
            if data := self._chunks(first):
                yield data
            # `first` may have ended all choices, of which an engine that goes on need not be heard.
            while not self._satisfied:
                outputs = await anext(rest, None)
                if outputs is None:
                    break
                if data := self._chunks(outputs):
                    yield data

    def end(self, usage: Usage) -> bytes:
        """What a stream ends with; `usage` is shown if the client asked for it."""
        chunk = self._builder.usage_chunk(usage)
        return (encode_event(chunk) if chunk is not None else b"") + DONE

    def _chunks(self, outputs: list[RequestOutput]) -> bytes:
        data, spec = b"", self._form.spec
        for output in outputs:
            gain = self._feed(output)
            # Most requests ask for neither, and this runs for each token.
            usage = self._assembler.usage_of(gain.index) if spec.continuous_usage else None
            echo = self._builder.echo(gain.index, usage) if spec.echo else None
            chunk = self._builder.chunk(
                gain,
                usage,
                kv_transfer_params=output.kv_transfer_params,
                ec_transfer_params=self._ec if gain.finish_reason is not None else None,
            )
            data += b"".join(encode_event(c) for c in (echo, chunk) if c is not None)
        return data

    def _feed(self, output: RequestOutput) -> Gain:
        if output.error is not None:
            raise from_info(output.error)
        # With the first output alone.
        if output.prompt_logprobs is not None:
            self._form.logprobs.take_prompt(output.prompt_logprobs)
        if self._form.spec.prompt_only:
            output = RequestOutput(
                output.request_id,
                output.index,
                logprobs=[],
                # The one token is not answered, so its finish reason says nothing of the prompt.
                finish_reason=output.finish_reason and "length",
                cached_tokens=output.cached_tokens,
                kv_transfer_params=output.kv_transfer_params,
            )
        gain = self._assembler.feed(output)
        if gain.stopped:
            self._stopped = True
            if self._stop_choice is not None:
                self._stop_choice(gain.index)
        return gain


async def with_first(first: list[RequestOutput], rest: Steps) -> Steps:
    """`first`, which has been awaited already, and what follows. `rest` is closed."""
    async with contextlib.aclosing(rest):
        yield first
        async for outputs in rest:
            yield outputs


def failed(error: TriptychError) -> bytes:
    """What a stream ends with that has failed."""
    return b"data: " + msgspec.json.encode(error.to_openai()) + b"\n\n" + DONE
