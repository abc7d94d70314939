"""The interface by which gRPC calls use a protocol of inference: how messages become requests, and replies become
messages.

Triton's protocol is in submission.py, TorchServe's in torchserve/predictions.py. One thread, the lane's.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from shoal.api_keys import ApiKey
from shoal.errors import ShoalError
from shoal.frontend.grpc import wire
from shoal.frontend.grpc.submission import MessageTemplate, RegionTemplate
from shoal.frontend.prepared import PreparedRequest
from shoal.shm.port import Reply
from shoal.shm.slab import Block


class AskedMessage(Protocol):
    """The part of a request that is kept until its last reply has come."""

    @property
    def recognised_by(self) -> MessageTemplate | RegionTemplate | None:
        """The template by which requests like this one are recognised; None if there is none."""
        ...

    @property
    def found(self) -> PreparedRequest:
        """The validated request as it is kept, perhaps without its id and its tensors; nothing is computed for it."""
        ...

    @property
    def prepared(self) -> PreparedRequest:
        """The validated request with its id, perhaps without its tensors."""
        ...


#: An AskedMessage whose class has further fields, which only the protocol that made the object knows.
Asked: TypeAlias = Any


class InferenceProtocol(Protocol):
    """The messages of one protocol's inferences."""

    def submit(
        self,
        message: bytes | memoryview,
        metadata: Mapping[str, str],
        block: Block | None = None,
        offset: int = 0,
        /,
        *,
        is_stream: bool,
        deadline_ns: int = 0,
        key: ApiKey | None = None,
    ) -> tuple[int, Asked]:
        """Submit the request in a message; visible to the batcher at the port's next flush. Returns the request's
        number, and the argument for `response` with its replies.

        `message` lies in `block` from `offset` on, or in private memory if `block` is None. The block belongs to the
        protocol from now on. Raises ShoalError if the request is refused, PermissionDeniedError for a model that `key`
        is not for; the block is freed then.
        """
        ...

    def model_of(self, message: bytes | memoryview, /) -> int:
        """The number of the model that a message is for; 0 if there is no such model, or the message is malformed."""
        ...

    def response(self, asked: Asked, reply: Reply, /, *, stream: bool = False, final: bool = True) -> wire.Chunks:
        """The message to send for a reply; `final`: this reply is the request's last.

        A single chunk is the lane's own memory; chunks after the first may be views of the worker's block, valid until
        it is released. Raises ShoalError if the reply is an error.
        """
        ...

    def empty_final(self, asked: Asked, /) -> bytes | None:
        """The message of a stream that reports only that a request has had its last response; None in a protocol
        without such messages."""
        ...

    def ends_with_error(self, path: str, metadata: Mapping[str, str], /) -> bool:
        """Whether a request's error ends its whole stream, a call of this path. If not, the error is a message of the
        stream."""
        ...

    def refused_message(self, error: ShoalError, message: bytes | memoryview, /) -> bytes:
        """The stream's message with the error of a request that was not submitted. The request's own `message` may be
        malformed."""
        ...

    def refused_request(self, error: ShoalError, asked: Asked, /, *, final: bool) -> bytes:
        """The stream's message with the error of a request that has failed; `final`: this message is the request's
        last."""
        ...
