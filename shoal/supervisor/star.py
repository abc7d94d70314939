"""Who maps whose memory: makes segments and bells, hands them out, announces them, and lets go when a process dies.

Runs in the supervisor and touches no segment's contents. The rule it keeps: no record may name a segment to a process
that has not acknowledged it. So a client is told to start after the batcher and all workers have its segment, and a
worker gets batches after the batcher and all clients have its. Likewise for a segment that holds one payload: its
writer may name it after its readers have it.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from shoal.control import Message
from shoal.errors import ShoalError
from shoal.options import MIB, ServerOptions
from shoal.reasons import Reason
from shoal.shm import counters, layout, segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import Geometry
from shoal.supervisor.available_memory import available_nbytes
from shoal.supervisor.loans import Loans
from shoal.supervisor.members import Acknowledgements, Member
from shoal.supervisor.memory_plan import (
    caller_geometry,
    client_geometry,
    client_link_geometry,
    worker_geometry,
    worker_link_geometry,
)
from shoal.supervisor.oversize import ASKED_FOR, RESULT, OversizeSegment, OversizeSegments
from shoal.supervisor.participant import Participant, client_message, worker_message

_log = logging.getLogger(__name__)


Recipient = tuple[Member, Message, Sequence[int]]


@dataclass(slots=True)
class Star:
    """The batcher in the middle, clients and workers around it."""

    options: ServerOptions
    log_settings: dict[str, Any]
    acknowledgements: Acknowledgements = field(default_factory=Acknowledgements)
    # Changed by the join_ and leave_ methods.
    batcher: Member | None = None
    clients: dict[int, Participant] = field(default_factory=dict)
    workers: dict[int, Participant] = field(default_factory=dict)
    nbytes: int = 0
    next_owner: int = 1
    _batcher_bell: Doorbell = field(default_factory=Doorbell.create)
    _counters_fd: int = -1
    _counters: counters.CounterTableView | None = None
    _oversize: OversizeSegments = field(init=False)
    _loans: Loans = field(default_factory=Loans)

    def __post_init__(self) -> None:
        self._oversize = OversizeSegments(self.options.shm_oversize_mib * MIB, available_nbytes)

    # --- the batcher ---

    @property
    def has_had_batcher(self) -> bool:
        """Whether one that joins now takes another's place."""
        return self._counters_fd >= 0

    def join_batcher(self, member: Member) -> None:
        """The batcher is there: it gets its bell and the table of counters."""
        self.batcher = member
        is_successor = self.has_had_batcher
        if not is_successor:
            has_windows = self.options.metrics_config.summary_latencies
            geometry = counters.GEOMETRY_WITH_WINDOWS if has_windows else counters.GEOMETRY
            self._counters_fd = self._create(layout.COUNTERS, self.take_owner(), geometry, sealed=False)
        welcome = {
            "op": "joined",
            "log": self.log_settings,
            "max_queue_size": self.options.default_max_queue_size,
            "counts_first_responses": self.options.metrics_config.histogram_latencies,
            "is_successor": is_successor,
        }
        member.send(welcome, [self._batcher_bell.fd, self._counters_fd])

    def read_counters(self, row: int) -> counters.RowView:
        """What the batcher has counted in a row."""
        if self._counters is None:
            self._counters = counters.CounterTableView(segment.SegmentView.attach(os.dup(self._counters_fd)))
        return self._counters.read(row)

    def leave_batcher(self, member: Member) -> None:
        """The batcher is dead. What it was asked to acknowledge is void; a successor hears how things stand then."""
        self.batcher = None
        self.acknowledgements.gone(member)

    def introduce(self) -> None:
        """Tell a successor, which knows the models, of everybody; then everybody of it; then it may serve.

        It passes over what stands in clients' rings as it maps them, so they must not say again what is open before it
        has; and it must not look at workers' answers before they have.
        """
        successor = self.batcher
        assert successor is not None
        told = [client_message(client) for client in self.clients.values()]
        for worker in self.workers.values():
            if worker.is_joined:
                told.append(worker_message(worker))
            if worker.is_ready:
                told.append(({"op": "worker_ready", "owner": worker.owner}, []))
            if worker.is_retiring:
                told.append(({"op": "worker_retire", "owner": worker.owner}, []))
            results = [result.owner for result in self._oversize.written_by(worker.owner) if result.is_mapped]
            told += [({"op": "segment", "owner": result, "worker": worker.owner}, []) for result in results]
        recipients = [(successor, message, fds) for message, fds in told]
        self.acknowledgements.announce(recipients, lambda: self._reopen(successor))

    def _reopen(self, successor: Member) -> None:
        if self.batcher is not successor:
            return  # dead already; the next one is introduced by itself
        news = {"op": "batcher"}
        clients = [(client.member, news, ()) for client in self.clients.values() if client.is_joined]
        self.acknowledgements.announce(clients, lambda: successor.send({"op": "resume"}))
        for worker in self.workers.values():
            worker.member.send(news)

    # --- clients ---

    def join_client(self, member: Member, welcome: Message, then: Callable[[Participant], None]) -> Participant:
        """A front end wants to submit requests; `then` when everybody has its segment and it has everything."""
        client = self._client(member, client_geometry(self.options), sealed=False)
        recipients = self._to_batcher(*client_message(client))
        recipients += [
            (worker.member, {"op": "segment", "owner": client.owner}, [client.read_only_fd])
            for worker in self.workers.values()
        ]
        self.acknowledgements.announce(recipients, lambda: self._welcome_client(client, welcome, then))
        return client

    def join_caller(self, member: Member, welcome: Message, then: Callable[[Participant], None]) -> Participant:
        """A worker wants to submit requests of its model's; `then` when it has everything.

        Other workers ask for its segment when they need it: told of it, one that executes would not acknowledge, and
        the worker that joins is one.
        """
        caller = self._client(member, caller_geometry(self.options), sealed=True)
        caller.is_caller = True

        def mapped(_caller: Participant) -> None:
            segment.seal_writes(caller.segment_fd)
            then(caller)

        recipients = self._to_batcher(*client_message(caller))
        self.acknowledgements.announce(recipients, lambda: self._welcome_client(caller, welcome, mapped))
        return caller

    def _client(self, member: Member, own: Geometry, *, sealed: bool) -> Participant:
        client = self._participant(member, layout.CLIENT, own, client_link_geometry(self.options), sealed=sealed)
        self.clients[client.owner] = client
        return client

    def _welcome_client(self, client: Participant, welcome: Message, then: Callable[[Participant], None]) -> None:
        link_fd = segment.read_only(client.link_fd)
        counters_fd = segment.read_only(self._counters_fd)
        fds = [client.segment_fd, link_fd, client.bell.fd, self._batcher_bell.fd, counters_fd]
        self.acknowledgements.announce([(client.member, {"op": "joined", **welcome}, fds)], lambda: then(client))
        os.close(link_fd)
        os.close(counters_fd)
        client.is_joined = True
        for worker in self.workers.values():
            if worker.is_joined:
                client.member.send({"op": "segment", "owner": worker.owner}, [worker.read_only_fd])

    def leave_client(self, client: Participant) -> None:
        """A front end is dead. Workers unmap its segments once the batcher has forgotten its requests."""
        self.clients.pop(client.owner, None)

        def forgotten() -> None:
            told = [worker.member for worker in self.workers.values()]
            for worker in self._loans.end(client.owner) if client.is_caller else told:
                worker.send({"op": "segment_gone", "owner": client.owner})
            self._release_all(client)
            client.close()

        self.acknowledgements.announce(self._to_batcher({"op": "client_gone", "owner": client.owner}), forgotten)

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
        self.workers[worker.owner] = worker
        link_fd = segment.read_only(worker.link_fd)
        fds = [worker.segment_fd, link_fd, worker.bell.fd, self._batcher_bell.fd]
        # The log's settings again: they may have changed while it loaded, when it heard nothing.
        member.send({"op": "memory", "owner": worker.owner, "epoch": 1, "log": self.log_settings}, fds)
        os.close(link_fd)
        return worker

    def announce_worker(self, worker: Participant, model_id: int, then: Callable[[], None]) -> None:
        """A worker has mapped its memory: nobody maps it writable again, everybody maps it. `then` batches may go to
        it."""
        segment.seal_writes(worker.segment_fd)
        worker.is_joined = True
        worker.model_id = model_id
        recipients = self._to_batcher(*worker_message(worker))
        for client in self.clients.values():
            if client.is_joined:
                recipients.append((client.member, {"op": "segment", "owner": worker.owner}, [worker.read_only_fd]))
            if not client.is_caller:
                recipients.append((worker.member, {"op": "segment", "owner": client.owner}, [client.read_only_fd]))
        recipients += [
            (worker.member, {"op": "segment", "owner": request.owner}, [request.read_only_fd])
            for request in self._oversize.read_by(model_id)
        ]
        self.acknowledgements.announce(recipients, then)

    def admit_worker(self, worker: Participant) -> None:
        """Everybody maps it: batches may go to it."""
        worker.is_ready = True
        self.tell_batcher({"op": "worker_ready", "owner": worker.owner})

    def retire_worker(self, worker: Participant) -> None:
        """No more batches to it; the batcher says when it has finished those it has."""
        worker.is_retiring = True
        self.tell_batcher({"op": "worker_retire", "owner": worker.owner})

    def leave_worker(self, worker: Participant, reason: Reason, detail: int) -> None:
        """A worker is dead; `reason` and `detail` are for the replies to what it was executing.

        Clients unmap its segments once the batcher has passed on its last answers.
        """
        self.workers.pop(worker.owner, None)
        self._loans.forget(worker.member)

        def passed_on() -> None:
            for member in (*self._loans.end(worker.owner), *[client.member for client in self.clients.values()]):
                member.send({"op": "segment_gone", "owner": worker.owner})
            self._release_all(worker)
            worker.close()

        gone = {"op": "worker_gone", "owner": worker.owner, "reason": int(reason), "detail": detail}
        self.acknowledgements.announce(self._to_batcher(gone), passed_on)

    # --- payloads that no slab takes ---

    def on_oversize(self, asker: Participant, message: Message) -> None:
        """A client or a worker wants a segment for one payload, has mapped it, or is done with it."""
        if message["op"] == "oversize":
            self._make_oversize(asker, message)
            return
        found = self._oversize.find(message["owner"], asker.owner)
        if found is None:
            return
        if message["op"] == "oversize_gone":
            self._release(found)
        elif message["op"] == "oversize_mapped" and not found.is_mapped:
            segment.seal_writes(found.segment_fd)
            found.is_mapped = True
            ready = {"op": "oversize_ready", "owner": found.owner}
            announcement = {"op": "segment", "owner": found.owner}
            readers = self._readers(found, announcement, [found.read_only_fd])
            self.acknowledgements.announce(readers, lambda: asker.member.send(ready))

    @property
    def oversize_counts(self) -> dict[str, int]:
        """How many such segments there have been, how many are gone."""
        return self._oversize.counts

    def lend(self, worker: Participant, owner: int) -> None:
        """A request in that worker's hands names a segment of which it was not told."""
        lender = self.clients.get(owner) or self.workers.get(owner)
        if lender is not None and lender.is_joined:
            self._loans.lend(worker.member, owner, lender.read_only_fd)
        else:
            payload = self._oversize.lendable(owner)
            self._loans.lend(worker.member, owner, None if payload is None else payload.read_only_fd)

    def _make_oversize(self, asker: Participant, message: Message) -> None:
        answer = {"op": "oversize", "request": message["request"]}
        if asker.owner in self.workers:
            model_id = RESULT
        else:
            model_id = ASKED_FOR if asker.is_caller else message["model"]
        try:
            made = self._oversize.create(self.take_owner(), asker.owner, model_id, message["nbytes"])
        except ShoalError as refusal:
            asker.member.send({**answer, "wire": refusal.wire, "sentence": str(refusal)})
            return
        asker.member.send({**answer, "owner": made.owner}, [made.segment_fd])

    def _readers(self, told: OversizeSegment, message: Message, fds: Sequence[int]) -> list[Recipient]:
        """A request is read by its model's workers; a result by clients, and the batcher must know whose it is."""
        if told.model_id == RESULT:
            clients = [client for client in self.clients.values() if client.is_joined]
            recipients: list[Recipient] = [(client.member, message, fds) for client in clients]
            return recipients + self._to_batcher({**message, "worker": told.asker})
        workers = [worker for worker in self.workers.values() if worker.model_id == told.model_id]
        return [(worker.member, message, fds) for worker in workers]

    def _release(self, gone: OversizeSegment) -> None:
        self._oversize.remove(gone)
        message = {"op": "segment_gone", "owner": gone.owner}
        recipients = self._readers(gone, message, ())
        recipients += [(borrower, message, ()) for borrower in self._loans.end(gone.owner)]
        self.acknowledgements.announce(recipients, lambda: self._oversize.close(gone))

    def _release_all(self, dead: Participant) -> None:
        for each in self._oversize.written_by(dead.owner):
            self._release(each)

    # --- both ---

    def members(self) -> Iterator[list[Member]]:
        """Everybody who has joined, in the order in which memory goes back: front ends, the batcher, workers."""
        yield [client.member for client in self.clients.values() if client.is_joined]
        yield [] if self.batcher is None else [self.batcher]
        yield [worker.member for worker in self.workers.values() if worker.is_joined]

    @property
    def front_ends(self) -> list[Participant]:
        """Those that have joined."""
        return [client for client in self.clients.values() if client.is_joined and not client.is_caller]

    def tell_clients(self, message: Message) -> None:
        """Every front end that has joined hears of something."""
        for client in self.clients.values():
            if client.is_joined:
                client.member.send(message)

    def announce_to_clients(self, messages: Sequence[Message], then: Callable[[], None]) -> None:
        """Every front end that has joined hears of something; `then` when all act upon it."""
        joined = [client.member for client in self.clients.values() if client.is_joined]
        self.acknowledgements.announce([(member, each, ()) for member in joined for each in messages], then)

    def tell_batcher(self, message: Message, fds: Sequence[int] = ()) -> None:
        """The batcher, if there is one, hears of something that need not be acknowledged."""
        if self.batcher is not None:
            self.batcher.send(message, fds)

    def _to_batcher(self, message: Message, fds: Sequence[int] = ()) -> list[Recipient]:
        return [] if self.batcher is None else [(self.batcher, message, fds)]

    def _participant(self, member: Member, kind: int, own: Geometry, link: Geometry, *, sealed: bool) -> Participant:
        owner = self.take_owner()
        with ExitStack() as undo:
            segment_fd = self._create(kind, owner, own, sealed=sealed)
            undo.callback(os.close, segment_fd)
            link_fd = self._create(layout.LINK, owner, link, sealed=False)
            undo.callback(os.close, link_fd)
            read_only_fd = segment.read_only(segment_fd)
            undo.callback(os.close, read_only_fd)
            made = Participant(owner, member, segment_fd, read_only_fd, link_fd, Doorbell.create())
            undo.pop_all()
        return made

    def _create(self, kind: int, owner: int, geometry: Geometry, *, sealed: bool) -> int:
        # What does not fit into /dev/shm (Docker gives it 64 MB) comes from a memfd, which that limit does not reach.
        sealed = sealed or not segment.fits_dev_shm(geometry.nbytes)
        fd = segment.create(kind, owner, 1, geometry, sealed=sealed)
        self.nbytes += geometry.nbytes
        return fd

    def take_owner(self) -> int:
        """An owner id that nobody has. Each payload beyond a slab takes one, so the 24 bits come round."""
        owner = self.next_owner
        while owner in self.clients or owner in self.workers or owner in self._oversize:
            owner = _after(owner)
        self.next_owner = _after(owner)
        return owner


def _after(owner: int) -> int:
    return owner % ((1 << layout.OWNER_BITS) - 1) + 1  # no owner is 0
