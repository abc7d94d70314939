"""TorchServe's workflow archives: the nodes of an unpacked `.war`, checked before one of them is loaded.

    WAR-INF/MANIFEST.json   {"workflow": {"workflowName": "w", "specFile": "spec.yaml", "handler": "functions.py"}}
    spec.yaml               models: {batch-size: 4, m: {url: m.mar, max-workers: 2}}     dag: {pre: [m], m: [post]}
    functions.py            def pre(data, context): ...

A node is a model that the specification names with its archive, or else a function of the handler file. The graph has
one first node, and any number of last ones. Runs in the poller; all files are untrusted.
"""

import ast
import graphlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.model_config import files
from shoal.model_config.checks import is_inside
from shoal.repository.identifier import is_model_name
from shoal.repository.torchserve.yaml_config import YamlError, read_mapping
from shoal.torchserve_errors import torchserve_error

_log = logging.getLogger(__name__)

WORKFLOW_MANIFEST = Path("WAR-INF", "MANIFEST.json")
_MAX_BYTES = 1 << 20
#: Nodes of a workflow, each with workers of its own (ours).
MAX_NODES = 64
#: A setting of a node, or in `models` of all nodes → TorchServe's default, and the range of values that take effect.
_SETTINGS: Mapping[str, tuple[int, range]] = {
    "min-workers": (1, range(1, 65)),
    "max-workers": (1, range(1, 65)),
    "batch-size": (1, range(1, 1 << 16)),
    "max-batch-delay": (50, range(1 << 31)),  # ms
    "retry-attempts": (1, range(101)),
    "timeout-ms": (10_000, range(1, 3_600_001)),
}


class Node(NamedTuple):
    """A node of a workflow."""

    name: str
    url: str  # of the model's archive; "" for a function of the handler file
    settings: Mapping[str, int]  # by the names of _SETTINGS
    next: tuple[str, ...]  # nodes that get the result


class Workflow(NamedTuple):
    """The workflow that an archive describes."""

    name: str
    handler: str  # file within the archive; "" where no node is a function
    settings: Mapping[str, int]  # for nodes that do not set them themselves
    nodes: Mapping[str, Node]
    graph: Mapping[str, Sequence[str]]  # node → nodes that get its result, as the specification has them


def invalid(message: str) -> ShoalError:
    """The refusal of an archive or of its specification, 400."""
    return torchserve_error(400, "InvalidWorkflowException", message)


def _invalid_graph(message: str) -> ShoalError:
    return torchserve_error(400, "InvalidDAGException", message)


def read_workflow(directory: Path, name: str | None = None) -> Workflow:
    """The workflow of an unpacked archive; `name` takes precedence over the manifest's. Raises ShoalError in
    TorchServe's form for a workflow that cannot be served."""
    manifest = _manifest(directory)
    name = name or _text(manifest, "workflowName")
    if not name:
        raise invalid("Workflow name is not defined.")
    if not is_model_name(name):
        raise invalid(f"{name!r} is no name of a workflow")
    spec_file, handler = _text(manifest, "specFile"), _text(manifest, "handler")
    for member, file in (("specFile", spec_file), ("handler", handler)):
        if file and not is_inside(file):
            raise invalid(f"'{member}' of {WORKFLOW_MANIFEST} is '{file}', which is no path within the archive")
    if not spec_file:
        raise invalid(f"{WORKFLOW_MANIFEST} names no specFile; make the archive with torch-workflow-archiver")
    try:
        spec = read_mapping(directory / spec_file)
    except YamlError as error:
        raise invalid(f"Failed to parse yaml. {error}") from error
    defaults, urls, own = _models(spec.get("models", {}), spec_file)
    graph = _graph(spec.get("dag"), spec_file)
    names = dict.fromkeys([*graph, *(each for following in graph.values() for each in following)])
    for unused in [each for each in urls if each not in names]:
        _log.warning("model '%s' of workflow '%s' has no place in its dag, and is not loaded", unused, name)
    functions = [each for each in names if each not in urls]
    if functions:
        _check_functions(functions, directory, handler)
    nodes = {
        each: Node(each, urls.get(each, ""), own.get(each, _of_functions(defaults)), tuple(graph.get(each, ())))
        for each in names
    }
    _check_graph(name, nodes)
    return Workflow(name, handler if functions else "", defaults, nodes, graph)


def _of_functions(defaults: Mapping[str, int]) -> Mapping[str, int]:
    """The settings of a function: one worker that takes one request at a time, as in TorchServe."""
    return {**defaults, "min-workers": 1, "max-workers": 1, "batch-size": 1, "max-batch-delay": 0}


