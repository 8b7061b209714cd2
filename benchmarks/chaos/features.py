"""What requests and workers can have beyond pictures and text, each with a name: flags of workers
and questions that need them."""

from __future__ import annotations

import base64
import http.client
import io
import json
import random
import tempfile
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.pictures import sample
from benchmarks.common.scenes import draw, random_scene
from benchmarks.soak.chat import Answer, Asked
from benchmarks.soak.load import KINDS, about_pictures
from benchmarks.soak.stack import MODEL

_FRAMES, _FRAMES_A_SECOND = 8, 4
_RATE, _SOUND_S = 16_000, 1.0
_TIE = 1e-4  # of a model with random weights, two of whose tokens are often about as likely
_RANK = 4
_ADAPTERS = ("one", "two")
_ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj")


@dataclass(frozen=True)
class Feature:
    """What is added to a fleet. `flags`: of workers, `everywhere` of proxies too. `kinds`: of
    questions that need it, asked beside the usual ones, or `alone`; `make` makes one by number."""

    flags: Sequence[str] = ()
    kinds: Sequence[str] = ()
    make: Callable[[str, int], Asked] = about_pictures
    alone: bool = False
    everywhere: bool = False
    tie: float = 0.0  # answers may part at leads of so much (of `Load.tie`)


@dataclass(frozen=True)
class Added:
    """By all features of a run together. `flags`: of workers. `kinds`: all that are asked."""

    flags: Sequence[str]
    proxy_flags: Sequence[str]
    kinds: Sequence[str]
    makers: Mapping[str, Callable[[str, int], Asked]]  # of kinds that are not the usual ones
    tie: float

    def make(self, kind: str, number: int) -> Asked:
        return self.makers.get(kind, about_pictures)(kind, number)


def added(names: Sequence[str], model: str, folder: Path) -> Added:
    """By the features of these names."""
    features = [feature(name, model, folder) for name in names]
    kinds = [kind for one in features for kind in one.kinds]
    usual = () if any(one.alone for one in features) else KINDS
    makers = {kind: one.make for one in features for kind in one.kinds}
    flags = [flag for one in features for flag in one.flags]
    shared = [flag for one in features if one.everywhere for flag in one.flags]
    tie = max((one.tie for one in features), default=0.0)
    return Added(flags, shared, (*usual, *kinds), makers, tie)


@dataclass(frozen=True)
class _Media:
    """One medium and a question about it. `part`: of the message."""

    kind: str
    part: dict[str, Any] = field(repr=False)
    text: str

    def openai_messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [self.part, {"type": "text", "text": self.text}]}]


@dataclass(frozen=True)
class _AskedVector(Asked):
    """For the vector of a text or of a conversation with pictures, with any parameters."""

    @property
    def path(self) -> str:
        return "/v1/embeddings"

    def body(self, stream: bool) -> bytes:
        return json.dumps({"model": MODEL, "messages": self.question.openai_messages()}).encode()

    def answer(self, response: http.client.HTTPResponse, stream: bool) -> Answer:
        (one,) = json.loads(response.read())["data"]
        vector = tuple(one["embedding"])
        return Answer("", (len(vector),), vector=vector)


def _clip(number: int) -> bytes:
    """An MP4 file of drawn scenes that follow one another; another number is another clip."""
    import av  # of the extra video

    chance = random.Random(number)
    frames = [draw(random_scene(chance)) for _ in range(_FRAMES)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "clip.mp4"
        with av.open(str(file), "w") as container:
            stream: Any = container.add_stream("mpeg4", rate=_FRAMES_A_SECOND)
            stream.width, stream.height = frames[0].size
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_image(frame)))
            container.mux(stream.encode())
        return file.read_bytes()


def _about_clips(kind: str, number: int) -> Asked:
    url = f"data:video/mp4;base64,{base64.b64encode(_clip(number)).decode()}"
    part = {"type": "video_url", "video_url": {"url": url}}
    return Asked(_Media("clip", part, "Describe the image."))


def _sound(number: int) -> bytes:
    """A WAV file of tones and noise; another number is another sound."""
    chance = np.random.default_rng(number)
    time = np.arange(round(_RATE * _SOUND_S)) / _RATE
    pitches = chance.uniform(100, 3000, 4)
    heard = sum(0.15 * np.sin(2 * np.pi * pitch * time) for pitch in pitches)
    heard = heard + chance.normal(0, 0.01, time.shape)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(_RATE)
        writer.writeframes(np.round(np.clip(heard, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def _about_sounds(model: str, kind: str, number: int) -> Asked:
    named = (("model", model),)
    if kind != "sound":
        return Asked(sample(kind, number), named)
    data = base64.b64encode(_sound(number)).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return Asked(_Media("sound", part, "What do you hear?"), named)


def _about_adapters(kind: str, number: int) -> Asked:
    question = sample(KINDS[number % len(KINDS)], number)
    return Asked(question, (("model", _ADAPTERS[number % len(_ADAPTERS)]),))


def _vectors(kind: str, number: int) -> Asked:
    return _AskedVector(sample(kind, number))


def _adapter(folder: Path, seed: int) -> Path:
    """A random LoRA adapter of the demonstration model, in PEFT's form."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    chance = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    with safe_open(f"{MODEL}/model.safetensors", "np") as weights:
        for key in weights.keys():  # noqa: SIM118 -- the file is no mapping
            path = key.removesuffix(".weight").replace(
                "model.layers", "model.language_model.layers"
            )
            if path == key or not path.endswith(_ADAPTED) or "visual" in path:
                continue
            rows, columns = weights.get_slice(key).get_shape()
            for part, shape in (("A", (_RANK, columns)), ("B", (rows, _RANK))):
                made = chance.normal(0, 0.5 / shape[1] ** 0.5, shape).astype(np.float32)
                tensors[f"base_model.model.{path}.lora_{part}.weight"] = made
    folder.mkdir()
    targets = [name.rpartition(".")[2] for name in _ADAPTED]
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def _lora(folder: Path) -> Feature:
    made = [f"{name}={_adapter(folder / name, seed)}" for seed, name in enumerate(_ADAPTERS)]
    flags = ("--enable-lora", "--max-lora-rank", str(_RANK), "--lora-modules", ",".join(made))
    return Feature(flags, ("adapter", "adapter"), _about_adapters)


def _guessing(**config: Any) -> Feature:
    return Feature(("--speculative-config", json.dumps({"num_speculative_tokens": 3, **config})))


NAMES = ("clips", "lora", "ngram", "draft-model", "int8-kv", "int8", "host-memory", "embeddings",
         "sounds")  # fmt: skip


def feature(name: str, model: str, folder: Path) -> Feature:
    """By its name, one of `NAMES`; what it needs is written to `folder`."""
    if name == "lora":
        return _lora(folder)
    return {
        "clips": Feature((), ("clip", "clip"), _about_clips),
        "ngram": _guessing(method="ngram"),
        "draft-model": _guessing(method="draft_model", model=MODEL),
        "int8-kv": Feature(("--kv-cache-dtype", "int8")),
        "int8": Feature(("--quantization", "int8")),
        "host-memory": Feature(("--kv-host-memory", "0.1")),
        "embeddings": Feature(
            ("--task", "embed"),
            ("describe", "one_of_two", "text"),
            _vectors,
            alone=True,
            everywhere=True,
        ),
        "sounds": Feature(
            (), ("sound", "sound", "text"), partial(_about_sounds, model), alone=True, tie=_TIE
        ),
    }[name]
