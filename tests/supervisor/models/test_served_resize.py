"""served_version.py: instances that come and go with other groups, and resizes that fail."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.messages.to_batcher import RetireWorker
from shoal.supervisor.descriptors import Descriptors
from shoal.supervisor.models import roster
from tests.supervisor.served_version import Version


@pytest.mark.parametrize("error", [UnavailableError("no descriptors"), KeyError("count")])
def test_a_resize_that_fails_is_answered_even_where_there_is_no_way_back(
    pair: Version, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_arguments: object) -> None:
        raise error

    groups = [{**pair.served.version.config["instance_group"][0], "name": "other", "count": 1}]
    up = pair.served.resize(groups)
    with monkeypatch.context() as scarce:
        scarce.setattr(Descriptors, "admit_instances", refuse)
        pair.refuse(pair.served.instances[0])
    assert str(up.exception()) == "no such file"


def test_a_resize_for_which_there_is_no_model_file_changes_nothing(
    pair: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may have gone since the version was loaded. What serves goes on, though it is not in the new groups."""

    def find(_directory: Path, _config: object, name: str, _capability: str) -> Path | None:
        if name == "other_1":
            raise InvalidArgumentError("no model file")
        return None

    monkeypatch.setattr(roster, "model_file", find)
    served, before = pair.served, list(pair.served.instances)
    config = served.version.config
    with pytest.raises(InvalidArgumentError, match="no model file"):
        served.resize([{**config["instance_group"][0], "name": "other", "count": 2}])
    assert served.instances == list(pair.roster) == before
    assert served.version.config is config
    assert not any(isinstance(told, RetireWorker) for told in pair.told_batcher())


def test_instances_that_cannot_come_back_are_tried_again_in_a_while(
    pair: Version, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the groups that were asked for nor those before them can be loaded by now."""
    served = pair.served
    before = served.version.config["instance_group"]
    up = served.resize([{**before[0], "name": "other", "count": 1}])
    pair.refuse(served.instances[0])
    assert str(up.exception()) == "no such file"
    first, second = served.instances
    pair.refuse(first)
    assert served.instances == [first, second]
    assert served.version.config["instance_group"] == before
    assert "no such file; it is started again in" in caplog.text
    pair.bring_up(second)
    assert served.version.num_instances_up == 1


def test_a_resize_is_answered_where_the_version_ends_first(pair: Version) -> None:
    up = pair.served.resize([{**pair.served.version.config["instance_group"][0], "count": 3}])
    pair.served.retire()
    pair.served.on_drained()
    assert str(up.exception()) == "model 'm' version 1 is unloaded"


@pytest.mark.parametrize("refused", [2, 3])
def test_of_two_resizes_under_way_neither_outlives_an_instance_that_cannot_load(pair: Version, refused: int) -> None:
    """The version goes back to the groups before both: those of the first resize have never been up."""
    served = pair.served
    old, before = list(served.instances), served.version.config["instance_group"]
    resizes = [served.resize([{**before[0], "count": count}]) for count in (3, 4)]
    pair.refuse(served.instances[refused])
    assert [str(up.exception()) for up in resizes] == ["no such file"] * 2
    pair.until(lambda: list(pair.roster) == old)
    assert served.instances == old
    assert served.version.config["instance_group"] == before
    assert (served.version.num_instances_up, served.version.num_instances) == (2, 2)
