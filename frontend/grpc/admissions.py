"""The admission of requests in streams by keys with limits: a lane asks the road, which counts for all lanes.

One thread, the lane's, which never waits: the answer is brought to the stream that asked.
"""

import socket
from itertools import count
from typing import NamedTuple, Protocol

from shoal.api_keys import ApiKey
from shoal.errors import UnavailableError
from shoal.frontend.access.admission_words import GREETING, MAX_BYTES, Question, pack_question, unpack_verdict
from shoal.frontend.access.key_limits import KeyLimitError
from shoal.frontend.grpc.call import AskingCall

#: How long a request waits for the road's answer (ours: a road that was killed is there again within a second).
ANSWER_S = 10.0


class CallSocket(Protocol):
    """An object with one end of a socket pair, whose other end the road has: the lane waits for it."""

    fd: int

    def serve(self, event: int) -> None:
        """Handle an event of the descriptor."""
        ...


class LaneSockets(Protocol):
    """The lane, as far as the owner of such a socket needs it (call_lane.py)."""

    now_s: float  # monotonic time of this pass

    def hand_over(self, theirs: socket.socket, data: bytes) -> None: ...
    def listen(self, listener: CallSocket) -> None: ...
    def forget(self, listener: CallSocket) -> None: ...


class _Asked(NamedTuple):
    stream: AskingCall
    deadline_s: float


class Admissions:
    """The questions of one lane."""

    def __init__(self, lane: LaneSockets) -> None:
        self._lane = lane
        self.fd = -1
        # Changed by every method.
        self._socket: socket.socket | None = None
        self._numbers = count(1)
        self._asked: dict[int, _Asked] = {}

    def ask(self, stream: AskingCall, key: ApiKey) -> int:
        """Ask for a request by this key. Returns the question's number, which is the admission's if there is one."""
        number = next(self._numbers)
        self._asked[number] = _Asked(stream, self._lane.now_s + ANSWER_S)
        self._send(Question(number, key))
        return number

    def end(self, number: int) -> None:
        """Note that an admitted request has ended, or that the stream which asked has gone before its answer came."""
        self._asked.pop(number, None)
        if self._socket is not None:
            self._send(Question(number, None))

    def _send(self, question: Question) -> None:
        try:
            ours = self._socket or self._open()
            ours.send(pack_question(question))
        except OSError:  # full, since the road does not read for long, or closed; or no descriptor is left for it
            self._lose()

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

    def _lose(self) -> None:
        """Close the socket; the next question opens another. The road then counts all admitted requests as ended; the
        requests that have asked are refused at the next tick."""
        if self._socket is not None:
            self._lane.forget(self)
            self._socket.close()
            self._socket = None
        self._asked = {number: asked._replace(deadline_s=0.0) for number, asked in self._asked.items()}

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
                self._lose()
                return
            number, sentence, retry_after_s = unpack_verdict(data)
            asked = self._asked.pop(number, None)
            if asked is None:  # its stream has ended, and has said so
                continue
            error = None
            if sentence:
                error = KeyLimitError(sentence)
                error.retry_after_s = retry_after_s
            asked.stream.judged(number, error)

    def expire(self, now_s: float) -> None:
        """Refuse the requests for which no answer has come, or will come; called at each tick."""
        for number, asked in list(self._asked.items()):
            if asked.deadline_s <= now_s:
                self.end(number)
                error = UnavailableError(
                    "the front end that counts the requests of API keys with limits has not answered"
                )
                asked.stream.judged(number, error)
