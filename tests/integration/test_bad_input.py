"""Bad requests get OpenAI's errors with the right status, field and code; nothing leaks."""

import base64
import http.server
import io
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.conftest import ModelDir
from tests.support.clips import clip, sound
from tests.support.conversations import picture
from tests.support.engines import png
from tests.support.stack import Process, Stack, call, idle, proxy, running

CHAT = "/v1/chat/completions"


@dataclass
class Served:
    stack: Stack
    proxy: Process
    workers: list[Process]
    folder: Path


@pytest.fixture(scope="module")
def served(model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("media")
    (folder / "inside.png").write_bytes(png(picture(1)))
    (folder.parent / "outside.png").write_bytes(png(picture(1)))
    (folder / "link.png").symlink_to(folder.parent / "outside.png")
    with running(model_dir("qwen2_5_vl")) as stack:
        workers = [stack.start(f"services.{name}") for name in ("encoder", "prefill", "decode")]
        for worker in workers:
            worker.wait_ready()
        encode, prefill, decode = workers
        flags = (
            "--allowed-local-media-path", str(folder), "--max-media-bytes", "200000",
            "--max-media-pixels", "1000000", "--media-timeout", "1", "--max-body-bytes", "2000000",
        )  # fmt: skip
        yield Served(stack, proxy(stack, [encode], [prefill], [decode], *flags), workers, folder)
        for worker in workers:
            idle(worker)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}


