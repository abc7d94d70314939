"""served_version.py: fresh instances in the place of old ones, with everything that may come in between."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from shoal.errors import UnavailableError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.from_worker import ReadyAnswered
from shoal.messages.to_batcher import InstanceGroupsChanged, ModelAdded, ModelRemoved, RetireWorker, WorkerDied
from shoal.messages.to_client import QuestionAnswered
from shoal.messages.to_worker import CheckReady, StopWorker
from shoal.reasons import DeathDetail
from shoal.repository.lifecycle import UNLOADED, VersionState
from shoal.supervisor.descriptors import Descriptors
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.processes import restarts
from shoal.supervisor.processes.death import Death
from shoal.supervisor.questions.questions import Questions
from tests.messages import Nonsense
from tests.scarcity import no_descriptors_left
from tests.supervisor.served_version import Version, version
from tests.supervisor.star_rig import OPTIONS


def replace_first(pair: Version) -> tuple[Instance, Instance]:
    """(the old one, the fresh one, which starts)."""
    served = pair.served
    old = served.instances[0]
    assert served.replace(old)
    (fresh,) = (each for each in pair.roster if each not in served.instances)
    assert (fresh.name, fresh.state) == (old.name, InstanceState.STARTING)
    return old, fresh


def retired(pair: Version, instance: Instance) -> bool:
    return RetireWorker(instance.worker.owner) in pair.told_batcher()


def test_the_old_one_serves_until_the_fresh_one_does_and_then_ends(pair: Version) -> None:
    old, fresh = replace_first(pair)
    second = pair.served.instances[1]
    assert pair.served.instances == [old, second]
    assert not retired(pair, old)
    pair.bring_up(fresh)
    assert pair.served.instances == [fresh, second]
    assert (pair.served.version.num_instances_up, pair.served.version.num_instances) == (2, 2)
    assert retired(pair, old)
    assert StopWorker() not in pair.told(old)
    old.stop()  # the batcher has nothing more for it
    assert StopWorker() in pair.told(old)
    pair.end(old)
    assert list(pair.roster) == [second, fresh]
    assert old.state is InstanceState.STOPPED


def test_the_fresh_one_goes_on_with_the_counts_of_the_name(pair: Version) -> None:
    old, fresh = replace_first(pair)
    assert (old.num_starts, old.num_recycles, fresh.num_starts, fresh.num_recycles) == (1, 0, 2, 1)


def test_one_at_a_time_and_only_while_nothing_else_changes(pair: Version) -> None:
    _, fresh = replace_first(pair)
    second = pair.served.instances[1]
    assert not pair.served.replace(second)
    pair.bring_up(fresh)
    assert pair.served.replace(second)
    (another,) = (each for each in pair.roster if each.state is InstanceState.STARTING)
    pair.bring_up(another)
    groups = [{**pair.served.version.config["instance_group"][0], "count": 3}]
    up = pair.served.resize(groups)
    assert not pair.served.replace(fresh)
    pair.bring_up(pair.served.instances[2])
    assert up.done()
    assert up.exception() is None
    pair.served.retire()
    assert not pair.served.replace(fresh)


def test_clients_hear_of_a_death_before_those_who_asked_it_do(pair: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[type[Any]]] = []
    pair.told_batcher()

    def send(_messages: object) -> None:
        told.append([type(message) for message in pair.rig.batcher.heard()])

    monkeypatch.setattr(pair.served, "_send", send)
    pair.end(pair.served.instances[0])
    assert told == [[]]
    assert WorkerDied in [type(message) for message in pair.told_batcher()]


def test_where_the_fresh_one_cannot_load_the_old_one_stays(pair: Version) -> None:
    old, fresh = replace_first(pair)
    pair.refuse(fresh)
    assert fresh.state is InstanceState.STOPPED
    assert pair.served.instances[0] is old
    assert (old.state, retired(pair, old)) == (InstanceState.UP, False)
    assert pair.served.version.state is VersionState.READY
    assert pair.served.replace(old)


def test_the_old_one_may_die_before_the_fresh_one_is_up(pair: Version) -> None:
    old, fresh = replace_first(pair)
    pair.end(old)
    assert pair.served.version.num_instances_up == 1
    pair.bring_up(fresh)
    assert pair.served.instances[0] is fresh
    assert pair.served.version.num_instances_up == 2
    pair.until(lambda: old not in pair.roster)


def test_scaling_down_meanwhile_wins(pair: Version) -> None:
    served = pair.served
    first, second = served.instances
    assert served.replace(second)
    fresh = next(each for each in pair.roster if each.state is InstanceState.STARTING)
    served.resize([{**served.version.config["instance_group"][0], "count": 1}])
    pair.bring_up(fresh)
    assert served.instances == [first]
    assert retired(pair, second)
    assert retired(pair, fresh)
    assert served.version.num_instances_up == 1


def test_the_end_takes_a_fresh_one_along(pair: Version) -> None:
    old, fresh = replace_first(pair)
    pair.served.stop()
    pair.until(lambda: fresh not in pair.roster)
    assert not pair.served.ended.done()
    for instance in (old, pair.served.instances[1]):
        pair.end(instance)
    assert pair.served.ended.done()


@pytest.mark.parametrize("num_up", [0, 1, 2])
def test_a_version_that_is_stopped_before_it_is_published_says_so(num_up: int) -> None:
    made = Version("", OPTIONS)
    loaded = made.begin()
    instances = list(made.served.instances)
    for instance in instances[:num_up]:
        made.bring_up(instance)
    made.served.stop()
    assert (made.served.version.state, made.served.version.reason) == (VersionState.UNAVAILABLE, UNLOADED)
    made.rig.clock.settle()
    assert isinstance(loaded.exception(), UnavailableError) is (num_up < 2)
    for instance in instances[:num_up]:
        made.end(instance)
    made.close()
    assert made.served.ended.done()


def test_a_version_whose_instances_fail_before_it_is_published_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other versions of its model may still load, for minutes."""
    monkeypatch.setattr(restarts, "MAX_DEATHS", 1)
    made = Version("", OPTIONS)
    try:
        loaded = made.begin()
        for instance in made.served.instances:
            made.bring_up(instance)
        loaded.result()
        for instance in tuple(made.served.instances):
            made.end(instance)
        made.served.publish()
        assert made.served.version.state is VersionState.UNAVAILABLE
        assert "all instances died again and again; the last: model 'm' version 1: " in made.served.version.reason
    finally:
        made.close()
    assert made.served.ended.done()


