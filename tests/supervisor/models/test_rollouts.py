"""Rollouts whose looks meet what nobody foresaw. Workers are played by the test."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.messages.to_batcher import SplitChanged
from shoal.rollout_settings import read_plan
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.rollout_file import rollout_file
from shoal.supervisor.models.rollouts import Rollouts
from shoal.supervisor.models.traffic import Traffic
from tests.supervisor.models.test_models import found, models_of
from tests.supervisor.served_version import Version
from tests.supervisor.star_rig import OPTIONS


@pytest.fixture
def version() -> Iterator[Version]:
    made = Version("", replace(OPTIONS, model_load_thread_count=2))
    yield made
    made.close()


def rollouts_of(version: Version, models: Models, path: Path) -> Rollouts:
    rig = version.rig
    traffic = Traffic(rig.star, models, models.all_versions.take_id)
    made = Rollouts(rig.loop, models, traffic, rollout_file(path), lambda _: False, lambda *_: None)
    models.all_versions.traffic = made
    return made


def test_a_fault_of_the_servers_own_takes_the_canarys_requests_away(
    version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = models_of(version)
    rollouts = rollouts_of(version, models, tmp_path / "rollouts.json")
    load = models.load(found("m", 1, 2))
    version.rig.settle()
    for instance in version.roster:
        version.bring_up(instance)
    version.rig.settle()
    load.result()
    model = models.get("m")
    begun = version.rig.loop.begin(rollouts.begin(model, read_plan({"version": 2, "steps": "10", "every": "1h"})))
    version.rig.settle()
    begun.result()
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
