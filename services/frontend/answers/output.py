"""Token ids of a request back to text: per choice, with stop strings, finish reasons, usage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from protocol.openai_answers import PromptTokensDetails, Usage
from protocol.types import FinishReason, PositionLogprobs, RequestOutput
from services.frontend.answers.stop_strings import StopScanner
from services.frontend.detokenizer import Detokenizer
from services.frontend.parsing.heard import Heard, Part, Said
from services.frontend.parsing.reading import Reader
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer

_NOTHING = Heard()


@dataclass(frozen=True)
class Gain:
    """What one choice gained from one output."""

    index: int  # number of the choice
    text: str  # complete characters that no stop string can take back
    token_ids: list[int]  # may be ahead of the text
    # one for each of these tokens, None unless asked for
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None  # None while the choice goes on
    stop_reason: int | str | None = None  # stop string or token that ended it
    stopped: bool = False  # a stop string ended it and the engine does not know: abort it there
    heard: Heard = _NOTHING  # the text with the reasoning and calls around it, if it is read so

    @property
    def parts(self) -> tuple[Part, ...]:
        """Text, reasoning and pieces of calls, in the order in which the model wrote them."""
        return self.heard.parts or ((Said(self.text),) if self.text else ())


@dataclass
class _Choice:
    index: int
    detokenizer: Detokenizer
    scanner: StopScanner
    reader: Reader | None
    num_tokens: int = 0
    finished: bool = False


@dataclass
class _Step:
    """Text, tokens and stop string while one output is worked through."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    stop: str | None = None


class OutputAssembler:
    """All choices of one request. Feed it every output, in order; it can outlive a worker, so that
    a request that is continued elsewhere goes on in the same text.
    """

    def __init__(self, spec: OutputSpec, tokenizer: Tokenizer) -> None:
        self.spec = spec
        self._tokenizer = tokenizer
        self._hidden = _hidden(spec, tokenizer)
        # The tokenizer leaves out all special tokens or none; marks that readers need are special.
        self._skips = spec.skip_special_tokens and not self._hidden
        self._choices = [self._new_choice(index) for index in range(spec.n)]
        self._cached_tokens: int | None = None

    def _new_choice(self, index: int) -> _Choice:
        after = self.spec.prompt_token_ids
        return _Choice(
            index,
            self._tokenizer.detokenizer(skip_special_tokens=self._skips, after=after),
            StopScanner(self.spec.stop, include=self.spec.include_stop_str),
            self.spec.reading.reader(),
        )

    @property
    def finished(self) -> bool:
        return all(choice.finished for choice in self._choices)

    def unfinished(self) -> list[int]:
        """Choices that still need tokens."""
        return [choice.index for choice in self._choices if not choice.finished]

    def usage(self) -> Usage:
        """Counts so far; the cached part as the first output of a choice told it."""
        prompt = len(self.spec.prompt_token_ids)
        completion = sum(choice.num_tokens for choice in self._choices)
        details = None
        if self._cached_tokens is not None:
            audio = self.spec.audio_tokens or UNSET
            details = PromptTokensDetails(self._cached_tokens, audio)
        return Usage(prompt, completion, prompt + completion, details)

    def usage_of(self, index: int) -> Usage:
        """Counts of one choice so far."""
        prompt, completion = len(self.spec.prompt_token_ids), self._choices[index].num_tokens
        return Usage(prompt, completion, prompt + completion)

    def replay(self, index: int, token_ids: Sequence[int]) -> str:
        """Take in tokens that a choice emitted before, elsewhere; returns their text, which its
        client already has."""
        return self.feed(RequestOutput(self.spec.request_id, index, list(token_ids))).text

    def feed(self, output: RequestOutput) -> Gain:
        """What `output` adds. Outputs of a choice that has ended add nothing.

        `output.error` is the caller's to handle before.
        """
        choice = self._choices[output.index]
        if output.cached_tokens is not None and self._cached_tokens is None:
            self._cached_tokens = output.cached_tokens
        # A worker goes on until it hears that a stop string has ended the choice.
        if choice.finished:
            return Gain(choice.index, "", [])
        step = _Step()
        self._take_tokens(choice, output, step)
        if output.finish_reason is not None and step.stop is None:
            self._take_rest(choice, step)
        return self._gain(choice, output, step)

    def _take_tokens(self, choice: _Choice, output: RequestOutput, step: _Step) -> None:
        hidden = self._hidden_end(output)
        for position, token_id in enumerate(output.token_ids):
            choice.num_tokens += 1
            step.token_ids.append(token_id)
            if hidden and position == len(output.token_ids) - 1:
                return
            if token_id not in self._hidden:
                self._scan(choice, choice.detokenizer.push(token_id), step)
            if step.stop is not None:
                return

    def _hidden_end(self, output: RequestOutput) -> bool:
        """True if the last token is the one that ended the answer and is not shown."""
        if output.finish_reason != "stop" or self.spec.include_stop_str or not output.token_ids:
            return False
        return output.token_ids[-1] in self.spec.end_token_ids

    def _scan(self, choice: _Choice, text: str, step: _Step) -> None:
        if not self.spec.stop:
            step.text += text
            return
        # As vLLM: a stop string within the least tokens is text.
        armed = choice.num_tokens > self.spec.min_tokens
        scanned = choice.scanner.push(text, armed=armed)
        step.text += scanned.text
        step.stop = scanned.stop

    def _take_rest(self, choice: _Choice, step: _Step) -> None:
        """No more tokens come: give out what was held back."""
        self._scan(choice, choice.detokenizer.flush(), step)
        if step.stop is None:
            step.text += choice.scanner.flush()

    def _gain(self, choice: _Choice, output: RequestOutput, step: _Step) -> Gain:
        logprobs = output.logprobs
        if logprobs is not None:
            # The engine may be ahead of the stop string by some tokens.
            logprobs = logprobs[: len(step.token_ids)]
        finish, reason = output.finish_reason, output.stop_reason
        if step.stop is not None:
            finish, reason = "stop", step.stop
        choice.finished = finish is not None
        heard = None if choice.reader is None else self._heard(choice.reader, choice, step.text)
        return Gain(
            choice.index,
            step.text if heard is None else heard.text,
            step.token_ids,
            logprobs,
            finish,
            reason,
            stopped=step.stop is not None and output.finish_reason is None,
            heard=heard or _NOTHING,
        )

    def _heard(self, reader: Reader, choice: _Choice, text: str) -> Heard:
        heard = reader.push(text) if not choice.finished else reader.last(text)
        return heard if self.spec.show_reasoning else heard.without_reasoning()


def _hidden(spec: OutputSpec, tokenizer: Tokenizer) -> frozenset[int]:
    """Special tokens to leave out where some must be read; empty if none must."""
    marks = spec.reading.marks
    if not spec.skip_special_tokens or not marks & tokenizer.special:
        return frozenset()
    ids = (tokenizer.id(token) for token in tokenizer.special - marks)
    return frozenset(i for i in ids if i is not None)