@pytest.mark.parametrize("number", [0, 1])
def test_an_instance_of_a_group_that_is_gone_dies_under_its_name(pair: Version, number: int) -> None:
    served, old = pair.served, pair.served.instances[number]
    (group,) = served.version.config["instance_group"]
    served.resize([{**group, "name": "first", "count": 1}, {**group, "name": "second", "count": 1}])
    owner = old.worker.owner
    pair.end(old)
    (detail,) = (told.detail for told in pair.told_batcher() if isinstance(told, WorkerDied) and told.owner == owner)
    told = [each.groups for each in pair.told_batcher() if isinstance(each, ModelAdded | InstanceGroupsChanged)]
    assert told[-1] == served.version.message().groups == ["m_0", "first", "second"]
    assert DeathDetail.unpack(detail).instance_name(told[-1]) == f"m_0_{number}"
    for instance in served.instances:
        pair.bring_up(instance)


def test_a_batcher_that_takes_over_as_a_version_ends_is_not_told_of_it(pair: Version) -> None:
    pair.served.retire()
    pair.served.on_drained()
    for instance in tuple(pair.served.instances):
        pair.end(instance)
    told = list(pair.told_batcher())
    assert ModelRemoved(pair.served.version.model_id) in told
    pair.served.introduce()
    pair.served.introduce_retiring()
    assert pair.told_batcher() == told


# --- errors of our own: what they cost ---


