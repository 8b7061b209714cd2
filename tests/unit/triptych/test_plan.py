"""Which processes a stack consists of."""

import os
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.settings import resolve
from proxy.config import ProxyConfig
from tests.conftest import ModelDir
from tests.support.tiny_models import AUDIO_FAMILY, TEXT_FAMILIES, VISION_FAMILIES
from triptych.launch.options import ServeConfig
from triptych.launch.plan import (
    Service,
    mock_workers,
    proxy,
    roles,
    takes_media,
    takes_pictures,
    workers,
)
from triptych.launch.serve import main as serve
from triptych.launch.vllm import listings, vllm_workers


def value(service: Service, flag: str) -> str:
    return service.command[service.command.index(flag) + 1]


@pytest.mark.parametrize("family", [*VISION_FAMILIES, *TEXT_FAMILIES, AUDIO_FAMILY])
def test_the_kind_of_a_model(family: str, model_dir: ModelDir) -> None:
    """One that takes audio has encoders, and is asked nothing about pictures."""
    assert takes_pictures(model_dir(family)) == (family in VISION_FAMILIES)
    assert takes_media(model_dir(family)) == (family not in TEXT_FAMILIES)


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "tokenizer.json"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_a_folder_that_is_no_model_is_told_in_one_line(
    missing: str, reason: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    for file in model_dir("qwen2_vl").iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ConfigError) as refused:
        takes_pictures(tmp_path)
    (line,) = refused.value.message.splitlines()
    assert reason in line


def test_workers_have_ports_and_devices_in_turn_and_the_proxy_lists_them() -> None:
    config = ServeConfig(num_d=3, gpu_d="4,6", decode_port=2000, worker_flags="--dtype 'float32'")
    parts = roles(config, media=True)
    decode = [s for s in workers(config, parts) if s.name.startswith("decode")]
    urls = [f"http://127.0.0.1:{port}" for port in (2000, 2001, 2002)]
    assert [service.url for service in decode] == urls
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in decode] == ["4", "6", "4"]
    assert {value(service, "--dtype") for service in decode} == {"float32"}
    assert value(proxy(config, parts, "admin"), "--decode-servers-urls") == ",".join(urls)


@pytest.mark.parametrize(
    ("set_to", "flags", "written"),
    [("", "", True), ("false", "", False), ("", "--no-log-requests", False)],
)
def test_the_proxy_writes_a_line_for_each_request_unless_told_not_to(
    set_to: str, flags: str, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if set_to:
        monkeypatch.setenv("TRIPTYCH_LOG_REQUESTS", set_to)
    config = ServeConfig(proxy_flags=flags)
    service = proxy(config, roles(config, media=True), "admin")
    arguments = service.command[service.command.index("proxy") + 1 :]
    assert (
        resolve(ProxyConfig, arguments, {**os.environ, **service.environment}).log_requests
        is written
    )


def test_another_variable_may_give_workers_their_devices() -> None:
    config = ServeConfig(gpu_d="4", device_platform="xpu", device_affinity_env="MY_DEVICES")
    decode = [s for s in workers(config, roles(config, media=True)) if "decode" in s.name]
    assert [s.environment["MY_DEVICES"] for s in decode] == ["4"]
    assert "ZE_AFFINITY_MASK" not in decode[0].environment


def test_a_text_model_gets_no_encode_worker() -> None:
    config = ServeConfig(num_e=2)
    parts = roles(config, media=False)
    assert parts["encode"].count == 0
    assert value(proxy(config, parts, "admin"), "--encode-servers-urls") == ""


def test_without_prefill_workers_those_that_decode_do_both() -> None:
    config = ServeConfig(num_p=0, vllm="python3")
    parts = roles(config, media=True)
    mocked = {s.name: value(s, "--role") for s in mock_workers(config, parts)}
    assert mocked == {"encode-0": "encode", "decode-0": "prefill_decode"}
    assert [entry["role"] for entry in listings(config, parts)] == ["encode", "prefill_decode"]
    (decode,) = (s for s in vllm_workers(config, parts) if s.name == "decode-0")
    assert "--kv-transfer-config" not in decode.command


def test_vllm_workers_tell_of_their_events_where_the_master_listens() -> None:
    config = ServeConfig(vllm="python3", events_port=3000)
    parts = roles(config, media=True)
    encode, prefill, decode = vllm_workers(config, parts)
    told = listings(config, parts)
    assert [entry["url"] for entry in told] == [encode.url, prefill.url, decode.url]
    assert "--kv-events-config" not in encode.command
    for service, entry in ((prefill, told[1]), (decode, told[2])):
        config_of_events = value(service, "--kv-events-config")
        for endpoint in entry["events"][0].values():
            assert endpoint.replace("127.0.0.1", "*") in config_of_events
    assert told[0]["events"] == []
    assert told[1]["events"] != told[2]["events"]


def test_workers_of_the_role_any_stand_in_the_place_of_all_others() -> None:
    """The proxy hears of them from the master, which says what they serve."""
    config = ServeConfig(num_any=2, any_port=2000)
    parts = roles(config, media=True)
    started = list(workers(config, parts))
    assert [service.name for service in started] == ["any-0", "any-1"]
    assert {"services.pdfusion.any"} < set(started[0].command)
    assert [value(s, "--role") for s in mock_workers(config, parts)] == ["any", "any"]
    asked = proxy(config, parts, "admin")
    lists = [value(asked, f"--{role}-servers-urls") for role in ("encode", "prefill", "decode")]
    assert lists == ["", "", ""] and "--any-servers-urls" not in asked.command


@pytest.mark.parametrize("flags", [("--no-master",), ("--engine", "vllm")])
def test_workers_that_change_their_role_need_a_master_and_our_engine(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["demo", "--num-any", "2", *flags]) == 2
    assert capsys.readouterr().err.startswith("error: --num-any: ")
