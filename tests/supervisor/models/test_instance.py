"""instance.py: what may happen while a worker comes up. Workers only wait, the test speaks for them."""

import errno
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from shoal.errors import InternalError
from shoal.messages.from_worker import MemoryMapped, ModelIOFound, ModelLoaded
from shoal.messages.message import Message
from shoal.messages.shared import LedgerCounted
from shoal.messages.to_batcher import WorkerReady
from shoal.repository.lifecycle import VersionState
from shoal.supervisor.models import instance as instance_module
from shoal.supervisor.models import worker as worker_module
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.processes.progress import WorkerProgress
from tests.messages import Nonsense
from tests.supervisor.served_version import Version
from tests.supervisor.star_rig import OPTIONS

NO_TENSORS: Any = [["A", "TYPE_FP32", [b"1"]]]
NO_COUNTS: Any = {"descriptors": "1"}


@pytest.fixture
def starting() -> Iterator[Version]:
    """A version whose two workers have begun, and have yet to connect."""
    made = Version("", OPTIONS)
    made.begin()
    yield made
    made.close()


def acknowledge_all(made: Version) -> None:
    """All processes acknowledge what they were sent; nothing that waits for that has happened yet."""
    for process in made.rig.all:
        process.read()
        while process.unacknowledged:
            made.rig.star.acknowledgements.received(process.member, process.unacknowledged.pop(0))


def map_memory(made: Version, instance: Instance) -> None:
    """A worker connects, loads and maps; the batcher and the front ends have yet to acknowledge it."""
    made._join(instance)
    for message in (ModelLoaded(False), MemoryMapped()):
        made.say(instance, message)
        made.rig.clock.settle()
    assert instance.state is InstanceState.MAPPING


def test_a_worker_that_does_not_come_up_in_time_fails_the_load(starting: Version) -> None:
    first, second = starting.served.instances
    starting.bring_up(first)
    map_memory(starting, second)
    starting.rig.clock.pass_time(OPTIONS.model_load_timeout_secs)
    starting.until(starting.served.loaded.done)
    error = starting.served.loaded.exception()
    assert isinstance(error, InternalError)
    assert str(error) == (
        f"model 'm' version 1 instance 'm_0_1' did not load within {OPTIONS.model_load_timeout_secs:g} s; give it "
        "longer with --model-load-timeout-secs"
    )
    assert starting.served.version.state is VersionState.UNAVAILABLE


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (Nonsense(), "no message that is due: KeyError('Nonsense')"),
        (ModelIOFound(NO_TENSORS, [], None, False), "a report of tensors that cannot be read: "),
        (LedgerCounted(NO_COUNTS), "a ledger of what is no count"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_a_worker_that_sends_what_is_no_message_fails_its_load(starting: Version, message: Message, what: str) -> None:
    instance = starting.served.instances[0]
    process = starting._join(instance)
    process.member.start()
    process.channel.send(message)
    starting.until(starting.served.loaded.done)
    error = starting.served.loaded.exception()
    assert str(error).startswith(f"model 'm' version 1: instance 'm_0_0': its worker has sent {what}")


def test_an_instance_that_is_up_has_no_time_limit(starting: Version) -> None:
    for instance in starting.served.instances:
        starting.bring_up(instance)
    starting.rig.clock.pass_time(OPTIONS.model_load_timeout_secs + 1)
    assert [each.state for each in starting.served.instances] == [InstanceState.UP] * 2


def test_an_end_that_comes_before_the_first_process_has_begun_keeps_it_from_beginning() -> None:
    made, instances = Version("", OPTIONS), list[Instance]()

    async def stop() -> None:
        instances.extend(made.served.instances)
        assert [each.state for each in instances] == [InstanceState.STARTING] * 2
        made.served.stop()

    loaded = made.rig.loop.begin(made.served.load())
    made.rig.loop.begin(stop())  # in the pass in which the load starts its instances, whose flows begin in the next
    made.until(loaded.done)
    assert [each.worker.child for each in instances] == [None, None]
    assert made.served.ended.done()
    made.close()


@pytest.mark.parametrize("end", [Instance.stop, Instance.retire])
def test_a_worker_that_is_stopped_as_all_have_acknowledged_it_gets_no_batches(
    starting: Version, end: Callable[[Instance], None]
) -> None:
    instance = starting.served.instances[0]
    map_memory(starting, instance)
    acknowledge_all(starting)
    end(instance)
    owner = instance.worker.owner
    starting.until(lambda: instance not in starting.roster)
    starting._forget(instance.number)
    assert (instance.state, instance.has_been_up) == (InstanceState.STOPPED, False)
    assert WorkerReady(owner) not in starting.told_batcher()
    assert owner not in starting.rig.star.workers


def test_a_second_process_that_claims_to_be_an_instance_is_hung_up_on(starting: Version) -> None:
    instance = starting.served.instances[0]
    first, second = starting.rig.start(), starting.rig.start()
    starting._processes[instance.number] = first
    for process in (first, second):
        process.member.pid = instance.pid
        starting.roster.join(instance.number, process.member)
    assert (first.member.is_open, second.member.is_open) == (True, False)
    starting.rig.all.remove(second)
    second.close()
    starting.rig.clock.settle()
    assert instance.state is InstanceState.LOADING


def test_a_worker_that_has_died_before_it_is_taken_in_does_not_take_the_next_ones_place(pair: Version) -> None:
    instance = pair.served.instances[0]
    dead, late = instance.pid, pair.rig.start()
    pair.end(instance)
    pair.until(lambda: instance.pid not in (0, dead))
    late.member.pid = dead  # it had connected, and its first message is read only now
    pair.roster.join(instance.number, late.member)
    assert not late.member.is_open
    pair.rig.all.remove(late)
    late.close()
    pair.bring_up(instance)


def test_a_worker_for_whose_progress_no_descriptor_is_left_fails_the_load_and_says_why(
    starting: Version, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_fds: int) -> WorkerProgress:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(worker_module, "WorkerProgress", refuse)
    instance = starting.served.instances[0]
    map_memory(starting, instance)
    acknowledge_all(starting)
    starting.until(lambda: instance not in starting.roster)
    starting._forget(instance.number)
    assert not instance.has_been_up
    assert "failed to load 'm' version 1: no file descriptor is left" in caplog.text
    assert "the server's own" not in caplog.text


def test_a_worker_that_cannot_be_pinned_keeps_its_cores_and_serves(
    pair: Version, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_pid: int, _cores: Collection[int]) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(instance_module, "pin_threads", refuse)
    instance = pair.served.instances[0]
    instance.pin(instance.placement._replace(cores=(0, 1)))
    assert f"worker m_0_0 (pid {instance.pid}) keeps its cores: no file descriptor is left" in caplog.text
    assert instance.state is InstanceState.UP
