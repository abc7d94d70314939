"""TorchServe's workflows: from a registered `.war` to the models of its nodes, found and unpacked as any other.

A model of a workflow is one of the store, named WORKFLOW__NODE; a function becomes a model, too, whose version
directory is the unpacked `.war`. Runs in the poller, beside store.py.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.passwords import shown_url
from shoal.repository.found import FoundModel
from shoal.repository.identifier import is_model_name
from shoal.repository.torchserve.configuration import StoreRequest, WorkflowPart
from shoal.repository.torchserve.download import download, is_url
from shoal.repository.torchserve.store import TorchServeStore, remove_download
from shoal.repository.torchserve.workflow import Node, Workflow, invalid, read_workflow
from shoal.torchserve_errors import torchserve_error

#: The ending of archives of workflows, which tells them from those of models.
ENDING = ".war"


class WorkflowRequest(NamedTuple):
    """A registration of a workflow. None: not given."""

    url: str
    workflow_name: str | None = None
    response_timeout: int | None = None  # s
    startup_timeout: int | None = None  # s


class FoundWorkflow(NamedTuple):
    """A workflow whose nodes have all been found."""

    about: Mapping[str, Any]  # the fields of supervisor/models/workflows.py's Registered
    models: list[FoundModel]


def register_workflow(store: TorchServeStore, request: WorkflowRequest) -> FoundWorkflow:
    """The nodes of a workflow as models, each with one version. Raises ShoalError with TorchServe's status, type and
    sentence; a failed attempt leaves no files."""
    path, is_download = _find(store, request.url)
    directory, models = None, list[FoundModel]()
    try:
        directory = store.unpack(path, invalid)
        workflow = read_workflow(directory, request.workflow_name)
        for node in workflow.nodes.values():
            models.append(store.register(_of_node(workflow, node, request, directory)))
    except ShoalError:
        for found in models:
            store.withdraw(found.directory, found.origin)
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
        if is_download:
            remove_download(path)
        raise
    return FoundWorkflow(_about(workflow, request.url, directory, path.name if is_download else ""), models)


def withdraw_workflow(store: TorchServeStore, directory: Path, archive: str) -> None:
    """Remove an unpacked `.war` and, if the archive was a download, `archive` from its store ("": it was none)."""
    store.withdraw(directory, "")
    if archive and is_model_name(archive):
        remove_download(store.settings.workflow_directory / archive)


def _find(store: TorchServeStore, url: str) -> tuple[Path, bool]:
    """The archive that a registration means, and whether the registration has downloaded it."""
    if not url:
        raise torchserve_error(404, "WorkflowNotFoundException", "empty url")
    if ".." in url:
        raise torchserve_error(
            404, "WorkflowNotFoundException", f"Relative path is not allowed in url: {shown_url(url)}"
        )
    if not url.partition("?")[0].endswith(ENDING):
        raise invalid(f"'{shown_url(url)}' is no archive of a workflow, whose name ends with {ENDING}")
    directory = store.settings.workflow_directory
    if is_url(url):
        return download(url, directory, store.settings.allowed_urls), True
    with suppress(OSError):  # a name that is too long, or a directory that the server's user may not read
        if is_model_name(url) and (directory / url).is_file():
            return directory / url, False
    raise torchserve_error(404, "WorkflowNotFoundException", f"Workflow not found in workflow store: {shown_url(url)}")


def _of_node(workflow: Workflow, node: Node, request: WorkflowRequest, directory: Path) -> StoreRequest:
    settings = node.settings
    described = {
        "name": node.name,
        "next": node.next,
        "retries": settings["retry-attempts"],
        "timeout_ms": settings["timeout-ms"],
    }
    part = WorkflowPart(workflow.name, json.dumps(described), "" if node.url else request.url)
    return StoreRequest(
        node.url or str(directory),
        model_name=f"{workflow.name}__{node.name}",
        handler=None if node.url else f"{workflow.handler}:{node.name}",
        batch_size=settings["batch-size"],
        max_batch_delay=settings["max-batch-delay"],
        initial_workers=settings["max-workers"],  # in TorchServe, too, a node begins with its most workers
        response_timeout=request.response_timeout,
        startup_timeout=request.startup_timeout,
        part=part,
    )


def _about(workflow: Workflow, url: str, directory: Path, archive: str) -> Mapping[str, Any]:
    written = ", ".join(f"{name}=[{', '.join(following)}]" for name, following in workflow.graph.items())
    settings = workflow.settings
    return {
        "name": workflow.name,
        "url": url,
        "directory": str(directory),
        "archive": archive,
        "min_workers": settings["min-workers"],
        "max_workers": settings["max-workers"],
        "batch_size": settings["batch-size"],
        "max_batch_delay": settings["max-batch-delay"],
        "dag": f"{{{written}}}",  # as Java writes a map
    }
