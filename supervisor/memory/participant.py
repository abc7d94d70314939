"""A client or a worker in the star as the supervisor has it: its connection, its memory's descriptors, its progress.

A value with little behaviour; `star.py` changes it.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shoal.cache_settings import redis_settings
from shoal.messages.shared import LogSettings
from shoal.messages.to_batcher import BatcherActivated, ClientJoined, WorkerJoined
from shoal.model_config.rate_limiter import Demand
from shoal.options import ServerOptions
from shoal.shm import layout, segment
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.layout import Geometry
from shoal.shm.shares import MODELS_AT_ONCE
from shoal.supervisor.processes.cores import batcher_spin_ns
from shoal.supervisor.processes.members import Member


@dataclass(slots=True, eq=False)
class Participant:
    """A client or a worker in the star: its connection, its descriptors and how far it has joined."""

    owner: int
    member: Member
    segment_fd: int  # writable in a client, sealed in a worker
    read_only_fd: int
    link_fd: int
    bell: Doorbell | GuestBell  # of a GuestBell: the batcher's end
    batcher_bell: Doorbell | None = None  # wakes the batcher, and tells it which ring to read
    is_joined: bool = False  # its memory may be announced to other processes, and theirs to it
    is_caller: bool = False  # the client is a worker, too: its model calls others
    is_guest: bool = False  # the client is a user's process: it is never waited for, and sent little unasked
    is_late: bool = False  # a client that has not sent the batcher's successor its open requests and held replies yet
    model_id: int = 0  # the model of a worker, once it may be announced
    demand: Demand | None = None  # a worker's demand of the rate limiter's resources, under --rate-limit
    instance: int = 0  # a worker's pid, group and number, as in DeathDetail
    is_ready: bool = False  # batches may go to this worker
    is_retiring: bool = False  # no more batches go to this worker, and it ends when it has finished those it has

    @property
    def is_front_end(self) -> bool:
        """Whether the client is a front end: all workers are sent its memory, and it is sent theirs."""
        return not (self.is_caller or self.is_guest)

    def answered(self) -> list[int]:
        """The numbers of responses of TorchServe's protocol that a front end has given, by the status' first digit."""
        raw = os.pread(self.read_only_fd, layout.ANSWERED_WORDS * layout.WORD, layout.ANSWERED_WORD * layout.WORD)
        return list(memoryview(raw).cast("Q"))

    def noted(self) -> list[int]:
        """A front end's counters beside those of `answered`: the words from layout.HTTP_HANDSHAKES_FAILED on."""
        raw = os.pread(self.read_only_fd, layout.NOTED_WORDS * layout.WORD, layout.NOTED_WORD * layout.WORD)
        return list(memoryview(raw).cast("Q"))

    def close(self) -> None:
        """Close all descriptors of this client or worker; other processes' mappings stay until they unmap."""
        for fd in (self.segment_fd, self.read_only_fd, self.link_fd):
            os.close(fd)
        self.bell.close()
        if self.batcher_bell is not None:
            self.batcher_bell.close()


def batcher_activated(
    options: ServerOptions, log_settings: LogSettings, bell_fd: int, counters_fd: int, *, is_successor: bool
) -> BatcherActivated:
    """The first message to a batcher."""
    return BatcherActivated(
        log=log_settings,
        max_queue_size=options.default_max_queue_size,
        max_in_flight=MODELS_AT_ONCE * options.max_in_flight,
        deadline_ns=options.request_deadline_ms * 1_000_000,
        counts_first_responses=options.metrics_config.histogram_latencies,
        cache_bytes=options.cache_bytes,
        redis=redis_settings(options.cache_config, os.environ),
        is_successor=is_successor,
        rate_limits=options.rate_limits,
        latency_target_ms=options.latency_target,
        spin_ns=batcher_spin_ns(options),
        poison_refusal_ns=options.poison_refusal_secs * 1_000_000_000,
        bell=bell_fd,
        counters=counters_fd,
    )


def client_joined(client: Participant, *, is_late: bool = False) -> ClientJoined:
    """The message that introduces a client to the batcher."""
    own_bell = None if client.batcher_bell is None else client.batcher_bell.fd
    fds = client.read_only_fd, client.link_fd, client.bell.fd, own_bell
    return ClientJoined(client.owner, *fds, client.is_guest, client.is_caller, is_late)


def worker_joined(worker: Participant) -> WorkerJoined:
    """The message that introduces a worker to the batcher."""
    assert worker.batcher_bell is not None
    fds = worker.read_only_fd, worker.link_fd, worker.bell.fd, worker.batcher_bell.fd
    return WorkerJoined(worker.owner, worker.model_id, worker.demand, *fds, worker.instance)


def make_participant(
    owner: int, member: Member, kind: int, own: Geometry, link: Geometry, *, sealed: bool, promised_nbytes: int
) -> Participant:
    """A participant with fresh segments and a bell. `promised_nbytes` of /dev/shm are for other segments that have no
    pages there yet. Raises OutOfSharedMemoryError, or OSError without descriptors."""
    with ExitStack() as undo:
        segment_fd = create_segment(kind, owner, own, sealed=sealed, promised_nbytes=promised_nbytes)
        undo.callback(os.close, segment_fd)
        promised_nbytes += segment.unreserved_nbytes(segment_fd)
        link_fd = create_segment(layout.LINK, owner, link, sealed=False, promised_nbytes=promised_nbytes)
        undo.callback(os.close, link_fd)
        read_only_fd = segment.read_only(segment_fd)
        undo.callback(os.close, read_only_fd)
        bell = Doorbell.create()
        undo.callback(bell.close)
        made = Participant(owner, member, segment_fd, read_only_fd, link_fd, bell, Doorbell.create())
        undo.pop_all()
    return made


def make_guest(owner: int, member: Member, own: Geometry, link: Geometry) -> tuple[Participant, GuestBell]:
    """A guest, and its end of the bell. Raises like `make_participant`.

    The guest cannot truncate a segment under its readers. The pages of its own segment are taken as it writes to them:
    a guest connects in a tenth of the time, and takes only what it uses.
    """
    with ExitStack() as undo:
        segment_fd = segment.create(layout.CLIENT, owner, own, sealed=True, for_guest=True, lazy=True)
        undo.callback(os.close, segment_fd)
        link_fd = segment.create(layout.LINK, owner, link, sealed=True, for_guest=True)
        undo.callback(os.close, link_fd)
        read_only_fd = segment.read_only(segment_fd)
        undo.callback(os.close, read_only_fd)
        near_end, far_end = GuestBell.pair()
        undo.pop_all()
    return Participant(owner, member, segment_fd, read_only_fd, link_fd, near_end, is_guest=True), far_end


@contextmanager
def read_only(*fds: int) -> Iterator[list[int]]:
    """Read-only descriptors of these segments, closed after the `with`. Raises OSError if descriptors have run out."""
    with ExitStack() as opened:
        made = list[int]()
        for fd in fds:
            made.append(segment.read_only(fd))
            opened.callback(os.close, made[-1])
        yield made


def create_segment(
    kind: int, owner: int, geometry: Geometry, *, sealed: bool, lazy: bool = False, promised_nbytes: int = 0
) -> int:
    """Make a segment; returns its descriptor. A segment that does not fit into /dev/shm (Docker gives it 64 MB) beside
    `promised_nbytes` is a memfd, which that limit does not concern."""
    sealed = sealed or not segment.fits_dev_shm(promised_nbytes + geometry.nbytes)
    return segment.create(kind, owner, geometry, sealed=sealed, lazy=lazy)
