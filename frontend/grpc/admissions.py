"""The lane's side of admission: before the next request of a gRPC stream begins, the road is asked whether the stream's
API key may have one more request in progress. The road counts each key's requests for all lanes (road/admissions.py).

One thread, the lane's, which never waits: when the answer has come, the stream's `decided` is called.
"""

import socket
from itertools import count
from typing import NamedTuple, Protocol

from shoal.api_keys import ApiKey
from shoal.errors import UnavailableError
from shoal.frontend.access.admission_messages import GREETING, MAX_BYTES, AdmissionMessage, Decision
from shoal.frontend.access.key_limits import KeyLimitError
from shoal.frontend.grpc.call import AskingCall

#: Seconds that a request waits for the road's answer (ours: a road that was killed is replaced within a second, so a
#: wait this long means that no answer will come).
ANSWER_S = 10.0


class CallSocket(Protocol):
    """The owner of one end of a socket pair, whose other end the road has: the lane calls `serve` for its events."""

    fd: int

    def serve(self, event: int) -> None:
        """Handle an event of the socket."""
        ...


class LaneSockets(Protocol):
    """The part of the lane (call_lane.py) that the owner of a CallSocket uses."""

    now_s: float  # monotonic time of this pass

    def hand_over(self, theirs: socket.socket, data: bytes) -> None: ...
    def listen(self, listener: CallSocket) -> None: ...
    def forget(self, listener: CallSocket) -> None: ...


class _Waiting(NamedTuple):
    stream: AskingCall
    deadline_s: float


class AdmissionClient:
    """The requests of one lane that wait for the road's decision, and its socket to the road."""

    def __init__(self, lane: LaneSockets) -> None:
        self._lane = lane
        self.fd = -1
        # The fields below are changed by every method.
        self._socket: socket.socket | None = None
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}  # requests without an answer yet, by their numbers

    def ask(self, stream: AskingCall, key: ApiKey) -> int:
        """Ask whether the next request of a stream may begin; the answer is a call of the stream's `decided`. Returns
        the request's number, for `end`."""
        number = next(self._numbers)
        self._waiting[number] = _Waiting(stream, self._lane.now_s + ANSWER_S)
        self._send(AdmissionMessage(number, key))
        return number

    def end(self, number: int) -> None:
        """Note that an admitted request has ended, or that a waiting request has, with its stream."""
        self._waiting.pop(number, None)
        if self._socket is not None:
            self._send(AdmissionMessage(number, None))

    def _send(self, message: AdmissionMessage) -> None:
        try:
            ours = self._socket or self._open()
            ours.send(message.pack())
        except OSError:  # the road has not read for long, or has closed its end; or no descriptor is left for a socket
            self._disconnect()

    def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.fd = ours.fileno()
        try:
            self._lane.listen(self)
        except OSError:
            ours.close()
            theirs.close()
            raise
        self._socket = ours
        self._lane.hand_over(theirs, GREETING)
        return ours

    def _disconnect(self) -> None:
        """Close the socket; the next message opens another. The road then counts all admitted requests as ended; the
        requests that wait are refused by the next `expire`."""
        if self._socket is not None:
            self._lane.forget(self)
            self._socket.close()
            self._socket = None
        self._waiting = {number: waiting._replace(deadline_s=0.0) for number, waiting in self._waiting.items()}

    def serve(self, event: int) -> None:
        del event
        ours = self._socket
        while ours is not None and ours is self._socket:
            try:
                data = ours.recv(MAX_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._disconnect()
                return
            decision = Decision.unpack(data)
            waiting = self._waiting.pop(decision.number, None)
            if waiting is None:  # the stream has ended, and the request with it
                continue
            error = None
            if decision.reason:
                error = KeyLimitError(decision.reason)
                error.retry_after_s = decision.retry_after_s
            waiting.stream.decided(decision.number, error)

    def expire(self, now_s: float) -> None:
        """Refuse the requests whose answer has not come in time, or is lost with the socket; called every TICK_S."""
        for number, waiting in list(self._waiting.items()):
            if waiting.deadline_s <= now_s:
                self.end(number)
                error = UnavailableError(
                    "the front end that counts the requests of API keys with limits has not answered"
                )
                waiting.stream.decided(number, error)
