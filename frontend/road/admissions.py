"""Counts the requests in gRPC's streams by keys with limits, for the lanes that submit them. The event loop's thread.

A lane has a socket pair with the road for that (frontend/access/admission_words.py). When it ends, because the lane
does, all that was admitted on it has ended.
"""

import selectors
import socket
import time
from collections.abc import Callable
from functools import partial

from shoal.api_keys import ApiKey
from shoal.frontend.access.admission_words import (
    GREETING,
    MAX_BYTES,
    Question,
    Verdict,
    pack_verdict,
    unpack_question,
)
from shoal.frontend.access.key_limits import KeyLimitError, KeyUses
from shoal.frontend.road.connection import is_of_lane

#: Messages of one lane that are answered before other connections have their turn (ours: 2 ms).
_MAX_MESSAGES = 64


class Admissions:
    """The sockets of all lanes that ask, and the requests admitted on each."""

    def __init__(
        self, poller: selectors.BaseSelector, uses: KeyUses, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._poller = poller
        self._uses = uses
        self._now_ns = now_ns
        # Changed as lanes come, ask and go.
        self._begun: dict[socket.socket, dict[int, ApiKey]] = {}

    def take_over(self, accepted: socket.socket, data: bytes) -> bool:
        """Serve a socket that a lane has handed over for its questions; False if it is another connection."""
        if not is_of_lane(accepted) or data != GREETING:
            return False
        accepted.setblocking(False)
        try:
            self._poller.register(accepted, selectors.EVENT_READ, partial(self._read, accepted))
        except OSError:  # the kernel watches no further descriptor: the lane asks on another socket
            accepted.close()
            return True
        self._begun[accepted] = {}
        return True

    def _read(self, lane: socket.socket, _sock: socket.socket) -> None:
        for _ in range(_MAX_MESSAGES):
            try:
                data = lane.recv(MAX_BYTES)
                if not data:
                    break
                verdict = self._judge(self._begun[lane], unpack_question(data))
                if verdict is not None:
                    lane.send(pack_verdict(verdict))
            except BlockingIOError:
                # Nothing more has come; or the lane does not read, which then waits for its answer in vain.
                return
            except OSError:
                break
        else:
            return
        self._end(lane)

    def _judge(self, begun: dict[int, ApiKey], question: Question) -> Verdict | None:
        number, key = question
        if key is None:
            ended = begun.pop(number, None)
            if ended is not None:
                self._uses.end(ended)
            return None
        try:
            self._uses.begin(key, self._now_ns())
        except KeyLimitError as error:
            return Verdict(number, str(error), error.retry_after_s or 0)
        begun[number] = key
        return Verdict(number)

    def _end(self, lane: socket.socket) -> None:
        self._poller.unregister(lane)
        for key in self._begun.pop(lane).values():
            self._uses.end(key)
        lane.close()
