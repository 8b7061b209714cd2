"""One request, timed where its bytes arrive."""

import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from benchmarks.serve.args import Settings
from benchmarks.serve.datasets import Sample
from benchmarks.serve.sse import DONE, Chunk, SSEParser, describe_error, error_text

NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


class StreamError(Exception):
    """A stream that says it failed, or stops before its end."""


@dataclass(frozen=True)
class Prepared:
    """A request ready to be sent: encoding a picture must not delay another request's clock."""

    body: bytes
    request_id: str
    prompt_len: int
    answer: str | None
    kind: str


@dataclass
class Outcome:
    """What came of a request. Times in seconds."""

    prompt_len: int = 0  # tokens
    start: float = 0.0  # on the clock of `time.perf_counter`
    queued: float = 0.0  # waited for the concurrency limit before `start`
    ttft: float = 0.0  # until the first token
    itls: list[float] = field(default_factory=list)  # between chunks
    latency: float = 0.0  # until the last token
    output_len: int = 0  # tokens
    text: str = ""  # the answer
    error: str = ""  # why it failed, "" if it did not

    @property
    def success(self) -> bool:
        """Whether the whole answer came."""
        return not self.error

    @property
    def tpot(self) -> float:
        """Mean time per output token after the first; 0 if there is only one."""
        return (self.latency - self.ttft) / (self.output_len - 1) if self.output_len > 1 else 0.0


def prepare(sample: Sample, settings: Settings, model: str, request_id: str) -> Prepared:
    """The request's body, as `vllm bench serve` sends it."""
    body: dict[str, Any] = {"model": model}
    if settings.is_chat:
        body["messages"] = sample.messages or _messages(sample)
        body["max_completion_tokens"] = sample.output_len
    else:
        body["prompt"] = sample.prompt
        body["max_tokens"] = sample.output_len
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if settings.ignore_eos:
        body["ignore_eos"] = True
    body |= settings.sampling | settings.extra_body
    encoded = msgspec.json.encode(body)
    return Prepared(encoded, request_id, sample.prompt_len, sample.answer, sample.kind)


def _messages(sample: Sample) -> list[dict[str, Any]]:
    text = {"type": "text", "text": sample.prompt}
    images = [{"type": "image_url", "image_url": {"url": url}} for url in sample.images]
    return [{"role": "user", "content": [text, *images]}]


class Client:
    """Sends requests to one endpoint."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def send(self, request: Prepared) -> Outcome:
        """Never raises for what the server or the network does: that is the outcome's `error`."""
        outcome = Outcome(prompt_len=request.prompt_len, start=time.perf_counter())
        headers = {"Content-Type": "application/json", "x-request-id": request.request_id}
        try:
            async with self._session.post(
                self._url, data=request.body, headers=headers
            ) as response:
                if response.status != 200:
                    said = error_text(await response.read()) or response.reason
                    raise StreamError(f"HTTP {response.status}: {said}")
                await _receive(response, _Recorder(outcome))
        except (StreamError, msgspec.MsgspecError) as error:
            outcome.error = str(error)
        except NETWORK_ERRORS as error:
            outcome.error = f"{type(error).__name__}: {error}"
        return outcome


async def _receive(response: aiohttp.ClientResponse, recorder: "_Recorder") -> None:
    parser = SSEParser()
    async for piece in response.content.iter_any():
        now = time.perf_counter()
        for event in parser.feed(piece):
            recorder.event(event, now)
    for event in parser.close():
        recorder.event(event, time.perf_counter())
    recorder.close()


class _Recorder:
    """Writes the events of a stream into an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._decoder = msgspec.json.Decoder(Chunk)
        self._texts: list[str] = []
        self._last = outcome.start
        self._chunks = 0
        self._ended = False

    def event(self, data: bytes, now: float) -> None:
        """Takes one event that arrived at `now`."""
        if data.strip() == DONE:
            self._ended = True
            return
        chunk = self._decoder.decode(data)
        if chunk.error:
            raise StreamError(f"in the stream: {describe_error(chunk.error)}")
        for choice in chunk.choices[:1]:
            self._ended = self._ended or choice.finish_reason is not None
            if choice.has_token:
                self._token(choice.added, now)
        if (usage := chunk.usage) is not None:
            self._outcome.output_len = usage.completion_tokens or self._outcome.output_len
            self._outcome.prompt_len = usage.prompt_tokens or self._outcome.prompt_len

    def close(self) -> None:
        """Completes the outcome. Raises StreamError if the stream broke off or had no token."""
        outcome = self._outcome
        outcome.text = "".join(self._texts)
        outcome.latency = self._last - outcome.start
        outcome.output_len = outcome.output_len or self._chunks
        if not self._ended:
            raise StreamError("the stream ended without finish_reason or [DONE]")
        if not self._chunks:
            raise StreamError("the stream had no token")

    def _token(self, text: str, now: float) -> None:
        if self._chunks:
            self._outcome.itls.append(now - self._last)
        else:
            self._outcome.ttft = now - self._outcome.start
        self._chunks += 1
        self._last = now
        self._texts.append(text)