def test_a_worker_that_says_what_no_worker_says_costs_its_instance(
    pair: Version, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pair.served.instances
    process, pid = pair._processes[first.number], first.pid
    process.member.start()
    process.channel.send_encoded(msgpack.packb(["SegmentWanted", 0]) or b"", ())  # without what belongs to it
    process.channel.send(Nonsense())
    pair.until(lambda: first.pid not in (0, pid))
    assert "model 'm' version 1: instance 'm_0_0': its worker has sent no message that is due: " in caplog.text
    assert "of the server's own" not in caplog.text
    pair._forget(first.number)
    pair.bring_up(first)
    assert (first.state, second.state) == (InstanceState.UP, InstanceState.UP)
    assert pair.served.version.num_instances_up == 2


@pytest.mark.parametrize("where", ["describe", "detail"])
def test_an_error_in_handling_a_workers_end_costs_no_more_than_the_end(
    pair: Version, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    first, second = pair.served.instances
    owner, member = first.worker.owner, pair._processes[first.number].member
    with monkeypatch.context() as broken:
        broken.setattr(Death, where, lambda *_arguments: 1 / 0)
        pair.end(first)
        pair.until(lambda: first.state is InstanceState.STARTING)
    assert not member.is_open
    assert owner not in pair.rig.star.workers
    pair.bring_up(first)
    assert [told.owner for told in pair.told_batcher() if isinstance(told, WorkerDied)] == [owner]
    assert [instance.state for instance in (first, second)] == [InstanceState.UP] * 2
    assert pair.served.version.num_instances_up == 2


def test_a_last_message_that_cannot_be_read_leaves_no_question_waiting(
    pair: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of a worker is answered at its end, and its gauges go."""
    first, _ = pair.served.instances
    ask(pair, 5)
    left = list[int]()
    monkeypatch.setattr(pair.context.metrics, "leave", left.append)
    pair._processes[first.number].channel.send(Nonsense())
    pair.end(first)
    pair.until(lambda: first.state is InstanceState.STARTING)
    assert answers(pair) == {5: False}
    assert left == [first.number]
    pair.bring_up(first)


def test_what_an_error_leaves_of_an_instance_goes_even_if_that_fails(
    pair: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair.served.instances
    process = pair._processes[first.number]
    process.channel.send(Nonsense())
    with monkeypatch.context() as broken:
        broken.setattr(type(pair.rig.star), "leave_worker", lambda *_arguments: 1 / 0)
        pair.end(first)
        pair.until(lambda: first.state is InstanceState.STARTING)
    assert not process.member.is_open
    assert pair.served.version.num_instances_up == 1
    pair.bring_up(first)


def test_an_instance_that_cannot_be_started_is_started_again_later(
    pair: Version, caplog: pytest.LogCaptureFixture
) -> None:
    first = pair.served.instances[0]
    with no_descriptors_left():
        pair.end(first)
        pair.rig.clock.pass_time(restarts.backoff_s(1))
        assert "cannot be started: no file descriptor is left, a process of the server's may have 3." in caplog.text
        assert first.pid == 0
    pair.rig.clock.pass_time(restarts.backoff_s(2))
    assert first.pid != 0
    pair.bring_up(first)
    assert pair.served.version.num_instances_up == 2


def test_an_instance_that_cannot_be_started_at_all_fails_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Descriptors, "admit_instances", lambda *_arguments: None)  # they run out afterwards
    made = Version("", OPTIONS)
    try:
        with no_descriptors_left():
            loaded = made.begin()
        assert made.served.ended.done()
        with pytest.raises(UnavailableError, match=r"^the worker of instance 'm_0_0' cannot be started: no file descr"):
            loaded.result()
        assert made.served.version.state is VersionState.UNAVAILABLE
    finally:
        made.close()


def test_an_instance_whose_environment_has_no_place_fails_its_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise UnavailableError("user 12345 has no home directory")

    monkeypatch.setattr("shoal.supervisor.models.worker.worker_program", refuse)
    made = Version("", OPTIONS)
    try:
        with pytest.raises(UnavailableError, match=r"^user 12345 has no home directory$"):
            made.begin().result()
        assert "an error of the server's own" not in caplog.text
    finally:
        made.close()


def test_an_error_in_a_load_fails_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Version("", OPTIONS)
    try:
        monkeypatch.setattr(made.context.rate_limits, "admit", lambda *_arguments: 1 / 0, raising=False)
    except AttributeError:  # slots
        monkeypatch.setattr(type(made.context.rate_limits), "admit", lambda *_arguments: 1 / 0)
    try:
        loaded = made.begin()
        assert str(loaded.exception()) == "an error of the server's own, ZeroDivisionError: division by zero"
        assert made.served.ended.done()
    finally:
        made.close()


# --- whether it says that it is ready ---


def ask(pair: Version, number: int) -> None:
    questions = Questions(pair.rig.loop, {"is_ready": pair.readiness.is_ready})
    questions.take(pair.rig.a.member, QuestionAsked(number, "is_ready", {"model": pair.served.version.model_id}))
    pair.rig.clock.settle()


def answers(pair: Version) -> dict[int, bool]:
    pair.rig.settle()
    return {told.question: told.result for told in pair.rig.a.all_heard if isinstance(told, QuestionAnswered)}


def test_instances_are_asked_and_one_that_dies_is_not_ready(pair: Version) -> None:
    first, second = pair.served.instances
    ask(pair, 1)
    for instance in (first, second):
        assert CheckReady() in pair.told(instance)
        assert answers(pair) == {}
        pair.say(instance, ReadyAnswered(True))
    assert answers(pair) == {1: True}
    ask(pair, 2)
    pair.say(first, ReadyAnswered(True))
    pair.end(second)
    assert answers(pair) == {1: True, 2: False}
    ask(pair, 3)
    pair.say(first, ReadyAnswered(True))
    assert answers(pair) == {1: True, 2: False, 3: True}


@pytest.mark.parametrize("has_ready_check", [False, True])
def test_clients_hear_whether_there_is_anything_to_ask(has_ready_check: bool) -> None:
    made = Version("", OPTIONS)
    made.has_ready_check = has_ready_check
    try:
        made.load()
        assert made.served.version.message().has_ready_check is has_ready_check
    finally:
        made.close()


@pytest.mark.parametrize("cache", [{}, {"local": {"size": "4096"}}], ids=["without a cache", "with one"])
def test_front_ends_hear_whose_answers_are_cached(
    cache: dict[str, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    made = Version("response_cache { enable: true }", replace(OPTIONS, cache_config=cache))
    try:
        made.load()
        assert made.served.version.message().is_cached is bool(cache)
        assert ("give --cache-config" in caplog.text) is not bool(cache)
    finally:
        made.close()


# -- who keeps requests open for ever: the workers only wait, and do not end when they are told to ------------------


@pytest.fixture
def hasty() -> Iterator[Version]:
    """The pair, where nothing may take longer than a second."""
    with version(options=replace(OPTIONS, request_timeout_secs=1, exit_timeout_secs=1)) as made:
        yield made


def test_a_recycled_instance_has_so_long_to_answer_and_to_end(hasty: Version) -> None:
    old, fresh = replace_first(hasty)
    hasty.bring_up(fresh)
    hasty.rig.clock.pass_time(1)
    assert StopWorker() in hasty.told(old)  # without a word of the batcher's
    assert old.pid
    hasty.rig.clock.pass_time(1)
    hasty.until(lambda: old not in hasty.roster)
    assert (old.state, fresh.state) == (InstanceState.STOPPED, InstanceState.UP)
    hasty._forget(old.number)


def test_a_version_has_so_long_to_drain_and_to_end(pair: Version) -> None:
    instances, options = list(pair.served.instances), pair.context.options
    pair.served.retire()
    pair.rig.clock.pass_time(options.request_timeout_secs - 1)
    assert not any(StopWorker() in pair.told(each) for each in instances)
    pair.rig.clock.pass_time(1)
    assert all(StopWorker() in pair.told(each) for each in instances)
    pair.rig.clock.pass_time(options.exit_timeout_secs - 1)
    assert not pair.served.ended.done()
    assert all(each.pid for each in instances)
    pair.rig.clock.pass_time(1)
    pair.until(pair.served.ended.done)
    for each in instances:
        pair._forget(each.number)


def test_who_ends_in_time_is_left_alone(pair: Version, caplog: pytest.LogCaptureFixture) -> None:
    old = pair.served.instances[0]
    old.stop()
    pair.end(old)
    served = pair.served
    served.stop()
    for each in tuple(served.instances):
        pair.end(each)
    served.retire()
    assert served.ended.done()
    pair.rig.clock.pass_time(pair.context.options.exit_timeout_secs + pair.context.options.request_timeout_secs + 1)
    assert "is killed" not in caplog.text
    assert "keeps requests open" not in caplog.text
