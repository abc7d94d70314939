"""The Helm chart: what it renders for every file of values is valid, and true of the server.

Helm is in no package index under its name, and tests must pass without it. So its renderings are kept beside this file,
and are tested everywhere; where Helm is installed, they are made again and compared:
`python -m tests.deploy.test_helm` writes them anew.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shoal import __version__, metric_families
from shoal.cli.install_systemd import STOP_MARGIN_S
from shoal.cli.serve import parse
from shoal.options import ServerOptions
from shoal.supervisor.memory.memory_plan import MIB, client_geometry

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "shoal"
RENDERED = Path(__file__).parent / "rendered"
#: Files whose rendering begins as another: its name, a text, and what stands in its place. The file has the rest.
LIKE = {
    "values-gpu-mig": ("values-gpu", "nvidia.com/gpu: 1\n", "nvidia.com/mig-1g.10gb: 1\n"),
    "values-gpu-mps": ("values-gpu", "          ports:\n", '            - "--cuda-mps=true"\n          ports:\n'),
    "values-hpa": ("values", "  replicas: 2\n", ""),
}
VALUES = sorted(path.stem for path in CHART.glob("values*.yaml"))
DEFAULTS = ServerOptions(http_address="0.0.0.0")
VERSIONS = ["1.25", kubernetes_validate.latest_version()]
#: Kinds of others, whose schemas no Python package has; their versions are those that the chart is written for.
CUSTOM = {
    "ScaledObject": "keda.sh/v1alpha1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "GRPCRoute": "gateway.networking.k8s.io/v1",
}

Manifest = dict[str, Any]

needs_helm = pytest.mark.skipif(
    shutil.which("helm") is None, reason="NOT CHECKED: Helm's reading of the chart, since it is not installed"
)


def command(verb: str, values: str, *more: str) -> list[str]:
    name = ["shoal"] if verb == "template" else []
    return ["helm", verb, *name, str(CHART), "--namespace=models", f"--values={CHART / values}.yaml", *more]


def render(values: str) -> str:
    """What Helm makes of the chart with this file of values."""
    return subprocess.run(command("template", values), capture_output=True, text=True, timeout=60, check=True).stdout


def rendered(values: str) -> str:
    """What Helm has made of the chart with this file of values."""
    file = RENDERED / f"{values}.yaml"
    return inherited(values) + (file.read_text() if file.exists() else "")


def inherited(values: str) -> str:
    """The beginning of a rendering that is like another's."""
    if values not in LIKE:
        return ""
    other, old, new = LIKE[values]
    text = rendered(other)
    assert old in text
    return text.replace(old, new)


def manifests(values: str) -> dict[str, Manifest]:
    """The rendered objects by their kinds."""
    found = [each for each in yaml.safe_load_all(rendered(values)) if each]
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found)
    return by_kind


def pod(values: str) -> Manifest:
    spec: Manifest = manifests(values)["Deployment"]["spec"]["template"]["spec"]
    return spec


def container(values: str) -> Manifest:
    [only] = pod(values)["containers"]
    found: Manifest = only
    return found


@needs_helm
@pytest.mark.parametrize("values", VALUES)
def test_helm_renders_what_is_tested_here(values: str) -> None:
    assert render(values) == rendered(values)
    subprocess.run(command("lint", values, "--strict"), check=True, capture_output=True, timeout=60)


@needs_helm
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["--set=autoscaling.enabled=true", "--set=keda.enabled=true"], "autoscaling and keda exclude each other"),
        (["--set=keda.enabled=true", "--set=keda.minReplicas=0"], "keda.minReplicas must be at least 1"),
    ],
)
def test_values_that_cannot_be_are_refused(settings: list[str], sentence: str) -> None:
    done = subprocess.run(
        command("template", "values", *settings), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert sentence in done.stderr


def test_every_file_of_values_is_rendered() -> None:
    assert sorted({*LIKE, *(path.stem for path in RENDERED.glob("*.yaml"))}) == VALUES


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES)
def test_every_object_is_valid(values: str, version: str) -> None:
    for kind, manifest in manifests(values).items():
        if kind in CUSTOM:
            assert manifest["apiVersion"] == CUSTOM[kind]
        else:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_version_is_the_server_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("values", VALUES)
def test_the_server_takes_the_arguments_without_a_word(values: str) -> None:
    found = container(values)
    assert found["command"] == ["tritonserver"]
    options, warnings = parse(found["args"], prog="tritonserver", defaults=DEFAULTS, environ={})
    assert warnings == ()
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert ports == {"http": options.http_port, "grpc": options.grpc_port, "metrics": options.metrics_port}
    margin = pod(values)["terminationGracePeriodSeconds"] - options.exit_timeout_secs
    assert margin == int(found["lifecycle"]["preStop"]["exec"]["command"][1]) + STOP_MARGIN_S


