"""The road's side of admission: decides whether the next request of a gRPC stream may begin, by the limits of its API
key, for the lanes that submit such requests.

Each lane asks over a socket pair (frontend/access/admission_messages.py). When the pair closes, because the lane has
ended, all requests that were admitted on the pair have ended. Runs in the event loop's thread.
"""

import selectors
import socket
import time
from collections.abc import Callable
from functools import partial

from shoal.api_keys import ApiKey
from shoal.frontend.access.admission_messages import GREETING, MAX_BYTES, AdmissionMessage, Decision
from shoal.frontend.access.key_limits import KeyLimitError, KeyUses
from shoal.frontend.road.connection import is_of_lane

#: The most messages of one lane that are answered before other connections have their turn (ours: 64 take 2 ms).
_MAX_MESSAGES = 64


class AdmissionServer:
    """The sockets of all lanes, and the requests admitted on each."""

    def __init__(
        self, poller: selectors.BaseSelector, uses: KeyUses, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._poller = poller
        self._uses = uses
        self._now_ns = now_ns
        # Changed as lanes connect, ask and end: by lane, the keys of the admitted requests by number.
        self._admitted: dict[socket.socket, dict[int, ApiKey]] = {}

    def take_over(self, accepted: socket.socket, data: bytes) -> bool:
        """Serve a socket over which a lane will ask for admission; False for any other connection."""
        if not is_of_lane(accepted) or data != GREETING:
            return False
        accepted.setblocking(False)
        try:
            self._poller.register(accepted, selectors.EVENT_READ, partial(self._read, accepted))
        except OSError:  # epoll takes no further descriptor: the lane's next message opens another pair
            accepted.close()
            return True
        self._admitted[accepted] = {}
        return True

    def _read(self, lane: socket.socket, _sock: socket.socket) -> None:
        for _ in range(_MAX_MESSAGES):
            try:
                data = lane.recv(MAX_BYTES)
                if not data:
                    break
                decision = self._decide(self._admitted[lane], AdmissionMessage.unpack(data))
                if decision is not None:
                    lane.send(decision.pack())
            except BlockingIOError:
                # All messages are read; or the socket is full because the lane reads no answers, and this answer is
                # dropped.
                return
            except OSError:
                break
        else:
            return
        self._end(lane)

    def _decide(self, admitted: dict[int, ApiKey], message: AdmissionMessage) -> Decision | None:
        """The decision about a request that asks to begin; None for a message that a request has ended."""
        number, key = message
        if key is None:
            ended = admitted.pop(number, None)
            if ended is not None:
                self._uses.end(ended)
            return None
        try:
            self._uses.begin(key, self._now_ns())
        except KeyLimitError as error:
            return Decision(number, str(error), error.retry_after_s or 0)
        admitted[number] = key
        return Decision(number)

    def _end(self, lane: socket.socket) -> None:
        self._poller.unregister(lane)
        for key in self._admitted.pop(lane).values():
            self._uses.end(key)
        lane.close()
