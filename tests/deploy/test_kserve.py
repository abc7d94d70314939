"""deploy/kserve: runtimes and services whose command lines the server takes, and which find each other."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shoal.cli.serve import parse
from shoal.cli.torchserve.command import torchserve
from shoal.options import ServerOptions

FOLDER = Path(__file__).parents[2] / "deploy" / "kserve"
DEFAULTS = ServerOptions(http_address="0.0.0.0")
Manifest = dict[str, Any]


def read(name: str) -> dict[str, Manifest]:
    """The objects of a file by their names."""
    return {each["metadata"]["name"]: each for each in yaml.safe_load_all((FOLDER / name).read_text())}


RUNTIMES, SERVICES = read("runtimes.yaml"), read("inferenceservices.yaml")


def container(runtime: str) -> Manifest:
    [only] = RUNTIMES[runtime]["spec"]["containers"]
    found: Manifest = only
    return found


def test_triton_s_arguments_are_taken_without_a_word() -> None:
    program, *arguments = container("shoal-triton")["args"]
    assert program == "tritonserver"
    options, warnings = parse(arguments, prog=program, defaults=DEFAULTS, environ={})
    assert warnings == ()
    assert list(map(str, options.model_repository)) == ["/mnt/models"]
    assert (options.http_port, options.grpc_port) == (8080, 9000)  # KServe's, which its routes and agents rely on
    annotations = RUNTIMES["shoal-triton"]["spec"]["annotations"]
    assert annotations["prometheus.kserve.io/port"] == str(options.metrics_port)
    assert container("shoal-triton")["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": 8080}


def test_torchserve_s_arguments_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = container("shoal-torchserve")["args"]
    assert program == "torchserve"
    assert torchserve(arguments, environ={}) == 1  # the arguments are in order: KServe's volume is missing
    assert "/mnt/models/config/config.properties" in capsys.readouterr().err


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_is_one_of_kserve_s(runtime: str) -> None:
    manifest = RUNTIMES[runtime]
    assert (manifest["apiVersion"], manifest["kind"]) == ("serving.kserve.io/v1alpha1", "ClusterServingRuntime")
    assert {*manifest["spec"]["protocolVersions"]} <= {"v1", "v2", "grpc-v2"}
    found = container(runtime)
    assert found["name"] == "kserve-container"  # the name by which KServe knows which one is the server
    assert {each["name"] for each in manifest["spec"]["volumes"]} == {each["name"] for each in found["volumeMounts"]}
    assert all(isinstance(each["version"], str) for each in manifest["spec"]["supportedModelFormats"])


@pytest.mark.parametrize("version", ["1.25", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_its_pod_is_valid(runtime: str, version: str) -> None:
    spec = {key: RUNTIMES[runtime]["spec"][key] for key in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_asks_for_a_format_and_a_protocol_that_its_runtime_has(service: str) -> None:
    manifest = SERVICES[service]
    assert (manifest["apiVersion"], manifest["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    model = manifest["spec"]["predictor"]["model"]
    runtime = RUNTIMES[model["runtime"]]["spec"]
    assert model["modelFormat"]["name"] in {each["name"] for each in runtime["supportedModelFormats"]}
    assert model["protocolVersion"] in runtime["protocolVersions"]


def test_the_envelope_is_the_label_s() -> None:
    [variable] = container("shoal-torchserve")["env"]
    assert variable == {"name": "TS_SERVICE_ENVELOPE", "value": "{{.Labels.serviceEnvelope}}"}
    assert SERVICES["mnist"]["metadata"]["labels"]["serviceEnvelope"] in ("kserve", "kservev2")
