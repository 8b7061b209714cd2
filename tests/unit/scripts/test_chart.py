"""The Helm chart: its values fit our processes; where Helm is at hand it is rendered, and every
command and variable of it is taken."""

import importlib
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from connectors.config import parse_ec, parse_kv
from protocol.settings import resolve
from proxy.config import ProxyConfig
from scripts.references import metrics_page
from services.master.config import MasterConfig
from services.worker.config import WorkerConfig
from triptych.commands import COMMANDS

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "triptych"
CONFIGS: dict[str, type[Any]] = {"master": MasterConfig, "proxy": ProxyConfig}
ALL: dict[str, Any] = {
    "redisUrl": "redis://redis:6379",
    "master": {"replicas": 2},
    "proxy": {"hpa": {"enabled": True}},
    "workers": {role: {"hpa": {"enabled": True}} for role in ("encode", "prefill", "decode")},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"role": "alerts"}},
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "gateway"}}}]},
    "imagePullSecrets": [{"name": "registry"}],
}
KEDA: dict[str, Any] = {
    "keda": {"serverAddress": "http://prometheus:9090"},
    "workers": {role: {"keda": {"enabled": True}} for role in ("encode", "prefill", "decode")},
}
NO_PREFILL: dict[str, Any] = {"workers": {"prefill": {"replicas": 0}}}
RELEASE = "app_kubernetes_io_instance"  # the label of series
helm = pytest.mark.skipif(
    shutil.which("helm") is None and importlib.util.find_spec("helm_python") is None,
    reason="no Helm: neither the program nor the package helm-python-sdk",
)


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def rendered(changes: dict[str, Any], tmp_path: Path) -> list[dict[str, Any]]:
    if shutil.which("helm") is not None:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(changes))
        command = ["helm", "template", "r", str(CHART), "--values", str(file)]
        text = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout
    else:
        chart = importlib.import_module("helm_python.chart").Chart.load(str(CHART))
        text = "\n---\n".join(chart.render(changes, name="r", namespace="n").values())
    return [each for each in yaml.safe_load_all(text) if each]


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By component, those of deployments and stateful sets."""
    found = [each for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    labels = "app.kubernetes.io/component"
    return {each["metadata"]["labels"][labels]: each["spec"]["template"] for each in found}


def environment(container: dict[str, Any]) -> dict[str, str]:
    """As the cluster would set it."""
    found = {each["name"]: each.get("value", "x" * 32) for each in container["env"]}
    return {name: value.replace("$(POD_IP)", "10.0.0.5") for name, value in found.items()}


def test_arguments_of_the_values_are_taken() -> None:
    found = values()
    for role, worker in found["workers"].items():
        assert COMMANDS[role].is_worker
        resolve(WorkerConfig, worker["args"], {})
    for name, config in CONFIGS.items():
        resolve(config, found[name]["args"], {})


def test_autoscalers_use_metrics_that_exist() -> None:
    known = {
        name.replace(":", "_") for name in re.findall(r"^\| `(\S+)` \| gauge", metrics_page(), re.M)
    }
    kinds = [values()["proxy"], *values()["workers"].values()]
    assert all(kind["hpa"]["metric"] in known for kind in kinds)
    scalers = [kind[name] for kind in kinds for name in ("hpa", "keda") if name in kind]
    assert all(scaler["min"] <= scaler["max"] for scaler in scalers)


@helm
@pytest.mark.parametrize("changes", [{}, ALL, NO_PREFILL], ids=["default", "all", "no-prefill"])
def test_every_command_and_variable_is_taken(changes: dict[str, Any], tmp_path: Path) -> None:
    found = pods(rendered(changes, tmp_path))
    assert ("prefill" in found) == (changes is not NO_PREFILL)
    masters = 2 if changes is ALL else 1
    for component, pod in found.items():
        (container,) = pod["spec"]["containers"]
        assert container["command"] == ["triptych", component]
        config = CONFIGS.get(component, WorkerConfig)
        taken = resolve(config, container["args"], environment(container))
        (port,) = container["ports"]
        assert taken.port == port["containerPort"]
        assert component != "proxy" or taken.log_requests
        grace = taken.drain_delay + taken.shutdown_timeout + 10
        assert pod["spec"]["terminationGracePeriodSeconds"] == grace
        if component != "master":
            assert len(taken.urls_of_masters() if component == "proxy" else
                       taken.master_url.split(",")) == masters  # fmt: skip
        if component in ("prefill", "decode"):
            assert parse_kv(taken.kv_transfer_config).host == taken.host == "10.0.0.5"
            assert parse_ec(taken.ec_transfer_config).host == "10.0.0.5"


@helm
def test_probes_budgets_and_policies_are_there(tmp_path: Path) -> None:
    objects = rendered(ALL, tmp_path)
    kinds = [each["kind"] for each in objects]
    assert kinds.count("PodDisruptionBudget") == 5
    assert kinds.count("HorizontalPodAutoscaler") == 4
    assert {"NetworkPolicy", "ServiceMonitor", "PodMonitor"} <= set(kinds)
    for component, pod in pods(objects).items():
        (container,) = pod["spec"]["containers"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready", component
        assert container["livenessProbe"] and container["lifecycle"]["preStop"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


def test_its_alerts_are_those_that_are_tested() -> None:
    """A chart has no files but its own."""
    tested = CHART.parents[1] / "prometheus" / "alerts.yaml"
    assert (CHART / "files" / "alerts.yaml").read_text() == tested.read_text(), (
        "cp deploy/prometheus/alerts.yaml deploy/helm/triptych/files/alerts.yaml"
    )


@helm
def test_alerts_come_as_one_rule_object(tmp_path: Path) -> None:
    (rule,) = (each for each in rendered(ALL, tmp_path) if each["kind"] == "PrometheusRule")
    assert rule["metadata"]["labels"]["role"] == "alerts"
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert not any(each["kind"] == "PrometheusRule" for each in rendered({}, tmp_path))


@helm
def test_keda_scales_to_the_workers_that_the_master_wants(tmp_path: Path) -> None:
    objects = rendered(KEDA, tmp_path)
    scaled = [each["spec"] for each in objects if each["kind"] == "ScaledObject"]
    assert len(scaled) == 3
    deployments = {
        each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Deployment"
    }
    for spec in scaled:
        target = deployments[spec["scaleTargetRef"]["name"]]
        assert "replicas" not in target, "the chart would undo what KEDA has done"
        assert 1 <= spec["minReplicaCount"] <= spec["maxReplicaCount"]
        (trigger,) = spec["triggers"]
        assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
        role = target["selector"]["matchLabels"]["app.kubernetes.io/component"]
        name, labels = re.findall(r"max\(([\w:]+)\{(.*)\}\)", trigger["metadata"]["query"])[0]
        assert f"`{name}`" in metrics_page()
        assert set(labels.split(",")) >= {f'role="{role}"', f'{RELEASE}="r"'}


@helm
def test_autoscalers_go_by_the_masters_of_their_own_release(tmp_path: Path) -> None:
    """Several releases may be in one namespace; monitors bring the label that tells them apart."""
    objects = rendered(ALL, tmp_path)
    external = [
        metric["external"]["metric"]
        for each in objects
        if each["kind"] == "HorizontalPodAutoscaler"
        for metric in each["spec"]["metrics"]
        if metric["type"] == "External"
    ]
    assert len(external) == 3
    assert all(each["selector"]["matchLabels"][RELEASE] == "r" for each in external)
    monitors = [each for each in objects if each["kind"] in ("PodMonitor", "ServiceMonitor")]
    assert len(monitors) == 2
    for monitor in monitors:
        (label,) = monitor["spec"]["podTargetLabels"]
        assert re.sub(r"[^a-zA-Z0-9_]", "_", label) == RELEASE, "as Prometheus has it"
        assert label in pods(objects)["master"]["metadata"]["labels"]


@helm
def test_a_role_has_one_autoscaler(tmp_path: Path) -> None:
    both = {"keda": {"enabled": True}, "hpa": {"enabled": True}}
    with pytest.raises(Exception, match=r"hpa and keda both scale it|non-zero exit status"):
        rendered({"workers": {"decode": both}}, tmp_path)


@helm
def test_several_masters_without_redis_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"several masters need redisUrl|non-zero exit status"):
        rendered({"master": {"replicas": 2}}, tmp_path)
