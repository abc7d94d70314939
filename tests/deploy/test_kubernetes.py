"""The manifests in deploy/kubernetes: valid by the API's own schemas, and what they say of the server is true."""

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shoal.cli.install_systemd import STOP_MARGIN_S
from shoal.cli.serve import parse
from shoal.options import ServerOptions

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
CPU, GPU = FOLDER / "cpu", FOLDER / "gpu"
#: Those that change what `gpu` applies.
VARIANTS = ("gpu-mig", "gpu-mps")
KUSTOMIZATION = "kustomization.yaml"
DEFAULTS = ServerOptions(http_address="0.0.0.0")
#: The oldest API with what we use, and the newest the schemas know.
VERSIONS = ["1.25", kubernetes_validate.latest_version()]

Manifest = dict[str, Any]


def read(path: Path) -> Manifest:
    manifest: Manifest = yaml.safe_load(path.read_text())
    return manifest


def on_cpus() -> dict[str, Manifest]:
    manifests = [read(CPU / name) for name in read(CPU / KUSTOMIZATION)["resources"]]
    return {manifest["kind"]: manifest for manifest in manifests}


def on_gpus() -> dict[str, Manifest]:
    """What `kubectl apply -k deploy/kubernetes/gpu` applies: RFC 6902 operations, or a whole object taken out."""
    manifests = on_cpus()
    for patch in read(GPU / KUSTOMIZATION)["patches"]:
        kind = patch["target"]["kind"]
        assert manifests[kind]["metadata"]["name"] == patch["target"]["name"]
        operations = yaml.safe_load(patch["patch"])
        if isinstance(operations, dict):
            assert (operations["$patch"], operations["kind"]) == ("delete", kind)
            del manifests[kind]
        else:
            for operation in operations:
                manifests[kind] = patched(manifests[kind], **operation)
    return manifests


def variant(name: str) -> dict[str, Manifest]:
    """What `kubectl apply -k deploy/kubernetes/NAME` applies, for one that changes what is applied on GPUs."""
    manifests, kustomization = on_gpus(), read(FOLDER / name / KUSTOMIZATION)
    assert kustomization["resources"] == ["../gpu"]
    for patch in kustomization["patches"]:
        for operation in yaml.safe_load(patch["patch"]):
            manifests[patch["target"]["kind"]] = patched(manifests[patch["target"]["kind"]], **operation)
    return manifests


def patched(manifest: Manifest, op: str, path: str, value: Any = None) -> Manifest:
    result = copy.deepcopy(manifest)
    *parents, last = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
    place: Any = result
    for step in parents:
        place = place[int(step) if isinstance(place, list) else step]
    if last == "-":
        place.append(value)
        return result
    assert (last in place) == (op in ("replace", "remove")), (op, path)
    if op == "remove":
        del place[last]
    else:
        place[last] = value
    return result


def test_the_images_are_those_that_the_containerfiles_build() -> None:
    [cpu], [gpu] = read(CPU / KUSTOMIZATION)["images"], read(GPU / KUSTOMIZATION)["images"]
    assert (cpu["name"], gpu["name"]) == ("shoal", cpu["newName"])  # it comes to the second as the first has named it
    assert gpu["newName"] == f"{cpu['newName']}-gpu"
    for folder, file in ((CPU, "Containerfile"), (GPU, "Containerfile.gpu")):
        assert f"deploy/{file} builds" in (folder / KUSTOMIZATION).read_text()
        assert (FOLDER.parent / file).is_file()