def _manifest(directory: Path) -> Mapping[str, Any]:
    """The member `workflow` of the manifest."""
    try:
        raw = files.read(directory / WORKFLOW_MANIFEST, _MAX_BYTES + 1)
        document = json.loads(raw[:_MAX_BYTES].decode("utf-8-sig"))
    except OSError as error:
        raise invalid(f"the archive has no {WORKFLOW_MANIFEST}; make it with torch-workflow-archiver") from error
    except (ValueError, RecursionError) as error:
        raise invalid(f"{WORKFLOW_MANIFEST} is no JSON: {error}") from error
    manifest = document.get("workflow") if isinstance(document, dict) else None
    if not isinstance(manifest, dict):
        raise invalid("Missing Workflow entry in manifest file.")
    return manifest


def _text(fields: Mapping[str, Any], member: str) -> str:
    value = fields.get(member)
    return value if isinstance(value, str) else ""


def _models(models: Any, file: str) -> tuple[Mapping[str, int], Mapping[str, str], Mapping[str, Mapping[str, int]]]:
    """The settings for all nodes; the archives of the nodes that are models, and these nodes' own settings, by node."""
    if not isinstance(models, dict):
        raise invalid(f"'models' of {file} must be a mapping of models to their settings")
    defaults = {key: _number("models", key, models.get(key, default)) for key, (default, _) in _SETTINGS.items()}
    urls: dict[str, str] = {}
    own: dict[str, Mapping[str, int]] = {}
    for name, given in models.items():
        if name in _SETTINGS:
            continue
        if not isinstance(given, dict) or not isinstance(given.get("url"), str) or not given["url"]:
            raise invalid(f"model '{name}' of {file} needs a 'url', which names its archive")
        for key in [each for each in given if each not in _SETTINGS and each != "url"]:
            _log.warning("'%s' of model '%s' in %s is ignored: there is no such setting", key, name, file)
        urls[str(name)] = given["url"]
        own[str(name)] = {key: _number(f"model '{name}'", key, given.get(key, defaults[key])) for key in _SETTINGS}
    return defaults, urls, own


def _number(where: str, key: str, value: Any) -> int:
    allowed = _SETTINGS[key][1]
    if type(value) is not int or value not in allowed:
        raise invalid(
            f"'{key}' of {where} must be a whole number from {allowed.start} to {allowed.stop - 1}, got: {value!r}"
        )
    return value


def _graph(dag: Any, file: str) -> Mapping[str, Sequence[str]]:
    """The graph as the specification has it: node → nodes that get its result."""
    if not isinstance(dag, dict) or not dag:
        raise _invalid_graph(f"'dag' of {file} must be a mapping of each node to a list of those that get its result")
    graph: dict[str, list[str]] = {}
    for name, following in dag.items():
        if not isinstance(following, list):
            raise _invalid_graph(f"node '{name}' of {file} must have a list of nodes, got: {following!r}")
        # TorchServe passes over empty names: "pre: []" and "pre: ['']" are the same.
        graph[str(name)] = [str(each).strip() for each in following if each is not None and str(each).strip()]
    return graph


def _check_graph(workflow: str, nodes: Mapping[str, Node]) -> None:
    if len(nodes) > MAX_NODES:
        raise _invalid_graph(f"the workflow has {len(nodes)} nodes, more than {MAX_NODES}")
    for name in nodes:
        if not is_model_name(f"{workflow}__{name}"):
            raise _invalid_graph(f"{name!r} is no name of a node")
    parents: dict[str, set[str]] = {name: set() for name in nodes}
    for name, node in nodes.items():
        for each in node.next:
            parents[each].add(name)
    try:
        graphlib.TopologicalSorter(parents).prepare()
    except graphlib.CycleError as error:
        raise _invalid_graph(f"Not a valid DAG: {' → '.join(error.args[1])} is a loop") from error
    if sum(not each for each in parents.values()) != 1:
        raise _invalid_graph("DAG should have only one start node")


def _check_functions(functions: Sequence[str], directory: Path, handler: str) -> None:
    """Refuse nodes that the handler file does not define, before a process is started for them."""
    if not handler:
        raise invalid(
            f"node '{functions[0]}' is no model, and {WORKFLOW_MANIFEST} names no handler with a function of this name"
        )
    try:
        raw = files.read(directory / handler, _MAX_BYTES + 1)
    except OSError as error:
        raise invalid(f"'{handler}' cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_BYTES:
        raise invalid(f"'{handler}' is larger than {_MAX_BYTES} bytes")
    try:
        tree = ast.parse(raw)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise invalid(f"'{handler}' is no Python: {error}") from error
    defined = _defined(tree)
    missing = [each for each in functions if each not in defined]
    if missing and "*" not in defined:
        raise invalid(
            f"node '{missing[0]}' is neither a model of the specification nor a function of '{handler}'; a model needs "
            f"an entry 'models: {{{missing[0]}: {{url: ...}}}}'"
        )


def _defined(tree: ast.Module) -> set[str]:
    """The names that functions, imports and assignments in a module bind, at any depth; "*" where it imports all names
    of another module."""
    names: set[str] = set()
    for statement in ast.walk(tree):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(statement.name)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {each.asname or each.name for each in statement.names}
        elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
            names.add(statement.id)
    return names
