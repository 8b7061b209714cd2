"""Audio through the real processes: the tokens of transformers' `generate()` in each topology."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
from transformers import AutoConfig

from services.frontend.audio.compressed import read_sound
from services.frontend.audio.reading import resampled
from tests.conftest import ModelDir
from tests.support.audio_files import RATE, AudioFile, audio_file, encoded
from tests.support.audio_reference import audio_inputs, generate_from_audio
from tests.support.clients import all_tokens, body_of, complete
from tests.support.conversations import LONG, asking, audio_cases
from tests.support.reference import Messages
from tests.support.stack import Process, Stack, call, idle, proxy, running
from tests.support.thinned import thinned
from tests.support.tiny_models import AUDIO_FAMILY

TOKENS = 8
CHAT = "/v1/chat/completions"
TOPOLOGIES = ("e+p+d", "e+pd", "one process", "e+p+d, openai")
ASKED = {"max_tokens": TOKENS, "ignore_eos": True}
HEARD = audio_file(1).data
DATA = "messages[0].content[0].input_audio.data"


@dataclass
class Topologies:
    """One proxy per topology, before the same workers."""

    stack: Stack
    workers: dict[str, Process]
    proxies: dict[str, Process]

    def generated(self, case: Messages) -> list[int]:
        return generate_from_audio(self.stack.model, case, TOKENS)

    @cached_property
    def expected(self) -> list[tuple[list[int], list[int]]]:
        """Prompt and answer of each case, for all topologies."""
        prompts = [audio_inputs(self.stack.model, case)["input_ids"][0] for case in audio_cases()]
        answers = map(self.generated, audio_cases())
        return [(prompt.tolist(), ids) for prompt, ids in zip(prompts, answers, strict=True)]

    @cached_property
    def by_url(self) -> tuple[Messages, list[int]]:
        case = asking(audio_file(9), "What do you hear?")
        return case, self.generated(case)

    @cached_property
    def compressed(self) -> list[tuple[str, bytes, list[int]]]:
        """Form and bytes of a file, and the answer to its samples at the model's rate."""
        found = []
        for form, codec, rate in (("mp3", "libmp3lame", 16_000), ("flac", "flac", 44_100)):
            data = encoded(form, codec, rate, 2)
            samples = resampled(read_sound(io.BytesIO(data), 2.0)[1], rate, RATE)
            case = asking(AudioFile(data, samples), "What do you hear?")
            found.append((form, data, self.generated(case)))
        return found

    @property
    def encoded(self) -> int:
        """Pieces of audio that were encoded so far."""
        workers = [self.workers[name] for name in ("encoder", "pdfusion")]
        return sum(call(f"{one.url}/integrity")[1]["counters"]["mm_encoded"] for one in workers)


@pytest.fixture(scope="module")
def topologies(model_dir: ModelDir) -> Iterator[Topologies]:
    with running(model_dir(AUDIO_FAMILY)) as stack:
        names = ("encoder", "prefill", "decode", "pdfusion")
        flags = ("--max-num-batched-tokens", "200", "--max-num-seqs", "16")
        workers = {name: stack.start(f"services.{name}", *flags) for name in names}
        for worker in workers.values():
            worker.wait_ready()
        encode, prefill, decode, one = ([worker] for worker in workers.values())
        limits = ("--max-media-bytes", "200000")
        proxies = {
            "e+p+d": proxy(stack, encode, prefill, decode, *limits),
            "e+pd": proxy(stack, encode, [], decode),
            "one process": proxy(stack, one, [], one),
            "e+p+d, openai": proxy(stack, encode, prefill, decode, "--dialect", "openai"),
        }
        yield Topologies(stack, workers, proxies)
        for worker in workers.values():
            idle(worker)
        assert set(stack.stop()) == {0}
        assert not stack.segments.exists()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_tokens_equal_generate(topology: str, topologies: Topologies) -> None:
    """All cases at the same moment, then one after the other: nothing is encoded again."""
    server, cases, expected = topologies.proxies[topology], audio_cases(), topologies.expected
    assert all_tokens(server, cases, **ASKED) == [ids for _, ids in expected]
    encoded = topologies.encoded
    assert encoded >= 5
    for case, (prompt, ids) in zip(cases, expected, strict=True):
        answer = complete(server, case, **ASKED)
        assert answer["choices"][0]["token_ids"] == ids
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        pads = prompt.count(_pad(topologies))
        assert usage["prompt_tokens_details"].get("audio_tokens", 0) == pads
    complete(server, asking("Before it something else:", audio_file(1), LONG), **ASKED)
    assert topologies.encoded == encoded


