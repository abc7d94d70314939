"""shared_process.py: instances that are threads of one process, as the supervisor starts, follows and ends them."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.messages.to_worker import PinInstance, StartInstance, StopWorker
from shoal.placement import Machine, place
from shoal.reasons import SHARED_PROCESS, DeathDetail, Reason
from shoal.shm.layout import PROGRESS_WORD
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.models.scaling import with_count
from shoal.supervisor.processes import niceness
from tests.supervisor.served_version import Version, version
from tests.supervisor.star_rig import OPTIONS

SHARED = 'parameters { key: "instances_share_process" value { string_value: "true" } }'


@pytest.fixture
def pair() -> Iterator[Version]:
    with version(SHARED) as made:
        yield made


def told(pair: Version, instance: Instance, kind: type) -> list[object]:
    return [message for message in pair.told(instance) if isinstance(message, kind)]


def states(pair: Version) -> list[InstanceState]:
    return [each.state for each in pair.served.instances]


def test_a_thread_is_started_by_the_first_instance_once_that_is_up() -> None:
    made = Version(SHARED, OPTIONS)
    try:
        made.begin()
        first, other = made.served.instances
        assert other.worker.child is None
        made.bring_up(first)
        assert told(made, first, StartInstance) == [StartInstance(other.number)]
        assert other.worker.child is first.worker.child
        made.bring_up(other)
        assert first.pid == other.pid != 0
    finally:
        made.close()


def test_the_death_of_the_process_is_that_of_all_and_the_first_starts_the_next(
    pair: Version, caplog: pytest.LogCaptureFixture
) -> None:
    first, other = pair.served.instances
    pid = first.pid
    pair.words[other.number][PROGRESS_WORD] = 4  # so many batches have been completed, none by the first
    pair.end(first)
    pair._forget(other.number)
    assert states(pair) == [InstanceState.STARTING] * 2
    assert caplog.text.count(f"(pid {pid}, shared with other instances) was killed by signal 9") == 2
    assert other.worker.child is None
    assert [each.num_starts for each in (first, other)] == [2, 2]
    pair.bring_up(first)
    pair.bring_up(other)
    assert first.pid == other.pid


def test_the_others_are_failed_with_the_first(pair: Version) -> None:
    first, other = pair.served.instances
    for _ in range(5):
        pair.end(first)
        if other.number in pair._processes:
            pair._forget(other.number)
        pair.rig.clock.pass_time(5)
        if first.state is InstanceState.STARTING:
            pair.bring_up(first)
    assert first.is_failed
    assert other.is_failed
    assert pair.served.version.is_failed


def test_a_thread_that_is_not_wanted_any_more_ends_and_the_process_goes_on(pair: Version) -> None:
    first, other = pair.served.instances
    pair.served.resize(with_count(pair.served.version.config, 1))
    other.stop()
    assert told(pair, other, StopWorker)
    pair._forget(other.number)  # the end of its connection
    pair.until(lambda: other not in list(pair.roster))
    assert first.state is InstanceState.UP
    assert first.pid
    assert not told(pair, first, StopWorker)


def test_a_thread_that_cannot_load_leaves_the_others_as_they_are(
    pair: Version, caplog: pytest.LogCaptureFixture
) -> None:
    first, other = pair.served.instances
    up = pair.served.resize(with_count(pair.served.version.config, 3))
    third = pair.served.instances[2]
    pair.rig.clock.settle()
    pair._join(third)
    third.worker.fail(UnavailableError("no memory"))
    pair.until(lambda: third not in list(pair.roster))
    pair._forget(third.number)
    assert str(up.exception()) == "no memory"
    assert "an error of the server's own" not in caplog.text
    assert states(pair) == [InstanceState.UP] * 2
    assert first.pid == other.pid != 0


def test_a_thread_that_loads_can_be_stopped_alone(pair: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.served.resize(with_count(pair.served.version.config, 3))
    third = pair.served.instances[2]
    pair.rig.clock.settle()
    pair._join(third)
    sent = list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(third.worker.child, "signal", sent.append)
        third.stop()
        pair.until(lambda: not third.pid)
    assert sent == [], "the other instances go on in the process"
    pair._forget(third.number)


def test_a_load_that_fails_ends_the_version(caplog: pytest.LogCaptureFixture) -> None:
    made = Version(SHARED, OPTIONS)
    try:
        loaded = made.begin()
        made.refuse(made.served.instances[0])
        assert str(loaded.exception()) == "no such file"
        assert not list(made.roster)
        assert "an error of the server's own" not in caplog.text
        assert made.served.ended.done()
    finally:
        made.close()


def other_groups(pair: Version) -> list[dict[str, Any]]:
    """The version's groups with another demand: all instances are replaced, in a group of the same name."""
    limiter = {"resources": [{"name": "R", "global": False, "count": 1}], "priority": 7}
    return [{**each, "rate_limiter": limiter} for each in pair.served.version.config["instance_group"]]


