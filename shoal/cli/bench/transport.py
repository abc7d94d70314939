"""The way of a load's requests to a server: slots, each with one request at a time, and the sockets that carry them.

A transport knows no clock but that of its waits, and no policy: the load (loads.py) decides when a slot sends.
"""

import errno
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from shoal.cli.remote import NoResponseError, UnreachableError

#: The most seconds that a connection may take to be made (ours).
CONNECT_TIMEOUT_S = 5.0
#: The most bytes of one read: READ_BYTES until a read has brought as many, LARGE_READ_BYTES from then on. Python
#: allocates as many bytes for each read, which takes 0.1 µs for 16 KiB and up to 13 µs for 256 KiB; with 256 KiB, four
#: reads bring an answer of a MiB.
READ_BYTES, LARGE_READ_BYTES = 16 * 1024, 256 * 1024
#: The most connections whose answers one wait yields (ours): epoll allocates room for as many each time.
_MOST_EVENTS = 256


class Transport(Protocol):
    """Slots for requests to one model of one server. A slot's number is its name; slots are made by their first use."""

    idle_ns: int  # the time that all calls of `wait` have waited
    arrived_ns: int  # when the answer that `wait` has yielded last arrived, by time.perf_counter_ns

    def send(self, slot: int) -> None:
        """Send the next request in a free slot. Raises NoResponseError if the server cannot be connected to."""
        ...

    def wait(self, timeout_s: float, *, is_exact: bool = False) -> Iterator[tuple[int, str | None]]:
        """Wait for answers for at most `timeout_s`; yields each slot that is answered, and an error's sentence or None.

        The wait may last a millisecond longer, unless `is_exact`, which can take another system call.
        """
        ...

    def abandon(self, slot: int) -> None:
        """Free a slot whose request is not wanted any more."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class Exchange(Protocol):
    """One connection's protocol: the bytes of a request, and when its answer is whole. Pure."""

    def opening(self) -> bytes:
        """The first bytes of the connection."""
        ...

    def request(self, number: int) -> bytes:
        """The bytes of request `number`, as far as they may be sent now."""
        ...

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Receive bytes that have arrived; returns bytes to send, and whether the answer is whole."""
        ...

    @property
    def error(self) -> str | None:
        """The sentence of the error in the last whole answer; None where that answer was no error."""
        ...

    @property
    def is_last(self) -> bool:
        """Whether the connection takes no further request."""
        ...


class _Slot:
    """A connection, and the rest of a request that the socket would not take yet."""

    __slots__ = ("connection", "exchange", "is_open", "num_reads", "rest")

    def __init__(self, connection: socket.socket, exchange: Exchange) -> None:
        self.connection = connection
        self.exchange = exchange
        self.rest = memoryview(b"")
        self.is_open = False  # a request is under way
        self.num_reads = 0  # of the answer to that request


class SocketTransport:
    """A connection for each slot, all in one epoll."""

    def __init__(self, host: str, port: int, make_exchange: Callable[[], Exchange]) -> None:
        self.idle_ns = 0
        self.arrived_ns = 0
        self._address = (host, port)
        self._make_exchange = make_exchange
        # Changed by send, wait and abandon: all fields below.
        self._epoll = select.epoll()
        self._slots: dict[int, _Slot] = {}
        self._by_descriptor: dict[int, int] = {}
        self._num_sent = 0
        self._read_bytes = READ_BYTES

    def send(self, slot: int) -> None:
        """Send the next request on a free slot's connection, which is made if there is none."""
        held = self._slots.get(slot)
        if held is None:
            held = self._connect(slot)
        held.is_open = True
        held.num_reads = 0
        data = held.exchange.request(self._num_sent)
        self._num_sent += 1
        try:
            # A server may answer a request before it has read all of it.
            num_sent = 0 if held.rest else held.connection.send(data)
        except BlockingIOError:
            num_sent = 0
        except OSError:  # the server has closed the idle connection: send again on a fresh one
            self._drop(slot)
            held = self._connect(slot)
            held.is_open = True
            data = held.exchange.request(self._num_sent)
            num_sent = 0
        if num_sent < len(data):
            self._send_later(held, memoryview(data)[num_sent:])

    def wait(self, timeout_s: float, *, is_exact: bool = False) -> Iterator[tuple[int, str | None]]:
        """Wait for answers, and send what sockets did not take before; yields as `Transport.wait` does."""
        before_ns = time.perf_counter_ns()
        events = self._poll(timeout_s, is_exact=is_exact)
        ready_ns = time.perf_counter_ns()
        self.idle_ns += ready_ns - before_ns
        slots, by_descriptor = self._slots, self._by_descriptor
        for descriptor, event in events:
            slot = by_descriptor.get(descriptor)
            if slot is None:
                continue  # its connection was dropped for an earlier event
            held = slots[slot]
            if event & select.EPOLLOUT:
                self._send_rest(held)
            if not event & ~select.EPOLLOUT:
                continue
            try:
                data = held.connection.recv(self._read_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                data, reason = b"", f"connection lost: {error.strerror}"
            else:
                reason = "connection closed by the server"
            if not data:
                was_open = held.is_open
                self._drop(slot)
                if was_open:
                    self.arrived_ns = ready_ns
                    yield slot, reason
                continue
            if len(data) == READ_BYTES:
                self._read_bytes = LARGE_READ_BYTES
            held.num_reads += 1
            exchange = held.exchange
            reply, is_whole = exchange.receive(data)
            if reply:
                self._send_later(held, memoryview(reply))
            if not held.is_open:
                # An answer to no request says that the server closes the connection, as one with status 408 does.
                if is_whole or exchange.is_last:
                    self._drop(slot)
            elif is_whole:
                held.is_open = False
                if exchange.is_last:
                    self._drop(slot)
                # A small answer, taken by one read, was there when the wait ended; parts of others may have come since.
                is_small = held.num_reads == 1 and len(data) < READ_BYTES
                self.arrived_ns = ready_ns if is_small else time.perf_counter_ns()
                yield slot, exchange.error

    def abandon(self, slot: int) -> None:
        """Free a slot by closing its connection."""
        if slot in self._slots:
            self._drop(slot)

    def close(self) -> None:
        """Close all connections, and the epoll instance."""
        for slot in list(self._slots):
            self._drop(slot)
        self._epoll.close()

    def _poll(self, timeout_s: float, *, is_exact: bool) -> list[tuple[int, int]]:
        if is_exact and 0 < timeout_s < 0.1:
            # epoll's own timeout is in whole milliseconds, which are too coarse for requests that are due.
            if not select.select([self._epoll], [], [], timeout_s)[0]:
                return []
            timeout_s = 0
        return self._epoll.poll(timeout_s, _MOST_EVENTS)

    def _connect(self, slot: int) -> _Slot:
        try:
            made = socket.create_connection(self._address, CONNECT_TIMEOUT_S)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            held = _Slot(made, self._make_exchange())
            if opening := held.exchange.opening():
                made.sendall(opening)
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise NoResponseError("too many open files (ulimit -n)") from None
            place = ":".join(map(str, self._address))
            raise UnreachableError(f"No server answers at {place}: {error.strerror or error}.") from None
        made.setblocking(False)
        self._slots[slot] = held
        self._by_descriptor[made.fileno()] = slot
        self._epoll.register(made, select.EPOLLIN)
        return held

    def _drop(self, slot: int) -> None:
        held = self._slots.pop(slot)
        del self._by_descriptor[held.connection.fileno()]
        self._epoll.unregister(held.connection)
        held.connection.close()

    def _send_later(self, held: _Slot, data: memoryview) -> None:
        held.rest = memoryview(held.rest.tobytes() + data.tobytes()) if held.rest else data
        self._send_rest(held)

    def _send_rest(self, held: _Slot) -> None:
        try:
            while held.rest:
                held.rest = held.rest[held.connection.send(held.rest) :]
        except BlockingIOError:
            pass  # `wait` sends the rest once the socket takes more
        except OSError:
            held.rest = memoryview(b"")  # the end of the connection is read next
        self._epoll.modify(held.connection, select.EPOLLIN | (select.EPOLLOUT if held.rest else 0))
