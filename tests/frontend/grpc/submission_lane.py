"""A lane of gRPC that submits, on real shared memory."""

from collections.abc import Mapping
from typing import Any

from shoal.frontend.grpc import infer, wire
from shoal.frontend.grpc.messages import service
from shoal.frontend.grpc.submission import GrpcSubmission, SubmittedMessage, message_offset
from shoal.frontend.header_forwarding import NOTHING, forwarded_metadata
from shoal.frontend.http.submission import HEADER_BYTES
from shoal.frontend.prepared import block_nbytes, write_block
from tests.frontend.lane_star import ONE, Seen, Star, read

PATTERN = "^x-"


class Lane(Star):
    """A star whose lane speaks gRPC."""

    def __init__(self, pattern: str = "") -> None:
        super().__init__()
        self.grpc = GrpcSubmission(self.state, self.port, pattern)

    def ask(
        self,
        request: Any,
        *,
        received: bool = False,
        is_stream: bool = False,
        metadata: Mapping[str, str] = NOTHING,
        deadline_ns: int = 0,
    ) -> tuple[int, SubmittedMessage]:
        """Submit as a lane does; `received`: the message came straight into a block."""
        data = request if type(request) is bytes else request.SerializeToString()
        if not received:
            return self.grpc.submit(data, metadata, is_stream=is_stream, deadline_ns=deadline_ns)
        offset = message_offset(wire.first_raw_offset(data))
        block = self.port.allocate(offset + len(data) + HEADER_BYTES)
        block.memory[:] = b"\xee" * len(block.memory)  # what the block's last user left
        block.memory[offset : offset + len(data)] = data
        data = block.memory[offset : offset + len(data)]
        return self.grpc.submit(data, metadata, block, offset, is_stream=is_stream, deadline_ns=deadline_ns)

    def road(self, request: Any, metadata: Mapping[str, str] = NOTHING) -> Seen:
        """The same request as the road puts it into a block."""
        parsed, raws = infer.parse(request.SerializeToString())
        entry = infer.find_model(self.state, parsed, is_stream=True)
        prepared = infer.prepare(entry, parsed, raws, forwarded_metadata(PATTERN, metadata))
        block = memoryview(bytearray(block_nbytes(prepared)))
        numbers = (entry.model_id, prepared.rows, prepared.shape_key, prepared.priority, prepared.timeout_us)
        return Seen(*numbers, *read(block, write_block(prepared, block)))

    def finish(self) -> None:
        """Every request that was seen is over."""
        for record in self.records:
            if record[1] in self.port._open:
                self.refuse(record[1])
        assert (self.port.slab.num_taken, self.port.counts["requests_open"]) == (0, 0)


def grid(data: bytes = ONE, id_: str = "", model: str = "grid", **more: Any) -> Any:
    request = service.ModelInferRequest(model_name=model, id=id_, raw_input_contents=[data], **more)
    request.inputs.add(name="A", datatype="FP32", shape=[1, len(data) // 4])
    return request
