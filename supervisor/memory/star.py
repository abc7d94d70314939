"""The shared memory of all processes: makes segments and bells, hands them out, announces them, frees a dead one's.

Runs in the supervisor and touches no segment's contents. The rules it keeps:

- No record may name a segment to the batcher or to a front end that has not acknowledged it. So a client starts after
  the batcher has its segment, and a worker gets batches after the batcher and all front ends have its. Likewise for a
  segment that holds one payload: its writer may name it after those of its readers have it.
- No process waits for one that runs users' code (a worker, a model that calls others, a guest): such a process may
  hold its interpreter for minutes. It asks for a segment when a record names one that it does not know (loans.py), and
  is sent front ends' without waiting, so that it rarely has to.
"""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shoal.messages.message import Message
from shoal.messages.shared import BatcherReplaced, SegmentAnnounced
from shoal.messages.to_batcher import ClientCaughtUp, ClientLeft, Resume, RetireWorker, WorkerCaughtUp, WorkerReady
from shoal.messages.to_client import ClientWelcomed
from shoal.messages.to_worker import MemoryGranted
from shoal.placement import Placement
from shoal.reasons import Reason
from shoal.shm import layout, segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import Geometry
from shoal.supervisor.event_loop import Future, Task, shared
from shoal.supervisor.memory.batcher_memory import BatcherMemory
from shoal.supervisor.memory.counter_memory import CounterMemory
from shoal.supervisor.memory.dead_workers import DeadWorkers
from shoal.supervisor.memory.joined import Participants
from shoal.supervisor.memory.memory_plan import (
    batcher_geometry,
    caller_geometry,
    client_geometry,
    client_link_geometry,
    worker_geometry,
    worker_link_geometry,
)
from shoal.supervisor.memory.oversize import RESULT
from shoal.supervisor.memory.owner_ids import OwnerIds
from shoal.supervisor.memory.participant import (
    Participant,
    batcher_activated,
    client_joined,
    make_participant,
    read_only,
    worker_joined,
)
from shoal.supervisor.memory.payloads import Payloads
from shoal.supervisor.processes.members import Acknowledgements, Member, Recipient

#: Makes the first message to a client, of that client's place: its memory and the key.
Welcome = Callable[..., ClientWelcomed]


