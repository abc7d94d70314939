"""A star whose processes the test simulates: the batcher, front ends and workers at real connections."""

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shoal.control import Channel
from shoal.messages.message import Message, descriptors
from shoal.messages.shared import PayloadMapped, PayloadWanted
from shoal.messages.to_client import ClientWelcomed
from shoal.model_config.rate_limiter import Demand, Resource
from shoal.options import ServerOptions
from shoal.placement import Placement
from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.members import Acknowledgements, Member
from tests.messages import FD, receive, without_descriptors
from tests.supervisor.clock import ClockLoop

OPTIONS = ServerOptions(
    model_repository=(Path(),), shm_client_slab_mib=1, shm_worker_slab_mib=1, shm_oversize_mib=4, max_in_flight=8
)
#: Of a client, but for its place.
WELCOME = partial(
    ClientWelcomed,
    max_in_flight=8,
    model_namespacing=False,
    request_timeout_s=1.0,
    answer_timeout_s=1.0,
    log={},
    settings=None,
)
#: And of its place.
PLACE = {"correlation_key": b"", "segment": FD, "link": FD, "bell": FD, "batcher_bell": FD, "counters": FD}
CONFIG = {"max_batch_size": 0, "output": []}
NBYTES = 2 << 20
PLACEMENT = Placement("m_0", "m", "KIND_CPU", 0, (0,), demand=Demand(2, ((Resource("R", 0), 3),)))
F_GET_SEALS, FUTURE_WRITE_AND_SEAL = 1034, 0x10 | 0x01


class Process:
    """One end of a control connection and what came over it."""

    def __init__(self, clock: ClockLoop, loop: EventLoop, acknowledgements: Acknowledgements) -> None:
        self._clock = clock
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        self.channel = Channel(theirs)
        self.member = Member(loop, Channel(ours), 1, acknowledgements)
        self.fds: list[int] = []
        self.all_heard: list[Any] = []
        self.unacknowledged: list[int] = []

    def say(self, message: Message) -> None:
        """Send the supervisor a message, which it handles at once."""
        self.channel.send(message)
        self.member.drain()

    def heard(self) -> list[Any]:
        """What came since the last time, without sequence numbers, once everything that needs no time has happened."""
        if not self._clock.is_running():
            self._clock.settle()
        return self.read()

    def read(self) -> list[Any]:
        """What has come by now; nothing happens meanwhile."""
        found = list[Any]()
        while True:
            try:
                received, seq = receive(self.channel)
            except (BlockingIOError, EOFError):
                return found
            self.fds += descriptors(received)
            message = without_descriptors(received)
            if seq:
                self.unacknowledged.append(seq)
            found.append(message)
            self.all_heard.append(message)

    def close(self) -> None:
        self.channel.close()
        self.member.hang_up()
        for fd in self.fds:
            os.close(fd)


class StarRig:
    """A star in which all have joined: a batcher, front ends a and b, workers of models 3 and 4."""

    def __init__(self) -> None:
        self.clock = ClockLoop()
        self.loop = EventLoop(self.clock)
        self.star = Star(OPTIONS, {}, self.loop)
        self.all: list[Process] = []
        self.batcher = self.start()
        self.star.join_batcher(self.batcher.member)
        self.a, self.client_a = self.join_client()
        self.b, self.client_b = self.join_client()
        self.third, self.worker_of_3 = self.join_worker(3)
        self.fourth, self.worker_of_4 = self.join_worker(4)
        self.settle()

    def start(self) -> Process:
        self.all.append(Process(self.clock, self.loop, self.star.acknowledgements))
        return self.all[-1]

    def replace_batcher(self) -> Process:
        """The batcher dies. Its successor has joined, and has read nothing of what is announced to it."""
        self.star.leave_batcher(self.batcher.member)
        successor = self.start()
        self.star.join_batcher(successor.member)
        self.star.introduce()
        return successor

    def join_client(self) -> tuple[Process, Participant]:
        process = self.start()
        client = self.begin_to_join(self.star.join_client, process)
        self.settle()
        return process, client

    def begin_to_join(
        self,
        join: Callable[[Member], tuple[Participant, Future[None]]],
        process: Process,
        joined: list[Any] | None = None,
    ) -> Participant:
        """A front end or a caller joins; it is noted in `joined` when it has mapped its memory."""
        client, known = join(process.member)

        async def flow() -> None:
            await self.star.await_batcher(known)
            await self.star.welcome(client, WELCOME)
            if joined is not None:
                joined.append(client)

        self.loop.start(flow())
        return client

    def join_worker(self, model_id: int) -> tuple[Process, Participant]:
        process = self.start()
        worker = self.star.join_worker(process.member, CONFIG)
        announced = self.star.announce_worker(worker, model_id, PLACEMENT, (PLACEMENT.group,))
        announced.add_done_callback(lambda _: self.star.admit_worker(worker))
        return process, worker

    def acknowledge(self, process: Process) -> None:
        self.clock.settle()
        process.heard()
        while process.unacknowledged:
            self.star.acknowledgements.received(process.member, process.unacknowledged.pop(0))
        self.clock.settle()

    def settle(self) -> None:
        """All processes read and acknowledge until no message follows."""
        said = True
        while said:
            said = False
            for process in self.all:
                said |= bool(process.heard()) or bool(process.unacknowledged)
                self.acknowledge(process)

    def ask(self, process: Process, asker: Participant) -> Any:
        """Ask for a segment for model 3; the answer."""
        self.star.payloads.receive(asker, PayloadWanted(request=7, nbytes=NBYTES, model_id=3))
        return process.heard()[-1]

    def make(self, process: Process, asker: Participant) -> int:
        """A segment that its writer has mapped and that everybody knows; its owner id."""
        owner = int(self.ask(process, asker).owner)
        self.star.payloads.receive(asker, PayloadMapped(owner))
        self.settle()
        return owner

    def close(self) -> None:
        """Give back the descriptors of clients, workers and every process that the test has simulated."""
        for participant in (*self.star.clients.values(), *self.star.workers.values()):
            participant.close()
        for process in self.all:
            process.close()
        self.clock.end()
