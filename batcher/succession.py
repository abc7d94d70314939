"""A batcher's take-over from a dead one: clients send their open requests again, one client after the other; sequences
continue.

A client that has not sent its open requests yet is late (late_clients.py); no other client waits for it. Only requests
of sequences are kept back until no front end is late: requests of one sequence may come from several front ends, and
are queued in the order in which they first arrived. The requests of callers and guests, which may be in users' code for
minutes, are not waited for. Changed by the exchange; lives in the batcher.
"""

from collections.abc import Callable, Mapping

from shoal.batcher.arrivals import Arrivals
from shoal.batcher.blocks import Blocks
from shoal.batcher.late_clients import LateClients
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import ClientPeer, WorkerPeer
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.shm.layout import B, R
from shoal.shm.ring import Record


class Succession:
    """The steps of a take-over. `clients` are the clients that are not late, `busy` the workers whose rings are read
    without a bell; `drain` reads a client's ring."""

    def __init__(
        self,
        clients: dict[int, ClientPeer],
        workers: Mapping[int, WorkerPeer],
        busy: dict[int, WorkerPeer],
        requests: OpenRequests,
        arrivals: Arrivals,
        late: LateClients,
        blocks: Blocks,
        drain: Callable[[ClientPeer, int], None],
    ) -> None:
        self._clients = clients
        self._workers = workers
        self._busy = busy
        self._requests = requests
        self._arrivals = arrivals
        self._late = late
        self._blocks = blocks
        self._drain = drain

    def add_late(self, client: ClientPeer) -> None:
        """Add a client of the dead batcher that has not sent its open requests again: its ring is not read."""
        self._late.add(client)

    def begin(self, now_ns: int) -> None:
        """Begin to serve: every client that is not late has sent its open requests and held replies again.

        A worker keeps the requests that it has from the dead batcher; other requests are queued, and their times in the
        queue count from now.
        """
        self._open_late()
        self._arrivals.resume(self._in_hand())
        self._arrivals.keep_sequences_back()
        for owner, client in tuple(self._clients.items()):
            if owner in self._clients:  # otherwise it was distrusted meanwhile
                self._drain(client, now_ns)
        self._look_at_sequences(now_ns)

    def end(self) -> None:
        """End the take-over: all records that workers wrote for the dead batcher have been handled."""
        self._arrivals.end_resuming()
        self._late.begin()

    def receive_late(self, owner: int, now_ns: int) -> None:
        """Read the ring of a late client that has now sent its open requests and held replies again."""
        client = self._late.pop(owner)
        if client is None:
            return
        self._clients[owner] = client
        answered = {key for key in self._late.in_hand_of(owner) if key not in self._requests.by_key}
        self._arrivals.resume(self._in_hand(), answered)
        self._late.begin_reading()
        self._drain(client, now_ns)
        if owner in self._clients:  # otherwise it was distrusted meanwhile
            self._end_unmentioned(owner)
        self._arrivals.end_resuming()
        self._settle(owner, now_ns)

    def _open_late(self) -> None:
        """Open the requests of late clients that workers have, as described in the workers' rings."""
        for worker in self._workers.values():
            model = worker.model
            for item in worker.given():
                key = item[B.KEY]
                client = self._late.client_of(key)
                if client is None:
                    continue
                accepted_ns = item[B.ACCEPTED_NS]
                # The shape key is unknown, and not needed, since the request is not queued from this record of the
                # worker's ring.
                queued = QueuedRequest(key, item[B.ROWS], 0, accepted_ns)
                number = key - client.first_key
                self._requests.by_key[key] = (
                    client, model, number, item[B.BLOCK], item[B.HEADER], accepted_ns, accepted_ns, queued
                )  # fmt: skip
                self._late.note_in_hand(key)
                if model.order is not None:
                    model.order.begin((key,))

    def _end_unmentioned(self, owner: int) -> None:
        """End requests whose answers a client neither waits for nor holds: the client got the answers from the dead
        batcher, and has released them. The client drops a second answer to such a request."""
        for key in tuple(self._late.in_hand_of(owner)):
            if self._arrivals.was_resent(key) or self._late.has_listed(key):
                continue
            if key in self._requests.by_key:
                self._requests.drop(key)
            elif ref := self._late.holders.release(key):
                self._blocks.free(ref)

    def hold(self, client: ClientPeer, record: Record) -> None:
        """Handle a HOLD: a client holds a reply that a dead batcher passed on."""
        if record[R.MODEL]:
            self._late.begin_again(client.owner)
        key = client.first_key + record[R.NUMBER]
        if self._late.is_counted(key):
            return
        if client.is_guest:
            self._late.claim(record[R.BLOCK])
        holders = self._late.holders
        (holders.hold_part if record[R.MORE] else holders.hold)(record[R.BLOCK], key)

    def expect_worker(self, owner: int) -> None:
        """Read a worker's ring soon: the worker has named its blocks in the ring, though it may have no batch."""
        worker = self._workers.get(owner)
        if worker is not None and worker.reader.has_unread():
            self._busy[owner] = worker

    def expect_repeated_death(self, owner: int) -> None:
        """Note, before the removal of a dead worker, that a dead batcher was told of that death, too: the dead batcher
        may have refused the worker's requests, and other instances keep those that it gave to them."""
        worker = self._workers.get(owner)
        if worker is None:
            return
        for other in self._workers.values():
            if other is not worker:
                for key in worker.missing.keys() & other.missing.keys():
                    del worker.missing[key]
        self._late.doubt(worker.missing)

    def remove_late(self, owner: int, now_ns: int) -> ClientPeer | None:
        """Forget a dead client. Returns the client if it was late, else None."""
        client = self._late.pop(owner)
        if client is not None:
            self._settle(owner, now_ns)
        return client

    def restore_sequences(self, worker: WorkerPeer, now_ns: int) -> None:
        """Continue a worker's sequences from a dead batcher; end them if the worker's progress in them is unknown."""
        held, worker.held = worker.held, []
        sequences = worker.model.sequences
        if sequences is None:
            return
        if worker.overlaps or sequences.is_iterative:
            sequences.lose(worker.owner, held)
        else:
            sequences.restore(worker.owner, held, now_ns)

    def _in_hand(self) -> set[int]:
        return {key for worker in self._workers.values() for key in worker.missing}

    def _settle(self, owner: int, now_ns: int) -> None:
        for ref in self._late.settle(owner):
            self._blocks.free(ref)
        self._look_at_sequences(now_ns)

    def _look_at_sequences(self, now_ns: int) -> None:
        if not self._late.has_front_end:
            self._arrivals.queue_sequences(now_ns)
