"""Rollouts whose looks meet what nobody foresaw. Workers are simulated by the test."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.messages.to_batcher import SplitChanged
from shoal.repository.lifecycle import VersionState
from shoal.rollout_settings import read_plan
from shoal.supervisor.models.rollout_file import rollout_file
from shoal.supervisor.models.rollouts import Rollouts
from tests.supervisor.models.test_models import found, models_of
from tests.supervisor.served_version import Version
from tests.supervisor.star_rig import OPTIONS


@pytest.fixture
def version() -> Iterator[Version]:
    made = Version("", replace(OPTIONS, model_load_thread_count=2))
    yield made
    made.close()


@pytest.fixture
def rollouts(version: Version, tmp_path: Path) -> Rollouts:
    """The rollouts of a server with versions 1 and 2 of model m; the one to version 2 has begun, with 10 %."""
    models = models_of(version)
    rig = version.rig
    file = rollout_file(tmp_path / "rollouts.json")
    made = models.traffic = Rollouts(rig.star, models, file, lambda _: False, lambda *_: None)
    load = models.load(found("m", 1, 2))
    rig.settle()
    for instance in version.roster:
        version.bring_up(instance)
    rig.settle()
    load.result()
    plan = read_plan({"version": 2, "steps": "10", "every": "1h"})
    begun = rig.loop.begin(made.begin(models.get("m"), plan))
    rig.settle()
    begun.result()
    return made


def test_a_fault_of_the_servers_own_takes_the_canarys_requests_away(
    version: Version, rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = rollouts._models.get("m")
    assert rollouts.describe(model)["weights"] == {"1": 90.0, "2": 10.0}

    async def count(_: Any) -> Any:
        raise KeyError("figures")

    monkeypatch.setattr(rollouts.traffic, "count", count)
    version.rig.clock.pass_time(2.0)
    version.rig.settle()
    described = rollouts.describe(model)
    assert (described["phase"], described["weights"]) == ("rolled back", {"1": 100.0, "2": 0.0})
    assert described["reason"] == "an error of the server's own, KeyError: 'figures'"
    splits = [each for each in version.told_batcher() if isinstance(each, SplitChanged)]
    assert splits[-1].share == 0


def test_a_version_that_is_not_ready_is_not_promoted(version: Version, rollouts: Rollouts) -> None:
    model = rollouts._models.get("m")
    model.versions[2].version.move(VersionState.UNAVAILABLE, "its instances have died")
    asked = version.rig.loop.begin(rollouts.verbs["rollout"]({"model": "m", "action": "promote"}))
    version.rig.settle()
    with pytest.raises(UnavailableError, match="version 2 is not READY: its instances have died"):
        asked.result()
    assert rollouts.describe(model)["phase"] == "running"


def test_a_rollout_keeps_its_step_while_another_server_reads_its_file(
    version: Version, rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At an upgrade the old server went on to a step that the new one did not know; a guard ends it all the same."""
    model, rig = rollouts._models.get("m"), version.rig
    num_failed = 0

    async def count(_: Any) -> Any:
        return {model.identifier: SimpleNamespace(stable=[500, 0], canary=[500, num_failed], waiting=())}

    monkeypatch.setattr(rollouts.traffic, "count", count)
    plan = read_plan({"version": 2, "steps": "20,50,100", "every": "1s", "min_requests": 1, "guard": "errors<1%"})
    rollouts._rollouts[model.identifier].roll_back("for another plan")
    rig.clock.until(rig.loop.begin(rollouts.writer.hold()).done)
    begun = rig.loop.begin(rollouts.begin(model, plan))
    rig.settle()
    begun.result()
    rig.clock.pass_time(10.0)
    assert rollouts.describe(model)["step"] == 1
    num_failed = 500
    rig.clock.pass_time(10.0)
    assert rollouts.describe(model)["phase"] == "rolled back"
    rollouts.writer.release()
    rig.clock.until(rollouts.writer._written.done)
    assert [each.phase for each in rollouts._file.read()] == ["rolled back"]
