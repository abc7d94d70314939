"""Model control: what becomes of a registered repository. The test plays the poller and the workers."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.errors import AlreadyExistsError, NotFoundError
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.repository.found import FoundModel, FoundVersion
from shoal.supervisor.event_loop import EventLoop, Future, Task
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.model_control import ModelControl
from shoal.supervisor.models.models import Models
from shoal.supervisor.processes.repository import RepositoryPoller
from tests.supervisor.served_version import CONFIG, Version
from tests.supervisor.star_rig import OPTIONS

ARGUMENTS = {"model": "m", "repository": "/registered"}


class Poller:
    """Finds the one model that there is."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    def look_all(self, _name: str, **_more: Any) -> Future[list[FoundModel]]:
        found: Future[list[FoundModel]] = self._loop.future()
        config = normalise(pbtxt.parse(CONFIG, Path("config.pbtxt")))
        versions = {1: FoundVersion(Path("/registered/m/1"), 1)}
        found.set_result([FoundModel("m", Path("/registered/m"), config, {}, versions, 1)])
        return found


def test_a_removal_that_meets_an_unexpected_error_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Version("", OPTIONS)
    loop = made.rig.loop
    models = Models(made.context, made.roster, lambda: None, lambda _: None, lambda _: None)
    control = ModelControl(
        replace(OPTIONS, model_control_mode="explicit"), cast(RepositoryPoller, Poller(loop)), models
    )

    def ask(verb: str) -> Task[Any]:
        asked = loop.begin(control.verbs[verb](ARGUMENTS))
        made.rig.settle()
        return asked

    registered = ask("register")
    for instance in made.roster:
        made.bring_up(instance)
    made.rig.settle()
    assert registered.exception() is None
    with monkeypatch.context() as broken:
        broken.setattr(Star, "announce_to_clients", lambda _star, _messages: 1 / 0)
        assert isinstance(ask("unregister").exception(), ZeroDivisionError)
    assert isinstance(ask("register").exception(), AlreadyExistsError)
    removed = ask("unregister")
    (version,) = models.versions
    models.on_drained(version.model_id)
    for instance in made.roster:
        made.end(instance)
    made.rig.settle()
    assert removed.exception() is None
    assert isinstance(ask("unregister").exception(), NotFoundError)
    made.close()
