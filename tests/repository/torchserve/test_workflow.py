"""Archives of workflows: what their specifications mean, what is refused with which sentence, and what is left then."""

import json
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.repository.torchserve.configuration import Machine
from shoal.repository.torchserve.store import TorchServeStore
from shoal.repository.torchserve.workflow import read_workflow
from shoal.repository.torchserve.workflow_store import (
    FoundWorkflow,
    WorkflowRequest,
    register_workflow,
    withdraw_workflow,
)
from shoal.store_settings import StoreSettings
from shoal.torchserve_errors import torchserve_fault
from tests.repository.torchserve.archives import mar

FUNCTIONS = "import json\n\ndef pre(data, context):\n    return data\n\ndef post(data, context):\n    return data\n"
SPEC = """
models:
  max-workers: 2
  retry-attempts: 3
  m:
    url: m.mar
    batch-size: 4
    timeout-ms: 500
dag:
  pre: [m]
  m: [post]
"""
ARCHIVER = "from workflow_archiver.workflow_packaging import generate_workflow_archive; generate_workflow_archive()"


def war(path: Path, spec: str = SPEC, functions: str | None = FUNCTIONS, **workflow: Any) -> Path:
    """A .war with the layout of torch-workflow-archiver's."""
    named = {"workflowName": "w", "specFile": "spec.yaml", "handler": "functions.py", **workflow}
    manifest = {"createdOn": "29/11/2026 00:00:00", "workflow": named, "archiverVersion": "0.2.15"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("WAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("spec.yaml", spec)
        if functions is not None:
            archive.writestr("functions.py", functions)
    return path


@pytest.fixture
def store(tmp_path: Path) -> TorchServeStore:
    (tmp_path / "store").mkdir()
    made = TorchServeStore(StoreSettings(tmp_path / "store"), tmp_path / "slot" / "1", Machine(1, ()))
    made.clean()
    return made


def parameters(found: FoundWorkflow) -> dict[str, dict[str, str]]:
    return {
        each.name: {key: value["string_value"] for key, value in each.config["parameters"].items()}
        for each in found.models
    }


def refusal(store: TorchServeStore, request: WorkflowRequest) -> tuple[int, str, str]:
    """Status, type and message of a refusal; nothing is left of the attempt."""
    before = {each.name for each in store.settings.workflow_directory.iterdir()}
    with pytest.raises(ShoalError) as refused:
        register_workflow(store, request)
    fault = torchserve_fault(str(refused.value))
    assert fault is not None
    assert list(store.work.iterdir()) == []
    assert {each.name for each in store.settings.workflow_directory.iterdir()} == before
    return fault


def test_nodes_become_models_of_their_own(store: TorchServeStore) -> None:
    mar(store.settings.directory / "m.mar")
    war(store.settings.directory / "w.war")
    found = register_workflow(store, WorkflowRequest("w.war", response_timeout=7))
    said = parameters(found)
    assert sorted(said) == ["w__m", "w__post", "w__pre"]
    assert [(said[name]["ts_handler"], said[name]["ts_max_workers"]) for name in ("w__pre", "w__m", "w__post")] == [
        ("functions.py:pre", "1"), ("echo.py", "2"), ("functions.py:post", "1"),
    ]  # fmt: skip
    assert {each["ts_response_timeout_s"] for each in said.values()} == {"7"}
    assert {each["ts_workflow"] for each in said.values()} == {"w"}
    assert json.loads(said["w__m"]["ts_workflow_node"]) == {
        "name": "m", "next": ["post"], "retries": 3, "timeout_ms": 500,
    }  # fmt: skip
    assert json.loads(said["w__post"]["ts_workflow_node"]) == {
        "name": "post", "next": [], "retries": 3, "timeout_ms": 10_000,
    }  # fmt: skip
    assert {name: each.get("ts_workflow_function") for name, each in said.items()} == {
        "w__pre": "true", "w__m": None, "w__post": "true",
    }  # fmt: skip
    directories = {each.name: each.directory for each in found.models}
    assert directories["w__pre"] == directories["w__post"] == Path(found.about["directory"])
    assert (directories["w__pre"] / "functions.py").read_text() == FUNCTIONS
    assert {key: value for key, value in found.about.items() if key != "directory"} == {
        "name": "w", "url": "w.war", "archive": "", "min_workers": 1, "max_workers": 2, "batch_size": 1,
        "max_batch_delay": 50, "dag": "{pre=[m], m=[post]}",
    }  # fmt: skip
    for each in found.models:
        if "ts_workflow_function" not in said[each.name]:
            store.withdraw(each.directory, each.origin)
    withdraw_workflow(store, Path(found.about["directory"]), "")
    assert list(store.work.iterdir()) == []


def test_an_archive_of_torch_workflow_archiver_is_read_unchanged(store: TorchServeStore, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    command = [sys.executable, "-c", ARCHIVER, "--workflow-name", "real", "--spec-file", str(tmp_path / "spec.yaml")]
    command += ["--handler", str(tmp_path / "functions.py"), "--export-path", str(store.settings.directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    mar(store.settings.directory / "m.mar")
    found = register_workflow(store, WorkflowRequest("real.war"))
    assert sorted(each.name for each in found.models) == ["real__m", "real__post", "real__pre"]


def test_a_workflow_of_a_store_of_its_own_and_from_a_url(store: TorchServeStore, tmp_path: Path) -> None:
    (tmp_path / "workflows").mkdir()
    own = TorchServeStore(
        StoreSettings(tmp_path / "store", workflow_store=str(tmp_path / "workflows")), store.work, store.machine
    )
    mar(tmp_path / "store" / "m.mar")
    made = war(tmp_path / "elsewhere.war")
    url = made.as_uri()
    found = register_workflow(own, WorkflowRequest(url, workflow_name="mine"))
    assert (found.about["name"], found.about["archive"]) == ("mine", "elsewhere.war")
    assert (tmp_path / "workflows" / "elsewhere.war").exists()
    withdraw_workflow(own, Path(found.about["directory"]), found.about["archive"])
    assert list((tmp_path / "workflows").iterdir()) == []
    assert made.exists()


def spec(models: str = "m: {url: m.mar}", dag: str = "{pre: [m], m: [post]}") -> str:
    return f"models: {{{models}}}\ndag: {dag}\n"


_TOP = "models: {m: {url: m.mar}}\n"
BAD_SPECS = [
    ("dag: [1]", "InvalidDAGException", "'dag' of spec.yaml must be a mapping"),
    ("models: 3\ndag: {pre: [m]}", "InvalidWorkflowException", "'models' of spec.yaml must be a mapping"),
    ("{", "InvalidWorkflowException", "Failed to parse yaml. 'spec.yaml' is no YAML"),
    (_TOP, "InvalidDAGException", "'dag' of spec.yaml must be a mapping"),
    (spec(dag="{pre: m}"), "InvalidDAGException", "node 'pre' of spec.yaml must have a list of nodes, got: 'm'"),
    (spec(dag="{pre: [m], m: [pre]}"), "InvalidDAGException", "Not a valid DAG: "),
    (spec(dag="{m: [m]}"), "InvalidDAGException", "Not a valid DAG: m → m is a loop"),
    (spec(dag="{pre: [post], m: [post]}"), "InvalidDAGException", "DAG should have only one start node"),
    (
        spec(dag="{pre: [nothing]}"),
        "InvalidWorkflowException",
        "node 'nothing' is neither a model of the specification",
    ),
    (spec("m: {batch-size: 3}"), "InvalidWorkflowException", "model 'm' of spec.yaml needs a 'url'"),
    (spec("m: {url: m.mar, batch-size: 0}"), "InvalidWorkflowException", "'batch-size' of model 'm' must be a whole"),
    (spec("retry-attempts: yes, m: {url: m.mar}"), "InvalidWorkflowException", "'retry-attempts' of models must be"),
    (
        spec(f"batch-size: 0x{'f' * 9000}, m: {{url: m.mar}}"),
        "InvalidWorkflowException",
        "Failed to parse yaml. 'spec.yaml' has a whole number of more than 64 bits",
    ),
    (spec(dag="{pre: [a/b], a/b: [post]}"), "InvalidDAGException", "'a/b' is no name of a node"),
]


@pytest.mark.parametrize(("text", "kind", "sentence"), BAD_SPECS)
def test_a_specification_that_cannot_be_served_is_refused(
    text: str, kind: str, sentence: str, store: TorchServeStore
) -> None:
    mar(store.settings.directory / "m.mar")
    functions = FUNCTIONS + "globals()['a/b'] = pre\nfrom os import *\n" if "a/b" in text else FUNCTIONS
    war(store.settings.directory / "w.war", text, functions)
    status, found, message = refusal(store, WorkflowRequest("w.war"))
    assert (status, found) == (400, kind)
    assert message.startswith(sentence), message


BAD_ARCHIVES: list[tuple[dict[str, Any], str]] = [
    ({"workflowName": ""}, "Workflow name is not defined."),
    ({"workflowName": "a/b"}, "'a/b' is no name of a workflow"),
    ({"specFile": "../x"}, "'specFile' of WAR-INF/MANIFEST.json is '../x', which is no path within the archive"),
    ({"specFile": ""}, "WAR-INF/MANIFEST.json names no specFile"),
    ({"specFile": "none.yaml"}, "Failed to parse yaml. 'none.yaml' cannot be read"),
    ({"handler": ""}, "node 'pre' is no model, and WAR-INF/MANIFEST.json names no handler"),
    ({"handler": "none.py"}, "'none.py' cannot be read"),
    ({"functions": "def pre(:"}, "'functions.py' is no Python"),
    ({"functions": "x = '\0'"}, "'functions.py' is no Python"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_ARCHIVES)
def test_an_archive_that_cannot_be_served_is_refused(
    changes: dict[str, Any], sentence: str, store: TorchServeStore
) -> None:
    mar(store.settings.directory / "m.mar")
    war(store.settings.directory / "w.war", **changes)
    status, kind, message = refusal(store, WorkflowRequest("w.war"))
    assert (status, kind) == (400, "InvalidWorkflowException")
    assert message.startswith(sentence), message


def test_addresses_that_are_no_archive_are_refused(store: TorchServeStore) -> None:
    (store.settings.directory / "broken.war").write_bytes(b"PK nothing")
    with zipfile.ZipFile(store.settings.directory / "empty.war", "w") as archive:
        archive.writestr("a.txt", "a")
    for url, status, message in (
        ("", 404, "empty url"),
        ("../w.war", 404, "Relative path is not allowed in url: ../w.war"),
        ("none.war", 404, "Workflow not found in workflow store: none.war"),
        (f"{'w' * 300}.war", 404, "Workflow not found in workflow store: www"),
        ("/etc/x.war", 404, "Workflow not found in workflow store: /etc/x.war"),
        ("m.mar", 400, "'m.mar' is no archive of a workflow, whose name ends with .war"),
        ("broken.war", 400, "Archive 'broken.war' is refused: it is damaged"),
        ("empty.war", 400, "the archive has no WAR-INF/MANIFEST.json; make it with torch-workflow-archiver"),
    ):
        found = refusal(store, WorkflowRequest(url))
        assert found[0] == status
        assert found[2].startswith(message), found


def test_a_model_that_cannot_be_found_leaves_nothing(store: TorchServeStore) -> None:
    war(store.settings.directory / "w.war", spec("m: {url: none.mar}"))
    assert refusal(store, WorkflowRequest("w.war"))[1:] == ("ModelNotFoundException", "Model not found at: none.mar")
    war(store.settings.directory / "w.war", spec("m: {url: /etc}"))
    (store.settings.directory / "strict").mkdir()
    strict = TorchServeStore(
        StoreSettings(store.settings.directory, allowed_urls=("https://none/.*",)), store.work, store.machine
    )
    message = "Given URL /etc does not match any allowed URL(s)"
    assert refusal(strict, WorkflowRequest("w.war"))[2] == message


def test_many_nodes_are_too_many(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(65)]
    functions = "\n".join(f"def {name}(data, context): pass" for name in names)
    edges = "".join(f"  {name}: [{after}]\n" for name, after in pairwise(names))
    (tmp_path / "WAR-INF").mkdir()
    manifest = {"workflow": {"workflowName": "w", "specFile": "s.yaml", "handler": "f.py"}}
    (tmp_path / "WAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (tmp_path / "f.py").write_text(functions)
    (tmp_path / "s.yaml").write_text(f"dag:\n{edges}")
    with pytest.raises(ShoalError, match="the workflow has 65 nodes, more than 64"):
        read_workflow(tmp_path)
