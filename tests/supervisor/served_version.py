"""A version in the supervisor's hands: real instances whose workers only wait; the test says what workers say."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.messages.from_worker import MemoryMapped, ModelLoaded
from shoal.messages.message import Message
from shoal.messages.shared import Refused
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.options import ServerOptions
from shoal.placement import Machine
from shoal.repository.lifecycle import ModelVersion
from shoal.repository.plan import Source
from shoal.shm.segment import Segment
from shoal.supervisor.event_loop import Future
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.models.readiness import Readiness
from shoal.supervisor.models.roster import Roster
from shoal.supervisor.models.served_version import ServedVersion
from shoal.supervisor.processes.children import Child, ChildProgram, prepare
from shoal.supervisor.questions.custom_metrics import CustomMetrics
from tests.supervisor.star_rig import OPTIONS, Process, StarRig

CONFIG = (
    'name: "m" backend: "identity" max_batch_size: 4 input { name: "A" data_type: TYPE_INT32 dims: [ 1 ] } '
    'output { name: "B" data_type: TYPE_INT32 dims: [ 1 ] } instance_group { count: 2 kind: KIND_CPU } '
)


#: What workers wait for: nobody writes there.
_NOTHING, _ = os.pipe()


class Sleepers:
    """In the zygotes' place: every worker is a shell that waits, and ends as workers do."""

    def __init__(self, rig: StarRig) -> None:
        self._sky = rig

    def spawn(self, _backend: str, program: ChildProgram, *, captured: bool) -> Child:
        child = prepare(self._sky.loop, program, captured=captured)
        process = subprocess.Popen(["sh", "-c", "echo up; read end"], stdin=_NOTHING, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as said:
            assert said.readline() == b"up\n"  # before that it has hardly any memory, which is looked at when it is up
        child._process = process
        child.began(process.pid)
        return child


class Version:
    """One version, its instances' workers and the batcher as the test plays them."""

    def __init__(self, more: str, options: ServerOptions) -> None:
        self.rig = StarRig()
        #: What clients have been sent.
        self.announced: list[Message] = []
        self.roster = Roster(self.rig.loop)
        self.readiness = Readiness(self.rig.star.workers, self.rig.loop)
        config = normalise(pbtxt.parse(CONFIG + more, Path("config.pbtxt")))
        self.context = InstanceContext(
            self.rig.loop, Sleepers(self.rig), self.rig.star, options, "@", {}, Machine((0,)),  # type: ignore[arg-type]
            CustomMetrics(()), self.readiness,
        )  # fmt: skip
        source = Source("/m/1", 1, 1, config)
        version = ModelVersion("m", 1, 9, 0, Path("/m/1"), config)
        self.served = ServedVersion(version, source, self.context, self.roster, self.announced.extend)
        self.served.is_public = True
        self.has_ready_check = False
        self._processes: dict[int, Process] = {}
        #: By an instance's number: the words of its worker's segment, as the worker writes them.
        self.words: dict[int, memoryview] = {}

    def begin(self) -> Future[None]:
        """Its workers begin, and have yet to connect; the future is the load's outcome."""
        loaded = self.rig.loop.begin(self.served.load())
        self.rig.clock.settle()
        return loaded

    def load(self) -> None:
        loaded = self.begin()
        for instance in self.served.instances:
            self.bring_up(instance)
        loaded.result()
        self.served.publish()

    def bring_up(self, instance: Instance) -> None:
        """Its worker joins, loads, maps, and everybody acknowledges it."""
        process = self._join(instance)
        process.say(ModelLoaded(self.has_ready_check))
        self.rig.settle()
        self.words[instance.number] = Segment.attach(os.dup(process.fds[0])).words
        process.say(MemoryMapped())
        self.rig.settle()
        assert instance.state is InstanceState.UP

    def refuse(self, instance: Instance) -> None:
        """Its worker says that it cannot load, and ends."""
        process = self._join(instance)
        process.say(Refused(wire=1, sentence="no such file"))
        self.end(instance)

    def _join(self, instance: Instance) -> Process:
        process = self._processes[instance.number] = self.rig.start()
        self.rig.clock.settle()
        process.member.pid = instance.pid
        self.roster.join(instance.number, process.member)
        self.rig.clock.settle()
        return process

    def say(self, instance: Instance, message: Message) -> None:
        """Its worker says it."""
        self._processes[instance.number].say(message)

    def told(self, instance: Instance) -> list[Any]:
        """What its worker was told."""
        self.rig.settle()
        return self._processes[instance.number].all_heard

    def told_batcher(self) -> list[Any]:
        self.rig.settle()
        return self.rig.batcher.all_heard

    def end(self, instance: Instance, number: int = signal.SIGKILL) -> None:
        """Its worker ends by a signal."""
        pid = instance.pid
        os.kill(pid, number)
        self.until(lambda: instance.pid != pid)
        self._forget(instance.number)

    def _forget(self, number: int) -> None:
        process = self._processes.pop(number)
        self.rig.all.remove(process)
        process.close()

    def until(self, is_true: Callable[[], bool]) -> None:
        """Run the supervisor's loop until it is, without letting time pass."""
        self.rig.clock.until(is_true)

    def close(self) -> None:
        for instance in self.roster:
            instance.retire()
            instance.kill()
        self.until(lambda: not list(self.roster))
        for number in tuple(self._processes):
            self._forget(number)
        self.rig.settle()  # with the batcher's acknowledgement the memory of the dead goes
        self.words.clear()
        self.rig.close()


@contextmanager
def version(more: str = "", options: ServerOptions = OPTIONS) -> Iterator[Version]:
    """A version whose instances are up."""
    made = Version(more, options)
    try:
        made.load()
        yield made
    finally:
        made.close()


ENSEMBLE = """
    name: "e" platform: "ensemble" max_batch_size: 4
    input { name: "A" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "B" data_type: TYPE_INT32 dims: [ 1 ] }
    ensemble_scheduling { step { model_name: "m" model_version: -1 input_map { key: "A" value: "A" }
                                 output_map { key: "B" value: "B" } } }
"""