@dataclass(slots=True)
class Star(Participants):
    """The batcher in the middle, clients and workers around it."""

    # Changed by the join_ and leave_ methods.
    nbytes: int = 0
    owner_ids: OwnerIds = field(default_factory=OwnerIds)
    batcher_memory: BatcherMemory = field(default_factory=BatcherMemory)
    _batcher_bell: Doorbell = field(default_factory=Doorbell.create)
    #: Of strings that name sequences: all clients make the same number of one (shoal/sequences.py).
    correlation_key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    counter_memory: CounterMemory = field(default_factory=CounterMemory)
    payloads: Payloads = field(init=False)
    dead_workers: DeadWorkers = field(init=False)
    _introduced: Future[None] = field(init=False)  # the batcher knows all that came before it

    def __post_init__(self) -> None:
        self.acknowledgements = Acknowledgements(self.loop)
        self.payloads = Payloads(self, self.take_owner)
        self.dead_workers = DeadWorkers(self, self.payloads.release_all)
        self._introduced = self.acknowledgements.announce([])

    # --- the batcher ---

    @property
    def has_had_batcher(self) -> bool:
        """Whether one that joins now takes another's place."""
        return self.counter_memory.owner > 0

    def join_batcher(self, member: Member) -> None:
        """The batcher is there: it gets its bell and the table of counters."""
        self.batcher = member
        member.on_gone = lambda: None  # what it has not acknowledged stays open until `leave_batcher`
        is_successor = self.has_had_batcher
        if not is_successor:
            has_windows = self.options.metrics_config.summary_latencies
            self.nbytes += self.counter_memory.make(self.take_owner(), has_windows=has_windows)
            self.dead_workers.report_to(member)
        fds = self._batcher_bell.fd, self.counter_memory.fd
        member.send(batcher_activated(self.options, self.log_settings, *fds, is_successor=is_successor))
        if self.batcher_memory.owner:
            self._renew_batcher_memory(member)
        elif self.options.cache_bytes or self.payloads.ensembles:  # the first may have come while there was no batcher
            self.give_batcher_memory()

    def give_batcher_memory(self) -> None:
        """Make memory of the batcher's own; it is announced to front ends before the ensemble that needs it is."""
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
        """A dead batcher's memory goes when clients have read the answers that lie there."""
        await read
        self.loans.send_end(ended)
        self.batcher_memory.close(ended)

    def leave_batcher(self, member: Member) -> None:
        """The batcher is dead. What it was asked to acknowledge is void: a successor is sent all anew."""
        self.dead_workers.report_to(None)
        self.batcher = None
        self.acknowledgements.gone(member)

    def introduce(self) -> Task[None]:
        """Announce all clients and workers to a successor, which knows the models; when this returns, all is sent. The
        task has it announced to them, and ends when it serves, or is dead.

        It passes over the records in clients' rings as it maps them, so no client may send its open requests again
        before that. It waits for no client: a client's requests are put off until the client has sent them again
        (ClientCaughtUp).
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
        messages += self.payloads.requests_to_ensembles()
        self._introduced = self.acknowledgements.announce([(successor, message) for message in messages])
        return self.loop.start(self._resume(successor, late, self._introduced))

    async def _resume(self, successor: Member, late: Sequence[Participant], introduced: Future[None]) -> None:
        """The successor serves once it knows all of them; then clients and workers are told that it is there."""
        await shared(introduced)
        if self.batcher is not successor:
            return  # dead already; the next one is introduced by itself
        successor.send(Resume())
        self.dead_workers.report_to(successor)
        for client in late:
            client.is_late = True
            news: list[Recipient] = [(client.member, BatcherReplaced())]
            if self.batcher_memory.owner and client.is_front_end:
                news.insert(0, (client.member, self.batcher_memory.message))
            self.loop.start(self._await_client(client, successor, self.acknowledgements.announce(news)))
        for worker in self.workers.values():
            # The successor does not look into the ring of a worker without a batch: so this message.
            caught_up = partial(successor.send, WorkerCaughtUp(worker.owner))
            self.loop.after(self.acknowledgements.announce([(worker.member, BatcherReplaced())]), caught_up)

    async def _await_client(self, client: Participant, successor: Member, acknowledged: Future[None]) -> None:
        """A client sends a successor what it waits for and what it holds, and acknowledges that."""
        await acknowledged
        # Else the client is late until it has told the next batcher, or is dead.
        if self.batcher is successor and self.clients.get(client.owner) is client:
            client.is_late = False
            successor.send(ClientCaughtUp(client.owner))

    # --- clients ---

    def join_client(self, member: Member) -> tuple[Participant, Future[None]]:
        """A front end wants to submit requests: its memory, and when the batcher has its segment (`announce_client`).

        Raises OutOfSharedMemoryError, or OSError where descriptors have run out; then there is no client.
        """
        client = self._client(member, client_geometry(self.options), sealed=False)
        return client, self.announce_client(client)

    def join_caller(self, member: Member) -> tuple[Participant, Future[None]]:
        """Like `join_client`, of a worker that wants to submit requests of its model's. It asks for segments."""
        caller = self._client(member, caller_geometry(self.options), sealed=True)
        caller.is_caller = True
        return caller, self.announce_client(caller)

    def _client(self, member: Member, own: Geometry, *, sealed: bool) -> Participant:
        return self._participant(member, layout.CLIENT, own, client_link_geometry(self.options), sealed=sealed)

    def announce_client(self, client: Participant) -> Future[None]:
        """The batcher maps a client's segment; the future is done when it has, or at once if there is no batcher."""
        self.clients[client.owner] = client
        return self.acknowledgements.announce(self.to_batcher(client_joined(client)))

    async def await_batcher(self, known: Future[None]) -> None:
        """Returns when the batcher has a client's segment (`known`), or if that batcher dies, when its successor has.

        A successor passes over what a client has written before: so a client is welcome only then.
        """
        await known
        while not self._introduced.done():
            await shared(self._introduced)

    async def welcome(self, client: Participant, welcome: Welcome) -> None:
        """Send a client that the batcher knows its memory, and from now on what others announce; returns when the
        client has mapped it, or is dead. Raises OSError where descriptors have run out; then nothing was sent."""
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
        """A front end hears of all segments in which an answer may lie, and workers of the front end's."""
        if self.batcher_memory.owner:
            client.member.send(self.batcher_memory.message)
        for worker in self.workers.values():
            if worker.is_joined:
                client.member.send(SegmentAnnounced(worker.owner, worker.read_only_fd))
                self.loans.lend(worker.member, client.owner, client.read_only_fd)
        for result in self.payloads.segments.read_by(RESULT):  # kept by its worker, it may hold an answer to this one
            client.member.send(SegmentAnnounced(result.owner, result.read_only_fd))

    def leave_client(self, client: Participant) -> None:
        """A client is dead, or cannot be welcome. Without effect where it has left already."""
        if self.clients.get(client.owner) is not client:
            return
        del self.clients[client.owner]
        self.loans.forget(client.member)
        forgotten = self.acknowledgements.announce(self.to_batcher(ClientLeft(client.owner)))
        self.loop.start(self._free_client(client, forgotten))

    async def _free_client(self, client: Participant, forgotten: Future[None]) -> None:
        """Workers unmap a dead client's segments once the batcher has forgotten its requests."""
        await forgotten
        self.loans.send_end(client.owner)
        self.payloads.release_all(client)
        client.close()

    # --- workers ---

    def join_worker(self, member: Member, config: dict[str, Any]) -> Participant:
        """A worker has loaded its model: it gets its memory, and the segments of all clients."""
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

    def announce_worker(self, worker: Participant, model_id: int, placement: Placement) -> Future[None]:
        """A worker has mapped its memory, which cannot be mapped writable again: the batcher and all front ends map it.
        When the future is done, batches may go to the worker."""
        segment.seal_writes(worker.segment_fd)
        worker.is_joined = True
        worker.model_id = model_id
        worker.demand = placement.demand if self.options.rate_limits is not None else None
        recipients = self.to_batcher(worker_joined(worker))
        for front_end in self.front_ends:
            recipients.append((front_end.member, SegmentAnnounced(worker.owner, worker.read_only_fd)))
            self.loans.lend(worker.member, front_end.owner, front_end.read_only_fd)
        return self.acknowledgements.announce(recipients)

    def admit_worker(self, worker: Participant) -> None:
        """The batcher and all front ends map its memory: batches may go to it."""
        worker.is_ready = True
        self.send_to_batcher(WorkerReady(worker.owner))

    def retire_worker(self, worker: Participant) -> None:
        """No more batches to it; the batcher says when it has finished those it has."""
        worker.is_retiring = True
        self.send_to_batcher(RetireWorker(worker.owner))

    def leave_worker(self, worker: Participant, reason: Reason, detail: int) -> None:
        """A worker is dead; `reason` and `detail` are for the replies to what it was executing."""
        self.workers.pop(worker.owner, None)
        self.loans.forget(worker.member)
        self.dead_workers.add(worker, reason, detail)

    # --- segments that a process asks for ---

    def lend(self, worker: Participant, owner: int) -> None:
        """A request in that worker's hands names a segment of which it was not told."""
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
        """A worker that lives, or whose last answers may still be read."""
        return self.workers.get(owner) or self.dead_workers.find(owner)

    # --- both ---

    def _participant(self, member: Member, kind: int, own: Geometry, link: Geometry, *, sealed: bool) -> Participant:
        made = make_participant(self.take_owner(), member, kind, own, link, sealed=sealed)
        self.nbytes += own.nbytes + link.nbytes
        return made

    def take_owner(self) -> int:
        """An owner id that no segment has."""
        taken = {self.counter_memory.owner, *self.clients, *self.workers}
        others = self.batcher_memory, self.dead_workers, self.payloads.segments
        return self.owner_ids.take(lambda owner: owner in taken or any(owner in each for each in others))
