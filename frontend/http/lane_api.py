"""The HTTP API of a lane's connection: Triton's, or TorchServe's, whose clients connect to another port.

The lane's loop is the same for all APIs: receive a head and a body, put a request into shared memory, take its reply,
send a response. The API determines how each of these is done. One thread, the lane's.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from shoal.errors import ShoalError
from shoal.frontend.access.authorisation import is_for_lane
from shoal.frontend.http.connection import Chunks, HttpConnection
from shoal.frontend.http.http_head import Head, parse_head
from shoal.frontend.http.responses import known_response
from shoal.frontend.http.submission import HEADER_BYTES, Submission, body_offset
from shoal.frontend.http.templates import KnownRequest
from shoal.frontend.response import Response, error_response
from shoal.frontend.router import HTTP, RouteMatch, answer
from shoal.frontend.state import ServerState
from shoal.shared_settings import SLAB_PARTS
from shoal.shm.port import Port, Reply
from shoal.shm.slab import Block

#: Most bytes of JSON that a lane parses. Parsing takes 10 ms a MB (measured), during which the lane answers no other
#: request.
MAX_JSON_BYTES = 256 * 1024
#: A body up to this size comes with its head in one read, and is copied into its block. A larger one is received in its
#: block.
SMALL_BODY_BYTES = 48 * 1024


class Place(NamedTuple):
    """The place of a large body in the block that it is received into."""

    offset: int
    header_nbytes: int  # the room behind the body, for the packed InferRequest


class LaneApi(Protocol):
    """One API on a lane: how its requests are recognised, parsed, submitted and answered."""

    def find(self, data: bytes, last: KnownRequest | None = None, /) -> tuple[KnownRequest, Sequence[bytes]] | None:
        """The earlier request that the request in `data` repeats, and the parts in which the two differ, see
        Submission.find."""
        ...

    def parse_head(self, raw: bytes, /) -> Head | None:
        """The head in `raw`, which ends with the empty line; None if the road must handle the request."""
        ...

    def is_for_road(self, head: Head, /) -> bool:
        """Whether the road must handle a request with this head."""
        ...

    def place(self, head: Head, /) -> Place:
        """The place of the body in its block."""
        ...

    def model_of(self, head: Head, /) -> int:
        """The id of the model that a request is for; 0 if there is no such model."""
        ...

    def submit(
        self, head: Head, body: memoryview, block: Block | None, before: Head | None = None, /
    ) -> tuple[int, Any]:
        """Put a request into shared memory, see Submission.submit."""
        ...

    def known_response(self, asked: Any, reply: Reply, /) -> Chunks | None:
        """The whole response if all of it but tensors and id is kept from an earlier one, see `known_response`."""
        ...

    def rendered(self, connection: HttpConnection, asked: Any, reply: Reply, /) -> Chunks:
        """The response to a request that was submitted; it may end the connection (`keep_alive`)."""
        ...

    def answer(self, connection: HttpConnection, head: Head, body: memoryview, /) -> Response:
        """The response of a handler that does not wait, or the refusal that the parsed head holds."""
        ...

    def refusal(self, connection: HttpConnection, error: ShoalError, /) -> Response:
        """The response for an error; it may end the connection (`keep_alive`)."""
        ...


class TritonApi(Submission):
    """Triton's HTTP API on a lane."""

    def __init__(self, state: ServerState, port: Port) -> None:
        super().__init__(state, port)
        self.known_response = known_response  # not a method, which would cost each response one more function call
        self._largest_body_nbytes = port.slab.largest_nbytes // SLAB_PARTS

    def parse_head(self, raw: bytes) -> Head | None:
        return parse_head(raw)

    def is_for_road(self, head: Head) -> bool:
        if HTTP.restricted(self._state, head.path, head.headers):
            # The road refuses the request. (Where an API is restricted, a request is recognised later only if its whole
            # head is equal.)
            return True
        if self._state.api_keys is not None and not may_pass(self._state, head):
            return True  # the road refuses the request, or counts it against its key's limits
        if isinstance(head.found, Response) and head.content_length:
            return True  # the road can refuse without reading the body, and the client still gets the answer
        if not head.is_infer:
            if isinstance(head.found, RouteMatch) and head.found.is_generation:
                return head.content_length > MAX_JSON_BYTES
            waits = not isinstance(head.found, Response) and head.found.asks_model(self._state)
            return waits or head.content_length > SMALL_BODY_BYTES
        if head.accepts_compression and self.has_large_responses(head):
            return True  # compressing the response takes milliseconds
        json_length = head.content_length if head.json_length is None else head.json_length
        return json_length > MAX_JSON_BYTES or head.content_length > self._largest_body_nbytes

    def place(self, head: Head) -> Place:
        return Place(body_offset(head), HEADER_BYTES)

    def rendered(self, _connection: HttpConnection, asked: Any, reply: Reply) -> Chunks:
        return self.response(asked, reply)

    def answer(self, _connection: HttpConnection, head: Head, body: memoryview) -> Response:
        found = head.found
        return found if isinstance(found, Response) else answer(found, self._state, None, head.headers, body)

    def refusal(self, _connection: HttpConnection, error: ShoalError) -> Response:
        return error_response(error)


def may_pass(state: ServerState, head: Head) -> bool:
    """Whether the API key of a request, or its lack of one, lets the lane answer it."""
    found = head.found
    return isinstance(found, Response) or is_for_lane(state, found.scope, head.headers, found.model)
