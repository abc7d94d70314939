"""Connections with TLS that the road serves: a lane decrypts what the client sends, and encrypts what the road answers.

Each direction holds the bytes of one read at most, and reads on once these are sent. So a client that reads slowly
makes the road send slowly, and a road that reads slowly makes the client send slowly. The road's deadlines end requests
that a client leaves unfinished; the connection of a client that reads nothing for SEND_S is closed here. When the road
gives the connection back (addressed_sockets.py), the lane serves it again. One thread, the lane's; nothing blocks.
"""

import logging
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress

from shoal.errors import UnavailableError
from shoal.frontend.addressed_sockets import make_pair, read_note
from shoal.frontend.connection_sources import ConnectionSources
from shoal.frontend.http.connection import READ_BYTES
from shoal.frontend.kept_memory import SEND_S
from shoal.frontend.lane_loop import LINGER_S
from shoal.frontend.response import CLOSE, as_bytes, error_response
from shoal.frontend.tls.tls_socket import TlsSocket
from shoal.open_files import explain

_log = logging.getLogger("shoal")

_IN, _OUT, _GONE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
#: The most reads of one connection in a row, in each direction (ours): other connections wait meanwhile.
_MAX_READS = 8


class Relay:
    """One connection: the client's socket, the lane's end of the socket pair, and the bytes on their way."""

    __slots__ = (
        "client", "client_events", "ends_s", "has_client_ended", "has_road_ended", "is_road_shut", "note",
        "progress_s", "road", "road_events", "road_takes", "to_client", "to_road",
    )  # fmt: skip

    def __init__(self, client: TlsSocket, road: socket.socket, note: int, now_s: float) -> None:
        self.client = client
        self.road = road
        self.note = note  # closed with the relay
        # The fields below are changed by Relays.
        self.to_road = memoryview(b"")  # bytes that the road's end has not taken
        self.to_client = memoryview(b"")
        self.has_client_ended = False  # whether the client sends no more
        self.has_road_ended = False
        self.is_road_shut = False  # whether the road has been told that the client sends no more
        self.road_takes = True  # false once the road reads no more
        self.progress_s = now_s  # when the client last took bytes
        self.ends_s = 0.0  # when the connection, if it is over, is closed; 0: it is not over
        self.client_events, self.road_events = _IN, _IN  # what epoll waits for; 0: not registered


