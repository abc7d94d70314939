"""An open request of a guest's connection: replies in, Results out.

`notify` wakes the waiting thread or coroutine, which then takes the responses that have arrived:

    with session.submit(asked, notify) as call:
        while not call.is_done:
            …wait until call.has_news…
            result = call.next_result()
"""

import time

from shoal import errors
from shoal.client.arrays import MAX_TEMPLATES, Array, Opened, copied, open_response, viewed
from shoal.client.connection import Connection, Waiter
from shoal.client.request_arguments import RequestArguments
from shoal.client.result import Result
from shoal.errors import TimedOutError
from shoal.memo import Memo
from shoal.reasons import Reason
from shoal.shm.port import Reply, TracedTimes
from shoal.star.models import ModelEntry
from shoal.star.refusal import other_version, refusal
from shoal.timing import Execution, Points, Timing, timing

#: How often a request is submitted again because its model was reloaded between lookup and execution (ours); after that
#: it fails.
MAX_RELOADS = 3
_NOTHING = Opened((), {})


class Responses:
    """Parser of the response headers of one connection. Parsed headers are kept, since headers repeat."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # Changed by open and forget; without a lock: a thread that does not see another thread's entry parses the
        # header again.
        self._opened = Memo[tuple[int, bytes], Opened]("client_response", MAX_TEMPLATES)

    def open(self, entry: ModelEntry, reply: Reply, header: bytes, block_nbytes: int) -> Opened:
        """A parsed response header. Raises the ShoalError that the reply reports, and InternalError for a malformed
        header."""
        if reply.status:
            raise errors.from_wire(reply.status, str(header, "utf-8", "replace"))
        key = entry.model_id, header
        opened = self._opened.entries.get(key)
        if opened is not None and all(offset + nbytes <= block_nbytes for *_, offset, nbytes in opened.tensors):
            return opened
        opened = open_response(entry, header, block_nbytes)
        self._opened.keep(key, opened)
        return opened

    def forget(self) -> None:
        """Forget all parsed headers: the models have changed."""
        self._opened.entries.clear()


class ClientCall:
    """One request. The call is a context manager: leaving it before the request is done cancels the request."""

    __slots__ = ("_asked", "_entry", "_responses", "_start_ns", "connection", "limit_s", "waiter")

    def __init__(
        self, responses: Responses, asked: RequestArguments, entry: ModelEntry, waiter: Waiter, start_ns: int
    ) -> None:
        self._start_ns = start_ns
        self.connection = responses.connection
        self.waiter = waiter
        self._responses = responses
        self._asked = asked
        self._entry = entry
        #: The most seconds that a response may take.
        self.limit_s = self.connection.request_timeout_s if asked.timeout is None else asked.timeout

    @property
    def has_news(self) -> bool:
        """Whether `next_result` returns or raises without waiting."""
        return bool(self.waiter.replies) or self.waiter.is_over

    @property
    def is_done(self) -> bool:
        """Whether the last response was taken."""
        waiter = self.waiter
        return waiter.is_over and not waiter.replies and waiter.error is None

    def result(self) -> Result:
        """The response of a model that answers once. Raises the ShoalError with which the request has failed."""
        result = self.next_result()
        return result if result is not None else self._made({}, _NOTHING)

    def next_result(self) -> Result | None:
        """The next response that has arrived; None if the request has ended without a further response.

        Raises the ShoalError with which the request has failed.
        """
        waiter, entry = self.waiter, self._entry
        if not waiter.replies:
            if waiter.error is not None:
                raise waiter.error
            return None
        reply = waiter.replies.popleft()
        block, header = reply.block, reply.header
        if block is None or header is None:
            if reply.is_empty:
                return None
            error = refusal(entry, self._asked.request_id, reply, self._asked.sequence_id)
            raise TimedOutError(str(error)) if reply.reason == Reason.TIMED_OUT else error
        if self._asked.copy or reply.status:
            try:
                opened = self._responses.open(entry, reply, header, len(block))
                return self._made(copied(opened, block), opened, reply)
            finally:
                self.connection.release(reply)
        held = self.connection.hold(reply)
        opened = self._responses.open(entry, reply, header, len(block))
        return self._made(viewed(opened, held), opened, reply)

    def _made(self, arrays: dict[str, Array], opened: Opened, reply: Reply | None = None) -> Result:
        entry = self._entry
        version = (0 if reply is None else other_version(reply)) or entry.version
        result = Result(entry.name, str(version), arrays, opened.parameters)
        if self.waiter.times is not None and reply is not None and reply.is_final:
            result.timing = self._timing(self.waiter.times, reply)
        return result

    def _timing(self, times: TracedTimes, reply: Reply) -> Timing:
        entry = self._entry
        execution = Execution(*times.execution) if times.execution else None
        points = Points._make((0, self._start_ns, *reply.times, time.monotonic_ns()))
        return timing(points, execution, groups=entry.groups, version=str(other_version(reply) or entry.version))

    def late(self) -> TimedOutError:
        """The error for a request without a response within `limit_s` seconds."""
        return TimedOutError(
            f"Request timeout expired: no answer from model '{self._entry.name}' within {self.limit_s:g} s"
        )

    def __enter__(self) -> "ClientCall":
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is not None or not self.is_done:
            self.connection.cancel(self.waiter)
