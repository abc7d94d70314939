"""TorchServe's workflows: which are registered, and the models of their nodes.

    register ─► nodes found and unpacked ─► all loaded ─► registered        one fails ─► none is left
    unregister ─► nodes unloaded, their requests answered ─► what was unpacked or downloaded is removed

Front ends execute a workflow (frontend/torchserve/workflow_predictions.py): its graph is in parameters of its models'
configurations. Runs in the supervisor. Errors have TorchServe's sentences (shoal/torchserve_errors.py).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.repository.found import FoundModel
from shoal.supervisor.event_loop import gather
from shoal.supervisor.models.registration import Registration
from shoal.supervisor.models.registrations import Registrations
from shoal.supervisor.processes.repository import RepositoryPoller
from shoal.supervisor.questions.questions import Verb
from shoal.torchserve_errors import torchserve_error, torchserve_fault

_log = logging.getLogger(__name__)

Arguments = dict[str, Any]


class Registered(NamedTuple):
    """A registered workflow, as the poller describes it."""

    name: str
    url: str
    directory: str  # the unpacked archive
    archive: str  # the name of a download in the workflow store; "" where the archive was there
    min_workers: int  # this and the next three hold for nodes that do not set them
    max_workers: int
    batch_size: int
    max_batch_delay: int
    dag: str


class Workflows:
    """All registered workflows."""

    def __init__(self, repository: RepositoryPoller, registrations: Registrations) -> None:
        self._repository = repository
        self._registrations = registrations
        self.verbs: dict[str, Verb] = {
            "ts_register_workflow": self._register,
            "ts_unregister_workflow": self._unregister,
            "ts_workflows": self._list,
        }
        # Changed by registrations. `_nodes` has the name of a workflow from the beginning of its registration on.
        self._workflows: dict[str, Registered] = {}
        self._nodes: dict[str, list[tuple[str, Registration]]] = {}
        self._requests: dict[str, Arguments] = {}

    async def _register(self, arguments: Arguments) -> Mapping[str, Any]:
        """Register a workflow; answered once all nodes serve, or one has failed, and the others are removed."""
        request = {key: value for key, value in arguments.items() if value is not None}
        about, found = await self._repository.register_workflow(request)
        workflow = Registered(**about)
        if workflow.name in self._nodes:
            for each in found:
                self._withdraw_node(each)
            self._repository.withdraw_workflow(workflow.directory, workflow.archive)
            raise torchserve_error(409, "ConflictStatusException", f"Workflow {workflow.name} is already registered.")
        is_up = False
        try:
            failures = await self._bring_up(workflow.name, found)
            if failures:
                raise torchserve_error(
                    500,
                    "WorkflowException",
                    f"Workflow {workflow.name} has failed to register. Failures: [{', '.join(failures)}]",
                )
            is_up = True
        finally:
            if not is_up:
                await self._remove(workflow.name)
                self._repository.withdraw_workflow(workflow.directory, workflow.archive)
        self._workflows[workflow.name] = workflow
        self._requests[workflow.name] = request
        return {"workflow": workflow.name}

    async def _bring_up(self, name: str, found: Sequence[FoundModel]) -> list[str]:
        """Register and load the models of nodes; returns why some failed."""
        failures: list[str] = []
        added = self._nodes[name] = []
        left = list(found)
        try:
            while left:
                try:
                    added.append((left[0].name, self._registrations.add(left[0])))
                except ShoalError as error:
                    failures.append(_readable(error))
                    self._withdraw_node(left[0])
                del left[0]
        finally:
            for each in left:
                self._withdraw_node(each)
        if failures:
            return failures
        loads = [self._registrations.bring_up(node, row) for node, row in added]
        ended = await gather(*loads, return_exceptions=True)
        return [_readable(each) for each in ended if isinstance(each, BaseException)]

    async def _unregister(self, arguments: Arguments) -> None:
        """Unregister a workflow; answered when its nodes have ended."""
        name = arguments["workflow"]
        workflow = self._workflows.pop(name, None)
        if workflow is None:
            raise not_found(name)
        del self._requests[name]
        await self._remove(name)
        self._repository.withdraw_workflow(workflow.directory, workflow.archive)

    # --- upgrades ---

    def carried(self) -> list[dict[str, Any]]:
        """All registered workflows, as `restore` takes them."""
        return [
            {"request": self._requests[each.name], "url": each.url, "archive": each.archive}
            for each in self._workflows.values()
        ]

    async def restore(self, carried: Sequence[Mapping[str, Any]]) -> None:
        """Register the old server's workflows: each archive is unpacked again."""
        for each in carried:
            try:
                name = (await self._register({**each["request"], "url": each["archive"] or each["url"]}))["workflow"]
            except ShoalError as error:
                _log.error("workflow '%s' is not registered any more: %s", each["url"], _readable(error))
                continue
            self._requests[name] = dict(each["request"])
            self._workflows[name] = self._workflows[name]._replace(url=each["url"], archive=each["archive"])

    async def _list(self, arguments: Arguments) -> list[Mapping[str, Any]]:
        wanted = arguments.get("workflow")
        return [each._asdict() for name, each in sorted(self._workflows.items()) if wanted in (None, name)]

    async def _remove(self, name: str) -> None:
        """Unload the models of a workflow's nodes, and forget its name."""
        nodes = self._nodes[name]
        await gather(*[self._registrations.remove(node, row) for node, row in nodes], return_exceptions=True)
        self._nodes.pop(name, None)

    def _withdraw_node(self, found: FoundModel) -> None:
        """Remove the unpacked and downloaded files of a node that is not registered."""
        if "ts_workflow_function" not in found.config["parameters"]:
            self._repository.withdraw(found.directory, found.origin)


def not_found(name: str) -> ShoalError:
    """The error for a workflow that is not registered."""
    return torchserve_error(404, "WorkflowNotFoundException", f"Workflow not found: {name}")


def _readable(error: BaseException) -> str:
    fault = torchserve_fault(str(error))
    return str(error) if fault is None else fault.message