def test_instances_that_come_while_the_first_is_down_have_a_process_of_their_own(pair: Version) -> None:
    first, other = pair.served.instances
    pair.end(first)
    pair._forget(other.number)
    pair.bring_up(first)
    pair.end(first)
    assert not first.pid, "it pauses before its next start"
    pair.served.resize(other_groups(pair))
    fresh = pair.served.instances
    assert first not in fresh
    pair.bring_up(fresh[0])
    pair.bring_up(fresh[1])
    assert fresh[0].pid == fresh[1].pid != 0


def test_a_thread_is_started_in_a_process_whose_first_instance_only_waits_for_the_others(pair: Version) -> None:
    first, other = pair.served.instances
    pair.served.resize(other_groups(pair))
    fresh = tuple(pair.served.instances)
    for each in fresh:
        pair.bring_up(each)
    first.stop()
    other.stop()
    pair._forget(other.number)  # the end of its connection
    pair.until(lambda: not other.pid)
    assert not told(pair, first, StopWorker)
    pair.served.resize(with_count(pair.served.version.config, 3))
    pair.bring_up(pair.served.instances[2])
    assert {each.pid for each in pair.served.instances} == {first.pid}


def test_the_first_ends_last(pair: Version) -> None:
    first, other = pair.served.instances
    pair.served.discard()
    assert not told(pair, first, StopWorker)
    assert told(pair, other, StopWorker)
    pair._forget(other.number)  # the end of its connection
    pair.until(lambda: not other.pid)
    pair.rig.clock.settle()
    assert told(pair, first, StopWorker)


def test_a_process_that_dies_while_its_first_instance_waits_to_end_changes_no_other_s_priority(
    pair: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = pair.served.instances
    pair.served.discard()
    pids = list[int]()
    monkeypatch.setattr(niceness, "lower_priority", pids.append)
    pair.end(first)
    pair._forget(other.number)
    pair.until(lambda: not list(pair.roster))
    assert 0 not in pids, "that is the supervisor itself"


def test_a_connection_that_ends_unasked_is_the_end_of_the_process(pair: Version) -> None:
    first, other = pair.served.instances
    pid = first.pid
    pair._forget(other.number)  # the end of its connection
    pair.until(lambda: first.pid != pid)
    pair._forget(first.number)


def test_the_only_instance_of_its_process_has_died_alone(pair: Version, caplog: pytest.LogCaptureFixture) -> None:
    first, other = pair.served.instances
    pair.served.resize(with_count(pair.served.version.config, 1))
    other.stop()
    pair._forget(other.number)  # the end of its connection
    pair.until(lambda: other not in list(pair.roster))
    pid = first.pid
    pair.end(first)
    assert f"(pid {pid}) was killed by signal 9" in caplog.text


def test_cores_are_changed_thread_by_thread(pair: Version) -> None:
    _, other = pair.served.instances
    other.pin(other.placement._replace(cores=(7,)))
    assert told(pair, other, PinInstance) == [PinInstance([7])]


def test_placements_know_the_cores_of_their_process() -> None:
    made = Version(SHARED, OPTIONS)
    placements = place(made.served.version.config, Machine((0, 1, 2, 3)))
    made.close()
    assert [each.cores for each in placements] == [(0, 1), (2, 3)]
    assert [each.process_cores for each in placements] == [(0, 1, 2, 3)] * 2


def test_only_the_end_of_the_whole_process_is_one_of_several_instances(pair: Version) -> None:
    _, other = pair.served.instances
    worker, placement = other.worker, other.placement
    assert worker.death(0, "", 0, placement, is_shared=True).detail(("m_0",), placement) & SHARED_PROCESS == 0
    pid = other.pid
    pair.end(pair.served.instances[0], signal.SIGTERM)
    pair._forget(other.number)
    death = worker.death(-15, "", 0, placement, is_shared=True)
    assert death.reason is Reason.INSTANCE_DIED
    assert DeathDetail.unpack(death.detail(("m_0",), placement)).figure & SHARED_PROCESS
    assert f"(pid {pid}, shared with other instances)" in death.describe()