@pytest.fixture
def pod() -> Manifest:
    spec: Manifest = on_cpus()["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: Manifest) -> Manifest:
    [only] = pod["containers"]
    found: Manifest = only
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "manifests", [on_cpus(), on_gpus(), *map(variant, VARIANTS)], ids=["on CPUs", "on GPUs", *VARIANTS]
)
def test_every_object_is_valid(manifests: dict[str, Manifest], version: str) -> None:
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_would_notice() -> None:
    deployment = on_cpus()["Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["liveness"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="liveness"):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


def test_every_file_is_applied() -> None:
    files = {path.name for path in CPU.glob("*.yaml")} - {KUSTOMIZATION}
    assert files == set(read(CPU / KUSTOMIZATION)["resources"])
    assert read(GPU / KUSTOMIZATION)["resources"] == ["../cpu"]


# kubectl is Kubernetes' own download, in no package index. Without it the tests above read the same manifests.
@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="NOT CHECKED: kubectl's reading of the manifests, since it is not installed"
)
@pytest.mark.parametrize("name", ["cpu", "gpu", *VARIANTS])
def test_kubectl_makes_the_same_of_them(name: str) -> None:
    command = ["kubectl", "kustomize", str(FOLDER / name)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    [image] = read((CPU if name == "cpu" else GPU) / KUSTOMIZATION)["images"]
    expected = {"cpu": on_cpus, "gpu": on_gpus}.get(name, lambda: variant(name))()
    pod = expected["Deployment"]["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = f"{image['newName']}:{image['newTag']}"
    assert {manifest["kind"]: manifest for manifest in yaml.safe_load_all(built)} == expected


def test_the_server_takes_the_arguments_without_a_word(container: Manifest) -> None:
    assert container["command"] == ["tritonserver"]
    options, warnings = parse(container["args"], prog="tritonserver", defaults=DEFAULTS, environ={})
    assert warnings == ()
    [repository] = options.model_repository
    assert {"name": "model-repository", "mountPath": str(repository), "readOnly": True} in container["volumeMounts"]


def test_the_ports_are_the_server_s(container: Manifest) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": DEFAULTS.http_port, "grpc": DEFAULTS.grpc_port, "metrics": DEFAULTS.metrics_port}
    service = on_cpus()["Service"]["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in service} == ports
    annotations = on_cpus()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(DEFAULTS.metrics_port)


def test_the_probes_ask_what_triton_answers(container: Manifest) -> None:
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["httpGet"] for kind, probe in probes.items()} == {
        "startup": {"path": "/v2/health/live", "port": "http"},  # a model that fails to load must not end the pod
        "liveness": {"path": "/v2/health/live", "port": "http"},
        "readiness": {"path": "/v2/health/ready", "port": "http"},
    }
    # The port opens when every model has settled: the probe that counts until then waits as long as an instance may.
    startup = probes["startup"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= DEFAULTS.model_load_timeout_secs


def test_the_pod_has_time_to_answer_what_it_accepted(pod: Manifest, container: Manifest) -> None:
    options, _ = parse(container["args"], prog="tritonserver", defaults=DEFAULTS, environ={})
    [command, seconds] = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert pod["terminationGracePeriodSeconds"] == int(seconds) + options.exit_timeout_secs + STOP_MARGIN_S


def test_volumes_are_mounted_and_shared_memory_fits_its_limit(pod: Manifest, container: Manifest) -> None:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes.keys() == {mount["name"] for mount in container["volumeMounts"]}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert container["resources"]["limits"]["memory"] == "4Gi"
    assert container["resources"]["requests"] == container["resources"]["limits"]  # the pod's cores are its own


def test_objects_find_each_other() -> None:
    manifests = on_cpus()
    deployment = manifests["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    target = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment["metadata"]["name"]}
    [image] = read(CPU / KUSTOMIZATION)["images"]
    assert image["name"] == deployment["spec"]["template"]["spec"]["containers"][0]["image"]


def test_the_gpu_variant_asks_for_one_gpu_and_leaves_the_rest() -> None:
    before, after = on_cpus(), on_gpus()
    assert before.keys() - after.keys() == {"HorizontalPodAutoscaler"}
    pod = after["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"].pop("nvidia.com/gpu") == 1
    assert pod.pop("tolerations")[0]["key"] == "nvidia.com/gpu"
    assert after["Deployment"]["spec"].pop("strategy") == {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    del before["Deployment"]["spec"]["strategy"], before["HorizontalPodAutoscaler"]
    assert after == before


def test_the_variants_differ_by_what_their_names_say() -> None:
    whole, mig, mps = on_gpus(), variant("gpu-mig"), variant("gpu-mps")
    containers = [each["Deployment"]["spec"]["template"]["spec"]["containers"][0] for each in (whole, mig, mps)]
    assert containers[1]["resources"]["limits"].pop("nvidia.com/mig-1g.10gb") == 1
    assert containers[0]["resources"]["limits"].pop("nvidia.com/gpu") == 1
    assert containers[2]["resources"]["limits"].pop("nvidia.com/gpu") == 1
    options, warnings = parse(containers[2]["args"], prog="tritonserver", defaults=DEFAULTS, environ={})
    assert (options.cuda_mps, warnings) == (True, ())
    assert containers[2]["args"].pop() == "--cuda-mps=true"
    assert whole == mig == mps


def test_the_device_plugin_lists_the_parts_that_a_variant_asks_for() -> None:
    values = read(FOLDER / "device-plugin-values.yaml")["config"]
    config = yaml.safe_load(values["map"][values["default"]])
    assert config == {"version": "v1", "flags": {"migStrategy": "mixed"}}