@pytest.mark.parametrize("values", VALUES)
def test_shared_memory_has_room_for_what_the_front_ends_may_hold(values: str) -> None:
    options, _ = parse(container(values)["args"], prog="tritonserver", defaults=DEFAULTS, environ={})
    [volume] = [each for each in pod(values)["volumes"] if each["name"] == "shared-memory"]
    assert volume["emptyDir"]["medium"] == "Memory"
    size_mib = int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi"))
    num_front_ends = options.http_process_count + options.grpc_process_count + 1  # the road
    assert num_front_ends * client_geometry(options).slab_nbytes < size_mib * MIB
    [memory] = {each["memory"] for each in container(values)["resources"].values()}
    assert size_mib <= int(memory.removesuffix("Gi")) * 1024 / 2


@pytest.mark.parametrize("values", VALUES)
def test_the_pod_is_restricted(values: str) -> None:
    """Kubernetes' Pod Security Standard of that name."""
    found, spec = container(values), pod(values)
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {*spec["volumes"][0]} <= {"name", "emptyDir", "persistentVolumeClaim"}
    assert {each["name"] for each in spec["volumes"]} == {each["name"] for each in found["volumeMounts"]}


@pytest.mark.parametrize("values", VALUES)
def test_objects_find_each_other(values: str) -> None:
    found = manifests(values)
    name, labels = (
        found["Deployment"]["metadata"]["name"],
        found["Deployment"]["spec"]["template"]["metadata"]["labels"],
    )
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        *(found[kind]["spec"]["selector"]["matchLabels"] for kind in ("ServiceMonitor",) if kind in found),
        *(found[kind]["spec"]["podSelector"]["matchLabels"] for kind in ("NetworkPolicy",) if kind in found),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert len({tuple(selector.items()) for selector in selectors}) == 1
    scalers = [found[kind] for kind in ("HorizontalPodAutoscaler", "ScaledObject") if kind in found]
    assert ("replicas" in found["Deployment"]["spec"]) == (not scalers)
    for scaler in scalers:
        assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    ports = {port["name"]: port["port"] for port in found["Service"]["spec"]["ports"]}
    for kind, port in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        if kind in found:
            [rule] = found[kind]["spec"]["rules"]
            assert {each["port"] for each in rule["backendRefs"]} == {ports[port]}
            assert [each["weight"] for each in rule["backendRefs"]] == [90, 10]


@pytest.mark.parametrize("values", ["values-gpu", "values-gpu-mig", "values-gpu-mps", "values-keda"])
def test_pods_are_scaled_by_metrics_that_they_have(values: str) -> None:
    triggers = manifests(values)["ScaledObject"]["spec"]["triggers"]
    assert len(triggers) == 2
    families = {metric_families.QUEUE_AGE.name} | {each.family.name for each in metric_families.INSTANCE_FAMILIES}
    for trigger in triggers:
        query = trigger["metadata"]["query"]
        assert any(f"{name}{{" in query for name in families), query
        assert 'pod=~"shoal-[a-z0-9]+-[a-z0-9]{5}"' in query  # and of no other release whose name begins so
        assert float(trigger["metadata"]["threshold"]) > 0


@pytest.mark.parametrize(
    ("values", "resource"),
    [
        ("values-gpu", "nvidia.com/gpu"),
        ("values-gpu-mps", "nvidia.com/gpu"),
        ("values-gpu-mig", "nvidia.com/mig-1g.10gb"),
    ],
)
def test_a_gpu_is_asked_for_and_replaced_in_place(values: str, resource: str) -> None:
    for each in container(values)["resources"].values():
        assert each == {"cpu": "4", "memory": "16Gi", resource: 1}
    assert pod(values)["tolerations"][0]["key"] == "nvidia.com/gpu"
    strategy = manifests(values)["Deployment"]["spec"]["strategy"]
    assert strategy == {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}


@pytest.mark.parametrize(("values", "has_mps"), [("values-gpu", False), ("values-gpu-mps", True)])
def test_mps_runs_where_the_values_say_so(values: str, has_mps: bool) -> None:
    options, _ = parse(container(values)["args"], prog="tritonserver", defaults=DEFAULTS, environ={})
    assert options.cuda_mps == has_mps


if __name__ == "__main__":
    for each in VALUES:  # in this order: what another is like comes before it
        if rest := render(each).removeprefix(inherited(each)):
            (RENDERED / f"{each}.yaml").write_text(rest)