def by_who_reads(*kept: str) -> list[Any]:
    """Topologies of which the same process reads a file as in one that is kept are slow."""
    return thinned(([one] for one in TOPOLOGIES), lambda one: one in kept)


def _pad(topologies: Topologies) -> int:
    return int(AutoConfig.from_pretrained(topologies.stack.model).audio_token_id)


@pytest.mark.parametrize("topology", by_who_reads("one process", "e+p+d, openai"))
def test_audio_by_url(topology: str, topologies: Topologies) -> None:
    server, (case, expected) = topologies.proxies[topology], topologies.by_url
    body = body_of(case, **ASKED)
    url = f"data:audio/wav;base64,{base64.b64encode(audio_file(9).data).decode()}"
    body["messages"][0]["content"][0] = {"type": "audio_url", "audio_url": {"url": url}}
    status, answer = call(server.url + CHAT, body)
    assert status == 200, answer
    assert answer["choices"][0]["token_ids"] == expected
    shown = complete(server, case, **ASKED)["choices"][0]["message"]["content"]
    assert shown == answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("topology", by_who_reads("e+p+d", "e+p+d, openai"))
def test_compressed_audio(topology: str, topologies: Topologies) -> None:
    """The samples are those that FFmpeg decodes, at the model's rate."""
    server = topologies.proxies[topology]
    for form, data, expected in topologies.compressed:
        body = body_of(asking("What do you hear?"), **ASKED)
        body["messages"][0]["content"].insert(0, _part_of(data, form))
        status, answer = call(server.url + CHAT, body)
        assert status == 200, answer
        assert answer["choices"][0]["token_ids"] == expected


def _asking_with(audio: Any) -> dict[str, Any]:
    part = {"type": "input_audio", "input_audio": audio}
    return {"model": "tiny", "messages": [{"role": "user", "content": [part]}], "max_tokens": 2}


def _part_of(data: bytes, form: str) -> dict[str, Any]:
    audio = {"data": base64.b64encode(data).decode(), "format": form}
    return {"type": "input_audio", "input_audio": audio}


def _inline(data: bytes, form: str = "wav") -> dict[str, Any]:
    return _asking_with({"data": base64.b64encode(data).decode(), "format": form})


BAD = {
    "cut short": (_inline(HEARD[:9000]), 400, DATA, "invalid_audio"),
    "no audio": (_inline(b"hello, world" * 9), 400, DATA, "invalid_audio"),
    "broken FLAC": (_inline(b"fLaC" + bytes(99), "flac"), 400, DATA, "invalid_audio"),
    "too long": (_inline(audio_file(1, 2.1).data), 400, DATA, "invalid_audio"),
    "too short": (_inline(audio_file(1, 0.01).data), 400, DATA, "invalid_audio"),
    "too many bytes": (_inline(HEARD + bytes(300_000)), 413, DATA, None),
    "bad base64": (_asking_with({"data": "???", "format": "wav"}), 400, DATA, None),
    "not as it says": (
        _inline(HEARD, "mp3"), 400, "messages[0].content[0].input_audio.format", "invalid_audio"),
    "no format": (_asking_with({"data": "AAAA"}), 400, "messages[0].content[0].input_audio", None),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_audio_is_told_what_is_wrong(name: str, topologies: Topologies) -> None:
    body, status, param, code = BAD[name]
    got, answer = call(topologies.proxies["e+p+d"].url + CHAT, body)
    error = answer["error"]
    assert (got, error["message"] != "") == (status, True), answer
    assert (error["param"] or "").startswith(param)
    assert code is None or error["code"] == code