class Relays:
    """All relayed connections of one lane."""

    def __init__(
        self,
        poller: select.epoll,
        sources: ConnectionSources,
        max_num: int,
        returned: Callable[[TlsSocket, bytes], None],
    ) -> None:
        """`returned` takes over a connection that the road has given back, with the bytes that the road has not
        parsed."""
        self._poller = poller
        self._sources = sources
        self._max_num = max_num
        self._returned = returned
        # The fields below are changed by every method.
        self._open: dict[int, Relay] = {}  # each relay twice: by the client's descriptor and by the road's
        self._refused: dict[int, tuple[TlsSocket, float]] = {}  # clients that may still send, and when each is closed

    def __len__(self) -> int:
        return len(self._open) // 2 + len(self._refused)

    def begin(self, client: TlsSocket, data: bytes, now_s: float) -> None:
        """Hand a connection over to the road, with the bytes that were read from it; the poller does not watch it."""
        if len(self._open) // 2 >= self._max_num:
            sentence = f"{self._max_num} connections with TLS wait for answers that take long, as many as one lane has"
            self._refuse(client, sentence, now_s)
            return
        try:
            road, theirs, note = make_pair(client.getpeername(), client.getsockname())
        except OSError as error:  # the client is gone, or no descriptor is left
            sentence = f"this connection with TLS cannot be relayed: {explain(error)}"
            _log.warning("%s; it is closed", sentence)
            self._refuse(client, sentence, now_s)
            return
        try:
            self._poller.register(road.fileno(), _IN)
            self._poller.register(client.fileno(), _IN)
        except OSError as error:  # the kernel watches no further descriptor
            road.close()  # closing it also takes it out of epoll
            theirs.close()
            os.close(note)
            self._refuse(client, f"this connection with TLS cannot be relayed: {error.strerror}", now_s)
            return
        self._sources.hand_over(theirs, data)
        relay = Relay(client, road, note, now_s)
        self._open[client.fileno()] = self._open[road.fileno()] = relay
        if client.has_received:
            self._pump(relay, now_s)

    def serve(self, fd: int, event: int, now_s: float) -> bool:
        """Handle an event; False if the descriptor belongs to no relayed connection."""
        relay = self._open.get(fd)
        if relay is None:
            return self._drop_rest(fd)
        if fd == relay.client.fileno() and event & _GONE:
            self._close(relay)
            return True
        try:
            self._pump(relay, now_s)
        except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all of them
            _log.exception("a connection is closed, since relaying it failed")
            if self._open.get(fd) is relay:
                self._close(relay)
        return True

    def expire(self, now_s: float) -> None:
        """Close connections whose clients read nothing for SEND_S, and connections that are over once their time to
        linger is past."""
        for relay in {id(each): each for each in self._open.values()}.values():
            is_stuck = relay.to_client and now_s - relay.progress_s >= SEND_S
            if is_stuck or 0.0 < relay.ends_s <= now_s:
                self._close(relay)
        for fd in [fd for fd, (_, ends_s) in self._refused.items() if ends_s <= now_s]:
            self._close_refused(fd)

    def _pump(self, relay: Relay, now_s: float) -> None:
        """Move bytes in both directions as far as the sockets allow, and end the relay if the connection is over."""
        self._move_to_client(relay, now_s)
        if not self._move_to_road(relay):
            self._close(relay)
            return
        if not relay.has_road_ended or relay.to_client:
            self._watch(relay)
        elif relay.ends_s:
            if relay.has_client_ended:
                self._close(relay)
        elif (rest := read_note(relay.note)) is not None:
            self._forget(relay)
            self._returned(relay.client, rest + bytes(relay.to_road))
        else:
            # A connection closed with bytes unread would be reset, and the client could lose the response (RFC 9112,
            # section 9.6).
            relay.ends_s = now_s + LINGER_S
            relay.to_road = memoryview(b"")
            with suppress(OSError):
                relay.client.shutdown(socket.SHUT_WR)
            self._watch(relay)

    def _move_to_client(self, relay: Relay, now_s: float) -> None:
        for _ in range(_MAX_READS):
            while relay.to_client:
                try:
                    num_sent = relay.client.send(relay.to_client)
                except BlockingIOError:
                    return
                except OSError:  # the client is gone, as the next read from its socket reports
                    relay.to_client = memoryview(b"")
                    break
                relay.to_client = relay.to_client[num_sent:]
                relay.progress_s = now_s
            if relay.has_road_ended:
                return
            try:
                data = relay.road.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            relay.has_road_ended = not data
            relay.to_client = memoryview(data)
            relay.progress_s = now_s

    def _move_to_road(self, relay: Relay) -> bool:
        """Move bytes from the client to the road. False if the client is gone."""
        for _ in range(_MAX_READS):
            if relay.to_road and relay.road_takes and not self._send_to_road(relay):
                return True
            if relay.has_client_ended or relay.to_road:
                break
            try:
                data = relay.client.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                return False
            relay.has_client_ended = not data
            relay.to_road = memoryview(b"" if relay.ends_s else data)  # dropped while the connection lingers
        if relay.has_client_ended and not relay.to_road and not relay.is_road_shut:
            relay.is_road_shut = True
            with suppress(OSError):  # the road has ended, too
                relay.road.shutdown(socket.SHUT_WR)
        return True

    def _send_to_road(self, relay: Relay) -> bool:
        """Send the waiting bytes to the road. False if some are left that the road may take later."""
        try:
            relay.to_road = relay.to_road[relay.road.send(relay.to_road) :]
        except BlockingIOError:
            return False
        except OSError:  # the road reads no more: the bytes stay here, in case the connection comes back
            relay.road_takes = False
        return not relay.to_road or not relay.road_takes

    def _watch(self, relay: Relay) -> None:
        reads = not relay.has_client_ended and not relay.to_road
        client_events = (_IN if reads else 0) | (_OUT if relay.to_client else 0)
        if client_events != relay.client_events:
            relay.client_events = client_events
            self._poller.modify(relay.client.fileno(), client_events)
        events = 0 if relay.to_client or relay.has_road_ended else _IN
        if relay.to_road and relay.road_takes:
            events |= _OUT
        fd, before = relay.road.fileno(), relay.road_events
        if events and before and events != before:
            self._poller.modify(fd, events)
        elif events and not before:
            self._poller.register(fd, events)
        elif before and not events:  # otherwise epoll would report the road's end again and again
            self._poller.unregister(fd)
        relay.road_events = events  # only now: `_forget` unregisters if this is not 0

    def _forget(self, relay: Relay) -> None:
        """Forget a connection, and close the relay's descriptors except the client's socket."""
        del self._open[relay.client.fileno()], self._open[relay.road.fileno()]
        self._poller.unregister(relay.client.fileno())
        if relay.road_events:
            self._poller.unregister(relay.road.fileno())
        relay.road.close()
        os.close(relay.note)

    def _close(self, relay: Relay) -> None:
        self._forget(relay)
        relay.client.close()

    # --- refused connections ---

    def _refuse(self, client: TlsSocket, sentence: str, now_s: float) -> None:
        """Refuse a connection that the road cannot take, with 503. What the client still sends is read and dropped for
        LINGER_S: a connection that is closed with bytes unread is reset, and the client could lose the response (RFC
        9112, section 9.6)."""
        response = error_response(UnavailableError(sentence))
        response = response._replace(headers=response.headers + CLOSE)
        try:
            client.send(as_bytes(response))
            client.shutdown(socket.SHUT_WR)
        except OSError:  # the client is gone, or does not read
            client.close()
            return
        if len(self._refused) >= self._max_num:
            self._close_refused(next(iter(self._refused)))  # the oldest, which has had the most time
        try:
            self._poller.register(client.fileno(), _IN)
        except OSError:  # the kernel watches no further descriptor
            client.close()
            return
        self._refused[client.fileno()] = client, now_s + LINGER_S

    def _drop_rest(self, fd: int) -> bool:
        """Read and drop what a refused client sends; False if the descriptor belongs to no refused connection."""
        if fd not in self._refused:
            return False
        try:
            is_over = not self._refused[fd][0].recv(READ_BYTES)
        except BlockingIOError:
            is_over = False
        except OSError:
            is_over = True
        if is_over:
            self._close_refused(fd)
        return True

    def _close_refused(self, fd: int) -> None:
        client, _ = self._refused.pop(fd)
        self._poller.unregister(fd)
        client.close()
