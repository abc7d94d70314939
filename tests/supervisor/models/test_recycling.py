"""recycling.py: who has served enough, by what workers have written and the kernel says."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.repository.identifier import ModelIdentifier
from shoal.shm.layout import TAKEN_WORD
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.models.recycling import Recycling
from shoal.supervisor.processes.progress import rss_bytes
from tests.supervisor.served_version import Version, version


class Model:
    """As much of a model as is looked at."""

    def __init__(self, made: Version) -> None:
        self.serving = {1: made.served}


class Models:
    """One model."""

    def __init__(self, made: Version) -> None:
        self.loop = made.rig.loop
        self.models = {ModelIdentifier("m", ""): Model(made)}


def parameter(name: str, value: int | str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }} '


@contextmanager
def recycled(more: str, *, jitter: int = 0) -> Iterator[tuple[Version, Recycling]]:
    with version(more) as made:
        models: Any = Models(made)
        yield made, Recycling(models, lambda most: min(jitter, most))


def num_starting(made: Version) -> int:
    return sum(each.state is InstanceState.STARTING for each in made.roster)


@pytest.mark.parametrize(("jitter", "enough"), [(0, 100), (7, 107), (50, 120)])
def test_it_is_replaced_that_has_taken_enough_requests(
    jitter: int, enough: int, caplog: pytest.LogCaptureFixture
) -> None:
    with recycled(parameter("max_requests", 100) + parameter("max_requests_jitter", 20), jitter=jitter) as (
        made,
        recycling,
    ):
        instance = made.served.instances[1]
        made.words[instance.number][TAKEN_WORD] = enough - 1
        recycling.look()
        assert num_starting(made) == 0
        made.words[instance.number][TAKEN_WORD] = enough
        with caplog.at_level(logging.INFO):
            recycling.look()
            recycling.look()
        assert num_starting(made) == 1
        assert [record.getMessage() for record in caplog.records] == [
            f"instance 'm_0_1' (pid {instance.pid}) of model 'm' is recycled: it has taken {enough} requests, the "
            "model's 'max_requests' is 100"
        ]
        made.bring_up(next(each for each in made.roster if each.state is InstanceState.STARTING))
        recycling.look()
        assert num_starting(made) == 0  # the fresh one counts from 0


def test_the_second_one_waits_for_the_first(caplog: pytest.LogCaptureFixture) -> None:
    with recycled(parameter("max_requests", 10)) as (made, recycling):
        for instance in made.served.instances:
            made.words[instance.number][TAKEN_WORD] = 10
        recycling.look()
        recycling.look()
        assert num_starting(made) == 1
        made.bring_up(next(each for each in made.roster if each.state is InstanceState.STARTING))
        recycling.look()
        assert num_starting(made) == 1


def test_it_is_replaced_that_has_grown_and_not_what_was_large_from_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with recycled(parameter("max_rss", "100K")) as (made, recycling):
        first, second = made.served.instances
        assert rss_bytes(first.pid) > 100 << 10
        second.rss_when_up_bytes = 90 << 10
        with caplog.at_level(logging.INFO):
            recycling.look()
            recycling.look()
        assert num_starting(made) == 1
        warning, replaced = (record.getMessage() for record in caplog.records if "recycled" in record.getMessage())
        assert warning.startswith("instance 'm_0_0' of model 'm' is not recycled: when it came up, before any request,")
        assert f"instance 'm_0_1' (pid {second.pid}) of model 'm' is recycled: it has " in replaced
        assert "MiB of memory, the model's 'max_rss' is 0 MiB" in replaced


def test_what_grows_again_and_again_is_recycled_as_rarely_as_the_dead_are_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The requests of a model need more memory than `max_rss`: each fresh instance soon grows beyond it, too."""
    with recycled(parameter("max_rss", "100K")) as (made, recycling):
        begun_s, times_s = made.rig.loop.now_s(), list[float]()
        while len(times_s) < 7:
            made.served.instances[0].rss_when_up_bytes = 90 << 10
            recycling.look()
            for fresh in [each for each in made.roster if each.state is InstanceState.STARTING]:
                times_s.append(round(made.rig.loop.now_s() - begun_s, 1))
                made.bring_up(fresh)
            made.rig.clock.pass_time(0.1)
        assert times_s == [0.0, 0.1, 0.6, 1.6, 3.6, 33.6, 63.6]
    said = [record.getMessage() for record in caplog.records if "again and again" in record.getMessage()]
    assert len(said) == 3
    assert "instance 'm_0_0' of model 'm' has grown beyond 'max_rss' again and again" in said[0]
    assert "not recycled for that in the next 30 s. Where its requests need so much memory, raise 'max_rss'" in said[0]


def test_where_the_fresh_one_fails_it_is_not_tried_again_at_once() -> None:
    with recycled(parameter("max_requests", 10)) as (made, recycling):
        instance = made.served.instances[0]
        made.words[instance.number][TAKEN_WORD] = 10
        recycling.look()
        made.refuse(next(each for each in made.roster if each.state is InstanceState.STARTING))
        recycling.look()
        assert num_starting(made) == 0


def test_without_limits_no_instance_is_recycled() -> None:
    with recycled("") as (made, recycling):
        made.words[made.served.instances[0].number][TAKEN_WORD] = 1 << 40
        recycling.look()
        assert num_starting(made) == 0
