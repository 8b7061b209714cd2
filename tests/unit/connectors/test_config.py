"""What the flags of connectors accept, and what they say to the rest."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from connectors.config import ECConfig, KVConfig, parse_ec, parse_kv
from connectors.ec.arena import ArenaEC
from connectors.factory import Connectors
from connectors.kv.pull import PullKV
from protocol.errors import ConfigError


def ec(**fields: Any) -> ECConfig:
    return parse_ec(json.dumps({"ec_connector": "shm", **fields}))


def kv(**fields: Any) -> KVConfig:
    return parse_kv(json.dumps({"kv_connector": "shm", **fields}))


@pytest.mark.parametrize(
    ("transport", "kind"),
    [("local", ""), ("shm", "model:shm"), ("shared_storage", "model:shared_storage")],
)
def test_embeddings_are_shared_by_workers_of_one_model_and_transport(
    transport: str, kind: str
) -> None:
    path = {"shared_storage_path": "/tmp"}
    config = ec(ec_connector=transport, ec_connector_extra_config=path)
    assert Connectors(config, KVConfig()).ec_kind("model") == kind


def test_vllms_own_form_is_understood() -> None:
    text = """{"ec_connector": "ECExampleConnector", "ec_role": "ec_producer",
        "ec_buffer_size": 1e9, "ec_ip": "127.0.0.1", "ec_port": 14579.0,
        "ec_connector_extra_config": {"shared_storage_path": "/tmp/ec", "ec_lease_duration": 10}}"""
    config = parse_ec(text)
    assert config.transport == "shared_storage" and config.path == "/tmp/ec"
    assert (config.ec_buffer_size, config.port, config.lease_s) == (10**9, 14579, 10.0)


BAD = [
    {"ec_buffer_size": -5}, {"ec_buffer_size": 0}, {"ec_buffer_size": 1.5},
    {"ec_buffer_size": "1e9"}, {"ec_buffer_size": 1 << 62}, {"ec_port": -1}, {"ec_port": 70_000},
    {"ec_role": "ec_nobody"}, {"ec_connector_extra_config": [1]}, {"ec_connector_extra_config": 5},
    {"ec_connector_extra_config": {"ec_lease_duration": -1}},
    {"ec_connector_extra_config": {"load_timeout_s": 0}},
    {"ec_connector_extra_config": {"ec_timeout": 1e300}},
    {"ec_connector_extra_config": {"landing_size": -1}},
    {"ec_connector_extra_config": {"peers": [["h", 0.5]]}},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD, ids=json.dumps)
def test_bad_values_are_an_error_that_names_the_flag(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--ec-transfer-config"):
        ec(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"kv_port": 1 << 16}, {"kv_connector_extra_config": "x"},
     {"kv_connector_extra_config": {"kv_lease_duration": -1}},
     {"kv_connector_extra_config": {"kv_timeout": 0}}],
    ids=json.dumps,
)  # fmt: skip
def test_bad_values_of_kv_are_too(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--kv-transfer-config"):
        kv(**fields)


def test_one_port_for_both_is_an_error_that_names_both_flags(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    extra = {"path": str(tmp_path)}
    connectors = Connectors(
        ec(ec_port=port, ec_connector_extra_config=extra),
        kv(kv_port=port, kv_connector_extra_config=extra),
    )
    made = connectors.make_ec("model", produces=True)
    try:
        with pytest.raises(ConfigError, match=r"ec_port.*kv_port"):
            connectors.make_kv("layout", "cpu")
    finally:
        made.close()


@pytest.mark.parametrize("own", [{"path": "kv"}, {"kv_timeout": 3.0}, {}], ids=json.dumps)
def test_kv_has_the_folder_and_the_timeout_that_it_asks_for(
    tmp_path: Path, own: dict[str, Any]
) -> None:
    """Peers that have no EC look for its memory there."""
    shared = {"path": str(tmp_path / "ec")}
    wanted = shared | own
    wanted["path"] = str(tmp_path / wanted["path"])
    connectors = Connectors(
        ec(ec_connector_extra_config=shared), kv(kv_connector_extra_config=wanted)
    )
    made = connectors.make_ec("model", produces=True), connectors.make_kv("layout", "cpu")
    try:
        assert isinstance(made[0], ArenaEC) and isinstance(made[1], PullKV)
        made[1].allocate(2, 1024, torch.float32)
        assert len(list(Path(wanted["path"]).glob("region-kv-*"))) == 1
        assert made[1]._node.peers._timeout == wanted.get("kv_timeout", 20.0)
        assert made[0]._node.peers._timeout == 20.0
        assert (made[0]._node is made[1]._node) == (not own)
    finally:
        for one in made:
            one.close()


def test_vllms_variables_place_nixls_side_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "5559")
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "10.0.0.1")
    monkeypatch.setenv("VLLM_EC_SIDE_CHANNEL_PORT", "5601")
    found = kv(kv_connector="NixlConnector")
    assert (found.host, found.port) == ("10.0.0.1", 5559)
    assert kv(kv_connector="NixlConnector", kv_port=7).port == 7, "the flag goes before them"
    assert kv().port == 0, "they are of NIXL's connectors alone"
    assert ec(ec_connector="ECCPUConnector").port == 5601
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "many")
    with pytest.raises(ConfigError, match="VLLM_NIXL_SIDE_CHANNEL_PORT: 'many' is no port"):
        kv(kv_connector="NixlConnector")