def showing(url: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return chat(messages=[{"role": "user", "content": [part]}], max_tokens=2)


def filming(data: bytes, url: str = "") -> dict[str, Any]:
    url = url or f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    part = {"type": "video_url", "video_url": {"url": url}}
    text = {"type": "text", "text": "What happens?"}
    return chat(messages=[{"role": "user", "content": [text, part]}], max_tokens=2)


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def solid(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("1", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


URL = "messages[0].content[0].image_url.url"
CLIP = "messages[0].content[1].video_url.url"
FILM = clip(1, frames=40, size=(320, 240)).data

BAD = {
    "malformed json": (b'{"model": "tiny", ', 400, None, "malformed_json"),
    "not an object": (b"[]", 400, None, None),
    "no messages": ({"model": "tiny"}, 400, "messages", None),
    "empty messages": (chat(messages=[]), 400, "messages", None),
    "unknown model": (chat(model="gpt-4"), 404, "model", "model_not_found"),
    "messages of wrong type": (chat(messages="hi"), 400, "messages", None),
    "content of wrong type": (
        chat(messages=[{"role": "user", "content": 5}]), 400, "messages[0].content", None),
    "unknown role": (
        chat(messages=[{"role": "king", "content": "x"}]), 400, "messages[0].role", None),
    "unknown part": (
        chat(messages=[{"role": "user", "content": [{"type": "smell"}]}]), 400,
        "messages[0].content[0].type", None),
    "max_tokens zero": (chat(max_tokens=0), 400, "max_tokens", None),
    "max_tokens negative": (chat(max_tokens=-3), 400, "max_tokens", None),
    "max_tokens text": (chat(max_tokens="many"), 400, "max_tokens", None),
    "max_tokens huge": (chat(max_tokens=10**9), 400, "max_tokens", None),
    "temperature": (chat(temperature=-1), 400, "temperature", None),
    "top_p": (chat(top_p=0), 400, "top_p", None),
    "n": (chat(n=0), 400, "n", None),
    "stop": (chat(stop=[""]), 400, "stop", None),
    "logit_bias": (chat(logit_bias={"99999999": 1}), 400, "logit_bias", None),
    "prompt too long": (
        chat(messages=[{"role": "user", "content": "word " * 20_000}]), 400, "messages",
        "context_length_exceeded"),
    "unsupported scheme": (showing("ftp://example.com/x.png"), 400, URL, None),
    "unreachable": (showing("http://nowhere.invalid/x.png"), 400, URL, None),
    "private address": (showing("http://127.0.0.1:1/x.png"), 400, URL, None),
    "private address, written differently": (showing("http://[::ffff:127.0.0.1]/"), 400, URL, None),
    "metadata service": (showing("http://169.254.169.254/latest"), 400, URL, None),
    "empty picture": (showing("data:image/png;base64,"), 400, URL, None),
    "bad base64": (showing("data:image/png;base64,???"), 400, URL, None),
    "no picture": (showing(data_url(b"hello, world" * 9)), 400, URL, None),
    "picture of too many pixels": (showing(data_url(solid(2000, 2000))), 413, URL, None),
    "picture of too many bytes": (showing(data_url(b"\x89PNG" + b"0" * 300_000)), 413, URL, None),
    "picture too narrow": (showing(data_url(solid(1, 900))), 400, URL, None),
    "clip cut short": (filming(FILM[: len(FILM) // 2]), 400, CLIP, "invalid_video"),
    "no clip": (filming(solid(20, 20)), 400, CLIP, "invalid_video"),
    "clip without pictures": (filming(sound()), 400, CLIP, "invalid_video"),
    "clip of too many pixels": (
        filming(clip(2, frames=2, size=(1200, 1000)).data), 400, CLIP, "invalid_video"),
    "clip of too many bytes": (filming(FILM + bytes(200_000)), 413, CLIP, None),
    "clip at a private address": (filming(b"", "http://127.0.0.1:1/x.mp4"), 400, CLIP, None),
    "body too large": (b"x" * 3_000_000, 413, None, "payload_too_large"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_told_what_is_wrong(name: str, served: Served) -> None:
    body, status, param, code = BAD[name]
    got, answer = call(served.proxy.url + CHAT, body)
    error = answer["error"]
    assert got == status, answer
    assert isinstance(error["message"], str) and error["message"]
    if param is not None:
        assert error["param"] == param, answer
    if code is not None:
        assert error["code"] == code, answer


def test_local_files_only_from_the_allowed_folder(served: Served) -> None:
    url = served.proxy.url + CHAT
    assert call(url, showing(f"file://{served.folder}/inside.png"))[0] == 200
    for path in ("../outside.png", "link.png", "missing.png", "%2e%2e/outside.png"):
        status, answer = call(url, showing(f"file://{served.folder}/{path}"))
        assert status == 400 and answer["error"]["param"] == URL, path
    assert call(url, showing("file:///etc/passwd"))[0] == 400


def test_a_picture_cut_short_is_the_clients_error(served: Served) -> None:
    buffer = io.BytesIO()
    picture(1).save(buffer, "JPEG")
    status, answer = call(
        served.proxy.url + CHAT, showing(data_url(buffer.getvalue()[: buffer.tell() * 2 // 3]))
    )
    assert status == 400, answer
    assert "picture" in answer["error"]["message"]


def test_a_clip_with_damage_behind_its_first_frames_breaks_nothing(served: Served) -> None:
    """What a decoder can conceal is seen by the model; anything else is the client's error."""
    place = FILM.index(b"mdat") + len(FILM) // 4
    damaged = FILM[:place] + b"\xff" * 2000 + FILM[place + 2000 :]
    status, answer = call(served.proxy.url + CHAT, filming(damaged))
    assert status == 200 or (status == 400 and "clip" in answer["error"]["message"]), answer
    assert call(served.proxy.url + CHAT, filming(FILM))[0] == 200


def test_a_server_that_does_not_answer_is_given_up(model_dir: ModelDir) -> None:
    class Silent(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            threading.Event().wait(3)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with running(model_dir("qwen2_5_vl")) as stack:
        worker = stack.start("services.pdfusion", "--allow-private-media", "--media-timeout", "0.5")
        worker.wait_ready()
        status, answer = call(
            worker.url + CHAT, showing(f"http://127.0.0.1:{server.server_port}/x.png")
        )
        assert status == 400 and answer["error"]["param"] == URL
    server.shutdown()


def test_the_generate_call_checks_what_it_is_given(served: Served) -> None:
    prefill = served.workers[1].url + "/inference/v1/generate"
    good = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2, "temperature": 0}}
    assert call(prefill, good)[0] == 200
    features = {
        "mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 9}]}
    }  # fmt: skip
    bad = {
        "token_ids": [
            {**good, "token_ids": []},
            {**good, "token_ids": [-1]},
            {**good, "token_ids": [10**6]},
            {**good, "token_ids": "text"},
            {**good, "token_ids": [1] * 100_000},
        ],
        "features": [{**good, "features": features}],
        "model": [{**good, "model": "other"}],
    }
    for param, bodies in bad.items():
        for body in bodies:
            status, answer = call(prefill, body)
            assert status in (400, 404), answer
            assert answer["error"]["param"] == param, answer
    encode = served.workers[0].url
    assert call(f"{encode}/inference/v1/generate", good)[0] == 404
    status, answer = call(f"{encode}/inference/v1/encode", b"\xc1garbage")
    assert status == 400 and answer["error"]["message"]


def test_unknown_routes_and_methods_answer_in_the_same_form(served: Served) -> None:
    for url in (served.proxy.url, *(worker.url for worker in served.workers)):
        status, answer = call(f"{url}/v1/nothing")
        assert status == 404 and answer["error"]["message"]
        status, answer = call(f"{url}{CHAT}")
        assert status == 405 and answer["error"]["message"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--dtype", "int3"),
        ("--block-size", "many"),
        ("--model", "/nowhere"),
        ("--ec-transfer-config", "carrier-pigeon"),
        ("--ec-transfer-config", '{"ec_connector": "shared_storage"}'),
        ("--kv-transfer-config", "{broken"),
        ("--allowed-local-media-path", "/nowhere"),
    ],
)
def test_a_bad_flag_stops_a_worker_at_once(flags: tuple[str, str], model_dir: ModelDir) -> None:
    with running(model_dir("llama")) as stack:
        process = stack.start("services.decode", *flags)
        status, lines = process.refusal()
        assert status == 2 and lines[-1].startswith(f"error: {flags[0]}: ")


@pytest.mark.parametrize("size", [None, 3, 1000])
def test_weights_that_are_missing_or_cut_short_stop_a_worker_with_one_line(
    size: int | None, model_dir: ModelDir, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_dir("llama"), model)
    for file in model.glob("*.safetensors"):
        if size is None:
            file.unlink()
        else:
            os.truncate(file, size)
    with running(model) as stack:
        process = stack.start("services.decode", "--log-level", "error")
        status, (line,) = process.refusal()
        assert status == 2 and line.startswith("error: --model: cannot read the weights")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_stops_a_worker_with_one_line(model_dir: ModelDir) -> None:
    with running(model_dir("llama")) as stack:
        process = stack.start("services.decode", "--device", "cuda", "--log-level", "error")
        status, (line,) = process.refusal()
        assert status == 2 and line.startswith("error: --device: cuda cannot be used")
