"""TorchServe's workflows in the supervisor: all nodes serve, or none is left. The test plays the poller and workers."""

from dataclasses import replace
from typing import Any, cast

import pytest

from shoal.repository.found import FoundModel
from shoal.supervisor.event_loop import Future
from shoal.supervisor.models.workflows import Workflows
from shoal.supervisor.processes.repository import RepositoryPoller
from tests.supervisor.models.test_registrations import Rig, found, rig


def node(workflow: str, name: str, *, is_function: bool = False) -> FoundModel:
    """The model of a node as the poller finds it."""
    made = found(f"{workflow}__{name}", "1.0", 1)
    more = {"ts_workflow": {"string_value": workflow}}
    if is_function:
        more["ts_workflow_function"] = {"string_value": "true"}
    return replace(made, config={**made.config, "parameters": {**made.config["parameters"], **more}})


class Site:
    """Workflows over registrations, and the poller as the test plays it."""

    def __init__(self, made: Rig) -> None:
        self.made = made
        self.workflows = Workflows(cast(RepositoryPoller, self), made.registrations)
        self.finds: list[FoundModel] = []
        self.withdrawn: list[tuple[str, str]] = []
        self.asked: list[dict[str, Any]] = []

    def register_workflow(self, request: dict[str, Any]) -> Future[tuple[dict[str, Any], list[FoundModel]]]:
        self.asked.append(request)
        answer: Future[tuple[dict[str, Any], list[FoundModel]]] = self.made.made.rig.loop.future()
        about = {
            "name": "w", "url": "w.war", "directory": "/unpacked/w", "archive": "w.war", "min_workers": 1,
            "max_workers": 1, "batch_size": 1, "max_batch_delay": 50, "dag": "{a=[b]}",
        }  # fmt: skip
        answer.set_result((about, self.finds))
        return answer

    def withdraw_workflow(self, directory: str, archive: str) -> None:
        self.withdrawn.append((directory, archive))

    def withdraw(self, directory: Any, archive: str) -> None:
        self.made.withdraw(directory, archive)

    def ask(self, verb: str, **arguments: Any) -> Any:
        asked = self.made.made.rig.loop.begin(self.workflows.verbs[verb](arguments))
        self.made.made.rig.settle()
        return asked

    def register(self) -> Any:
        self.finds = [node("w", "a", is_function=True), node("w", "b")]
        return self.ask("ts_register_workflow", url="w.war", workflow_name=None)


def test_a_workflow_is_registered_once_all_nodes_serve_and_unregistered_when_all_have_ended() -> None:
    with rig() as made:
        site = Site(made)
        registering = site.register()
        assert site.asked == [{"url": "w.war"}]
        assert not registering.done()
        assert site.ask("ts_workflows", workflow=None).result() == []
        made.bring_up()
        assert registering.result() == {"workflow": "w"}
        assert [row["name"] for row in site.ask("ts_workflows", workflow="w").result()] == ["w"]
        assert [row[0] for row in made.listed()] == ["w__a", "w__b"]
        removing = site.ask("ts_unregister_workflow", workflow="w")
        assert not removing.done()
        made.end("w__a", 1)
        made.end("w__b", 1)
        assert removing.exception() is None
        assert site.withdrawn == [("/unpacked/w", "w.war")]
        assert made.withdrawn == [("w__b-1.0", "")]  # the function's directory is the workflow's
        assert made.refusal(site.ask("ts_unregister_workflow", workflow="w")) == (
            "ts:404:WorkflowNotFoundException:Workflow not found: w"
        )
        again = site.register()
        made.bring_up()
        assert again.result() == {"workflow": "w"}


def test_a_node_that_fails_leaves_none() -> None:
    with rig() as made:
        site = Site(made)
        registering = site.register()
        made.refuse()
        refusal = made.refusal(registering)
        beginning = "ts:500:WorkflowException:Workflow w has failed to register. Failures: ["
        assert refusal.startswith(f"{beginning}Failed to start workers for model w__")
        assert (made.listed(), site.withdrawn) == ([], [("/unpacked/w", "w.war")])
        assert site.ask("ts_workflows", workflow=None).result() == []


def test_a_fault_of_the_server_leaves_neither_nodes_nor_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig() as made:
        site, add = Site(made), made.registrations.add

        def fail_for_b(each: FoundModel) -> Any:
            if each.name == "w__b":
                raise RuntimeError("a fault")
            return add(each)

        monkeypatch.setattr(made.registrations, "add", fail_for_b)
        failed = site.register()
        assert isinstance(failed.exception(), RuntimeError)
        assert (made.listed(), site.withdrawn, made.withdrawn) == ([], [("/unpacked/w", "w.war")], [("w__b-1.0", "")])
        monkeypatch.undo()
        again = site.register()
        made.bring_up()
        assert again.result() == {"workflow": "w"}


def test_a_second_workflow_of_a_name_is_refused_and_the_first_goes_on() -> None:
    with rig() as made:
        site = Site(made)
        first = site.register()
        second = site.register()
        conflict = "ts:409:ConflictStatusException:Workflow w is already registered."
        assert made.refusal(second) == conflict
        assert (site.withdrawn, made.withdrawn) == ([("/unpacked/w", "w.war")], [("w__b-1.0", "")])
        made.bring_up()
        assert first.result() == {"workflow": "w"}


def test_a_node_with_the_name_of_a_model_is_refused_with_the_whole_workflow() -> None:
    with rig() as made:
        made.add(found("w__b", "1.0", 1))
        made.bring_up()
        site = Site(made)
        registering = site.register()
        made.bring_up()
        assert "Model version 1.0 is already registered for model w__b" in made.refusal(registering)
        assert [row[0] for row in made.listed()] == ["w__b"]


def test_nodes_are_in_no_snapshot() -> None:
    with rig() as made:
        made.add(found("m", "1.0", 1))
        made.bring_up()
        site = Site(made)
        site.register()
        made.bring_up()
        assert [*made.registrations._snapshot()] == ["m"]


def test_a_new_server_registers_what_the_old_one_had() -> None:
    with rig() as made:
        old = Site(made)
        old.register()
        made.bring_up()
        carried = old.workflows.carried()
        assert carried == [{"request": {"url": "w.war"}, "url": "w.war", "archive": "w.war"}]
        assert made.registrations.carried() == []  # its nodes come with it
    with rig() as made:
        new = Site(made)
        new.finds = [node("w", "a", is_function=True), node("w", "b")]
        restoring = made.made.rig.loop.begin(new.workflows.restore(carried))
        made.made.rig.settle()
        made.bring_up()
        assert restoring.exception() is None
        assert (new.asked, new.workflows.carried()) == ([{"url": "w.war"}], carried)
        assert [row[0] for row in made.listed()] == ["w__a", "w__b"]
    with rig() as made:
        failing = Site(made)
        failing.finds = [node("w", "a")]
        restoring = made.made.rig.loop.begin(failing.workflows.restore(carried))
        made.made.rig.settle()
        made.refuse()
        assert restoring.exception() is None
        assert failing.workflows.carried() == []
