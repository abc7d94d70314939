"""The shared memory of all processes: segments and bells are made, sent, announced, and freed after a process's death.

Runs in the supervisor and touches no segment's contents. Two rules:

- No record may name a segment to the batcher or to a front end that has not acknowledged the segment. So a client
  starts after the batcher has mapped the client's segment, and a worker gets batches after the batcher and all front
  ends have mapped the worker's. A record names a single payload's segment after the batcher and front ends
  that read the payload have mapped it.
- No process waits for one that runs users' code (a worker, a model that calls others, a guest): such a process may
  hold its interpreter for minutes. It asks for a segment when a record names one that it does not know (loans.py); it
  is sent front ends' segments without being waited for, so that it rarely has to ask.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from shoal.messages.message import Message
from shoal.messages.shared import BatcherReplaced, LogSettings, Ping, SegmentAnnounced
from shoal.messages.to_batcher import ClientCaughtUp, ClientLeft, Resume, RetireWorker, WorkerCaughtUp, WorkerReady
from shoal.messages.to_client import ClientWelcomed
from shoal.messages.to_worker import MemoryGranted
from shoal.options import ServerOptions
from shoal.placement import Placement
from shoal.reasons import Reason
from shoal.shm import layout, segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import Geometry
from shoal.shm.segment import unreserved_nbytes
from shoal.supervisor.descriptors import Descriptors
from shoal.supervisor.event_loop import EventLoop, Future, Task, shared
from shoal.supervisor.memory.batcher_memory import BatcherMemory, CounterMemory
from shoal.supervisor.memory.dead_workers import DeadWorkers
from shoal.supervisor.memory.loans import Loans
from shoal.supervisor.memory.memory_plan import (
    batcher_geometry,
    caller_geometry,
    client_geometry,
    client_link_geometry,
    worker_geometry,
    worker_link_geometry,
)
from shoal.supervisor.memory.oversize import RESULT
from shoal.supervisor.memory.participant import (
    Participant,
    batcher_activated,
    client_joined,
    make_participant,
    read_only,
    worker_joined,
)
from shoal.supervisor.memory.payloads import Payloads
from shoal.supervisor.processes.death import instance_word
from shoal.supervisor.processes.members import Acknowledgements, Member, Recipient

#: Builds the first message to a client from the client's place: its memory and the key of correlation ids.
Welcome = Callable[..., ClientWelcomed]


class Star:
    """The batcher in the middle, clients and workers around it, by owner id."""

    def __init__(
        self, options: ServerOptions, log_settings: LogSettings, loop: EventLoop, descriptors: Descriptors | None = None
    ) -> None:
        self.options = options
        self.log_settings = log_settings
        self.loop = loop
        self.descriptors = descriptors or Descriptors()
        self.acknowledgements = Acknowledgements(loop)
        #: The key of the hash that makes numbers of string correlation ids, equal in all clients (shoal/sequences.py).
        self.correlation_key = secrets.token_bytes(16)
        self._batcher_bell = Doorbell.create()
        # Changed by the join_ and leave_ methods.
        self.batcher: Member | None = None
        self.clients: dict[int, Participant] = {}
        self.workers: dict[int, Participant] = {}
        self.nbytes = 0
        #: `promised_nbytes` of the old server at an upgrade, until the old server has ended.
        self.promised_elsewhere_nbytes = 0
        #: The requests of TorchServe's protocol that ended front ends had answered (layout.ANSWERED_WORD), and their
        #: other counters (layout.NOTED_WORD).
        self.answered_before = [0] * layout.ANSWERED_WORDS
        self.noted_before = [0] * layout.NOTED_WORDS
        self.next_owner = 1
        self.loans = Loans()
        self.batcher_memory = BatcherMemory()
        self.counter_memory = CounterMemory()
        self.payloads = Payloads(self, self.descriptors.is_scarce)
        self.dead_workers = DeadWorkers(self, self.payloads.release_all)
        self._introduced = self.acknowledgements.announce([])  # done when the batcher knows all clients and workers

    # --- the processes that have joined ---

    def members(self) -> Iterator[list[Member]]:
        """The processes that have joined, in the order in which memory goes back: front ends, the batcher, workers."""
        yield [client.member for client in self.joined if not client.is_guest]
        yield [] if self.batcher is None else [self.batcher]
        yield [worker.member for worker in self.workers.values() if worker.is_joined]

    @property
    def joined(self) -> list[Participant]:
        """Clients that have been sent all segments and are announced."""
        return [client for client in self.clients.values() if client.is_joined]

    @property
    def front_ends(self) -> list[Participant]:
        """Front ends that have been sent all segments and are announced."""
        return [client for client in self.joined if client.is_front_end]

    def to_front_ends(self, message: Message) -> list[Recipient]:
        """A message to all front ends, for an announcement."""
        return [(client.member, message) for client in self.front_ends]

    def to_batcher(self, *messages: Message) -> list[Recipient]:
        """Messages to the batcher, if there is one, for an announcement."""
        return [] if self.batcher is None else [(self.batcher, message) for message in messages]

    def send_to_batcher(self, message: Message) -> None:
        """Send the batcher, if there is one, a message that need not be acknowledged."""
        if self.batcher is not None:
            self.batcher.send(message)

    def send_to_guests(self, message: Message) -> None:
        for client in self.joined:
            if client.is_guest:
                client.member.send(message)

    def send_to_clients(self, messages: Sequence[Message]) -> None:
        """Send messages to every client that has joined; none acknowledges them."""
        for client in self.joined:
            for each in messages:
                client.member.send(each)

    def announce_to_clients(self, messages: Sequence[Message]) -> Future[None]:
        """Send messages to every client that has joined. The future is done when front ends have applied them, and the
        batcher has applied what was sent to it before: otherwise the batcher might read a client's next request before
        those messages.

        Models that call others are waited for briefly, guests not at all. Such a client may still ask for a segment or
        model that is gone: it is refused, and asks again when it has applied the messages.
        """
        recipients = self.to_batcher(Ping())
        briefly: list[Recipient] = []
        for client in self.joined:
            if client.is_guest:
                for each in messages:
                    client.member.send(each)
            else:
                group = recipients if client.is_front_end else briefly
                group += [(client.member, each) for each in messages]
        return self.acknowledgements.announce(recipients, briefly=briefly)

    # --- the batcher ---

    @property
    def has_had_batcher(self) -> bool:
        """Whether there has been a batcher: one that joins now is a successor."""
        return self.counter_memory.owner > 0

    def join_batcher(self, member: Member) -> None:
        """Admit a batcher that has connected: send it its bell and the table of counters."""
        self.batcher = member
        member.on_gone = lambda: None  # what the batcher has not acknowledged stays open until `leave_batcher`
        is_successor = self.has_had_batcher
        if not is_successor:
            has_windows = self.options.metrics_config.summary_latencies
            self.nbytes += self.counter_memory.make(self.take_owner(), has_windows=has_windows)
            self.dead_workers.report_to(member)
        fds = self._batcher_bell.fd, self.counter_memory.fd
        member.send(batcher_activated(self.options, self.log_settings, *fds, is_successor=is_successor))
        if self.batcher_memory.owner:
            self._renew_batcher_memory(member)
        elif self.options.cache_bytes or self.payloads.ensembles:  # an ensemble may have come while no batcher ran
            self.give_batcher_memory()

    def give_batcher_memory(self) -> None:
        """Make the batcher's own segment; it is announced to front ends before the ensemble that needs it."""
        if not self.batcher_memory.owner and self.batcher is not None:
            geometry = batcher_geometry(self.options)
            self.batcher_memory.make(self.batcher, self.take_owner(), geometry, lazy=self.options.cache_bytes > 0)
            self.nbytes += geometry.nbytes
            for front_end in self.front_ends:
                front_end.member.send(self.batcher_memory.message)

    def _renew_batcher_memory(self, successor: Member) -> None:
        ended, geometry = self.batcher_memory.owner, batcher_geometry(self.options)
        self.batcher_memory.make(successor, self.take_owner(), geometry, lazy=self.options.cache_bytes > 0)
        read = self.loans.end_when_read(ended, self.joined, self.acknowledgements)
        self.loop.start(self._free_batcher_memory(ended, read))

    async def _free_batcher_memory(self, ended: int, read: Future[None]) -> None:
        """Close a dead batcher's own segment once clients have read the answers that lie there."""
        await read
        self.loans.send_end(ended)
        self.batcher_memory.close(ended)

    def leave_batcher(self, member: Member) -> None:
        """Forget a dead batcher, and the acknowledgements that it owes; its successor is sent everything again."""
        self.dead_workers.report_to(None)
        self.batcher = None
        self.acknowledgements.gone(member)

    def introduce(self) -> Task[None]:
        """Send a successor, which has been sent the models, all clients and workers, before this returns. The task then
        announces the successor to them, and ends when the successor serves or is dead.

        The successor skips the records in clients' rings as it maps them, so no client may send its open requests again
        before that. The successor waits for no client: a client's requests are put off until the client has sent them
        again (ClientCaughtUp).
        """
        successor = self.batcher
        assert successor is not None
        late = self.joined
        messages: list[Message] = [client_joined(each, is_late=each.is_joined) for each in self.clients.values()]
        for worker in self.workers.values():
            if worker.is_joined:
                messages.append(worker_joined(worker))
            if worker.is_ready:
                messages.append(WorkerReady(worker.owner))
            if worker.is_retiring:
                messages.append(RetireWorker(worker.owner))
            messages += self.payloads.results_of(worker)
        messages += self.dead_workers.introductions(self.payloads.results_of)
        messages += self.payloads.requests_of_batcher()
        self._introduced = self.acknowledgements.announce([(successor, message) for message in messages])
        return self.loop.start(self._resume(successor, late, self._introduced))

    async def _resume(self, successor: Member, late: Sequence[Participant], introduced: Future[None]) -> None:
        """Let the successor serve once it has acknowledged all clients and workers; then announce it to them."""
        await shared(introduced)
        if self.batcher is not successor:
            return  # the successor is dead already; the next one gets an introduction of its own
        successor.send(Resume())
        self.dead_workers.report_to(successor)
        for client in late:
            client.is_late = True
            news: list[Recipient] = [(client.member, BatcherReplaced())]
            if self.batcher_memory.owner and client.is_front_end:
                news.insert(0, (client.member, self.batcher_memory.message))
            self.loop.start(self._await_client(client, successor, self.acknowledgements.announce(news)))
        for worker in self.workers.values():
            # The successor reads the ring of a worker without a batch only after this message.
            caught_up = partial(successor.send, WorkerCaughtUp(worker.owner))
            self.loop.after(self.acknowledgements.announce([(worker.member, BatcherReplaced())]), caught_up)

    async def _await_client(self, client: Participant, successor: Member, acknowledged: Future[None]) -> None:
        """Await that a client has sent a successor its open requests and held replies, and report that to it."""
        await acknowledged
        # Otherwise the client is dead, or stays late until the next batcher has come.
        if self.batcher is successor and self.clients.get(client.owner) is client:
            client.is_late = False
            successor.send(ClientCaughtUp(client.owner))

    # --- clients ---

    def join_client(self, member: Member) -> tuple[Participant, Future[None]]:
        """Admit a front end: make its memory and send its segment to the batcher; the future is done when the batcher
        has it.

        Raises OutOfSharedMemoryError, or OSError where descriptors have run out; then there is no client.
        """
        client = self._client(member, client_geometry(self.options), sealed=False)
        return client, self.announce_client(client)

    def join_caller(self, member: Member) -> tuple[Participant, Future[None]]:
        """Like `join_client`, for a worker whose model calls others: a client that asks for segments it lacks."""
        caller = self._client(member, caller_geometry(self.options), sealed=True)
        caller.is_caller = True
        return caller, self.announce_client(caller)

    def _client(self, member: Member, own: Geometry, *, sealed: bool) -> Participant:
        return self._participant(member, layout.CLIENT, own, client_link_geometry(self.options), sealed=sealed)

    def announce_client(self, client: Participant) -> Future[None]:
        """Send a client's segment to the batcher; the future is done when the batcher has mapped it, or at once if no
        batcher runs."""
        self.clients[client.owner] = client
        return self.acknowledgements.announce(self.to_batcher(client_joined(client)))

    async def await_batcher(self, known: Future[None]) -> None:
        """Return when the batcher has a client's segment (`known`) or, if that batcher dies, when its successor has.

        A successor skips what a client has written before the successor's arrival, so no client is welcomed before.
        """
        await known
        while not self._introduced.done():
            await shared(self._introduced)

    async def welcome(self, client: Participant, welcome: Welcome) -> None:
        """Send a client its memory and, from now on, announcements: the batcher knows its segment. Returns when the
        client has mapped its memory, or is dead. Raises OSError where descriptors have run out; then nothing was sent.
        """
        assert client.batcher_bell is not None
        with read_only(client.link_fd, self.counter_memory.fd) as (link_fd, counters_fd):
            message = welcome(
                correlation_key=self.correlation_key,
                segment=client.segment_fd,
                link=link_fd,
                bell=client.bell.fd,
                batcher_bell=client.batcher_bell.fd,
                counters=counters_fd,
            )
            mapped = self.acknowledgements.announce([(client.member, message)])
        client.is_joined = True
        if client.is_front_end:
            self._send_segments(client)
        await mapped
        if client.is_caller and client.member.is_open:
            segment.seal_writes(client.segment_fd)

    def _send_segments(self, client: Participant) -> None:
        """Send a front end all segments in which an answer may lie, and send workers the front end's segment."""
        if self.batcher_memory.owner:
            client.member.send(self.batcher_memory.message)
        for worker in self.workers.values():
            if worker.is_joined:
                client.member.send(SegmentAnnounced(worker.owner, worker.read_only_fd))
                self.loans.lend(worker.member, client.owner, client.read_only_fd)
        for result in self.payloads.segments.read_by(RESULT):  # the client's next answer may lie there
            client.member.send(SegmentAnnounced(result.owner, result.read_only_fd))

    def leave_client(self, client: Participant) -> None:
        """Remove a client that is dead or cannot be welcomed. Without effect where it has been removed already."""
        if self.clients.get(client.owner) is not client:
            return
        del self.clients[client.owner]
        self.loans.forget(client.member)
        forgotten = self.acknowledgements.announce(self.to_batcher(ClientLeft(client.owner)))
        self.loop.start(self._free_client(client, forgotten))

    async def _free_client(self, client: Participant, forgotten: Future[None]) -> None:
        """Have workers unmap a dead client's segments once the batcher has forgotten its requests."""
        await forgotten
        self.loans.send_end(client.owner)
        self.payloads.release_all(client)
        if client.is_front_end:
            self.answered_before = [sum(each) for each in zip(self.answered_before, client.answered(), strict=True)]
            self.noted_before = [sum(each) for each in zip(self.noted_before, client.noted(), strict=True)]
        client.close()

    # --- workers ---

    def join_worker(self, member: Member, config: dict[str, Any]) -> Participant:
        """Admit a worker that has loaded its model: send it its memory, and the segments of all clients."""
        worker = self._participant(
            member,
            layout.WORKER,
            worker_geometry(config, self.options),
            worker_link_geometry(config, self.options),
            sealed=True,
        )
        try:
            link_fd = segment.read_only(worker.link_fd)
        except OSError:
            worker.close()
            raise
        self.workers[worker.owner] = worker
        assert worker.batcher_bell is not None
        fds = worker.segment_fd, link_fd, worker.bell.fd, worker.batcher_bell.fd
        member.send(MemoryGranted(self.log_settings, *fds))
        os.close(link_fd)
        return worker

    def announce_worker(
        self, worker: Participant, model_id: int, placement: Placement, groups: Sequence[str]
    ) -> Future[None]:
        """Announce a worker that has mapped its memory, which cannot be mapped writable again, to the batcher and all
        front ends. When the future is done, batches may go to the worker. `groups` are the names of
        `ModelVersion.groups`."""
        segment.seal_writes(worker.segment_fd)
        worker.is_joined = True
        worker.model_id = model_id
        worker.instance = instance_word(worker.member.pid, groups, placement)
        worker.demand = placement.demand if self.options.rate_limits is not None else None
        recipients = self.to_batcher(worker_joined(worker))
        for front_end in self.front_ends:
            recipients.append((front_end.member, SegmentAnnounced(worker.owner, worker.read_only_fd)))
            self.loans.lend(worker.member, front_end.owner, front_end.read_only_fd)
        return self.acknowledgements.announce(recipients)

    def admit_worker(self, worker: Participant) -> None:
        """Let the batcher send batches to a worker: the batcher and all front ends have mapped its memory."""
        worker.is_ready = True
        self.send_to_batcher(WorkerReady(worker.owner))

    def retire_worker(self, worker: Participant) -> None:
        """Stop giving batches to a worker; the batcher reports when the worker has finished those it has."""
        worker.is_retiring = True
        self.send_to_batcher(RetireWorker(worker.owner))

    def leave_worker(self, worker: Participant, reason: Reason, detail: int) -> None:
        """Remove a dead worker; `reason` and `detail` go into the replies to requests that it was executing."""
        self.workers.pop(worker.owner, None)
        self.loans.forget(worker.member)
        self.dead_workers.add(worker, reason, detail)

    # --- segments that a process asks for ---

    def lend(self, worker: Participant, owner: int) -> None:
        """Send a worker a segment that one of its requests names and that the worker does not know."""
        lender = self.clients.get(owner) or self._worker(owner)
        if lender is not None and lender.is_joined:
            self.loans.lend(worker.member, owner, lender.read_only_fd, owner if lender.is_guest else 0)
        elif (fd := self.batcher_memory.find(owner)) is not None:
            self.loans.lend(worker.member, owner, fd)
        else:
            payload = self.payloads.segments.lendable(owner)
            fd = None if payload is None else payload.read_only_fd
            guest = payload.asker if payload is not None and payload.is_guests else 0
            self.loans.lend(worker.member, owner, fd, guest)

    def lend_to_client(self, client: Participant, owner: int) -> None:
        """Send a client that runs users' code a segment that an answer names and that was not announced to it: a
        worker's, the batcher's, or a single result's."""
        worker, payload = self._worker(owner), self.payloads.segments.lendable(owner)
        fd = self.batcher_memory.find(owner)
        if worker is not None and worker.is_joined:
            fd = worker.read_only_fd
        elif payload is not None and payload.model_id == RESULT:
            fd = payload.read_only_fd
        self.loans.lend(client.member, owner, fd)

    def _worker(self, owner: int) -> Participant | None:
        """The worker with this owner id, living or dead, while its answers may be read; None where there is none."""
        return self.workers.get(owner) or self.dead_workers.find(owner)

    # --- clients and workers ---

    def _participant(self, member: Member, kind: int, own: Geometry, link: Geometry, *, sealed: bool) -> Participant:
        promised = self.promised_nbytes + self.promised_elsewhere_nbytes
        made = make_participant(self.take_owner(), member, kind, own, link, sealed=sealed, promised_nbytes=promised)
        self.nbytes += own.nbytes + link.nbytes
        return made

    @property
    def promised_nbytes(self) -> int:
        """Bytes of segments that have no pages yet, and may take them in /dev/shm."""
        participants = [*self.clients.values(), *self.workers.values()]
        return sum([unreserved_nbytes(each.read_only_fd) for each in participants if not each.is_guest])

    def take_owner(self) -> int:
        """An owner id that no segment has. Each payload beyond a slab takes one, so the numbers start again from 1."""
        taken = {self.counter_memory.owner, *self.clients, *self.workers}
        others = self.batcher_memory, self.dead_workers, self.payloads.segments
        while (owner := self.next_owner) in taken or any(owner in each for each in others):
            self.next_owner = _after(owner)
        self.next_owner = _after(owner)
        return owner


def _after(owner: int) -> int:
    return owner % (layout.MIRROR_OWNER - 1) + 1  # no owner is 0, nor that of mirrored requests
