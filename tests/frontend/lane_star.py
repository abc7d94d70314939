"""A lane's submission over real segments: the test plays the batcher, at the rings' other ends, and the worker.

`seen` is a request as a worker reads it, `reply` and its like are what may come back, `as_the_road` is the measure.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.frontend.http.http_head import Head, parse_head
from shoal.frontend.http.submission import Submission, body_offset
from shoal.frontend.http.templates import Submitted
from shoal.frontend.prepared import PreparedRequest, block_nbytes, write_block
from shoal.frontend.state import ServerState
from shoal.frontend.v2.infer import prepare
from shoal.messages.to_client import ModelChanged
from shoal.model_config.sequences import VALUES
from shoal.request import InferRequest, InferResponse, pack_response, unpack_request
from shoal.sequences import correlation_word
from shoal.shm import segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, LINK, WORKER, Geometry, unpack_span
from shoal.shm.port import Port, Reply
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Slab, SlabView
from tests.messages import model_message

CORRELATION = {
    "kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64", **{field: list[int]() for field in VALUES}
}  # fmt: skip
#: The name of the model with sequences.
CORRELATED = "correlated"
DATATYPES = ("BOOL", "UINT8", "UINT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES")


def config(name: str, max_batch_size: int, *tensors: tuple[str, str, list[int]], **more: Any) -> dict[str, Any]:
    """A model that repeats each input A as OUT_A; all inputs are optional."""
    inputs = [{"name": name, "data_type": kind, "dims": dims, "optional": True} for name, kind, dims in tensors]
    outputs = [{"name": f"OUT_{name}", "data_type": kind, "dims": dims} for name, kind, dims in tensors]
    return {"name": name, "max_batch_size": max_batch_size, "input": inputs, "output": outputs} | more


def message(model_id: int, configuration: dict[str, Any], **more: Any) -> ModelChanged:
    """What the supervisor says of a model that is READY, or as `more` says."""
    fields = {"row": -1, "num_instances": 1, "num_instances_up": 1, "load_seconds": 0.0, **more}
    return model_message(configuration["name"], fields.pop("version", 1), model_id, configuration, **fields)


CONFIGS = [
    config("grid", 0, ("A", "TYPE_FP32", [-1, -1])),
    config("same", 0, ("A", "TYPE_FP32", [-1, -1])),
    config("odd", 0, ("A", "TYPE_UINT8", [-1]), ("B", "TYPE_FP32", [-1])),
    config("text", 0, ("A", "TYPE_STRING", [-1])),
    config("batched", 4, ("A", "TYPE_INT32", [2]), ("B", "TYPE_INT32", [2])),
    config("stream", 0, ("A", "TYPE_FP32", [1]), model_transaction_policy={"decoupled": True}),
    config("fixed", 0, ("A", "TYPE_INT32", [2])),
    config(
        "story",
        0,
        ("A", "TYPE_STRING", [1]),
        model_transaction_policy={"decoupled": True},
        parameters={name: {"string_value": tensor} for name, tensor in (("text_input", "A"), ("text_output", "OUT_A"))},
    ),
    config(
        CORRELATED,
        0,
        ("A", "TYPE_FP32", [-1, -1]),
        sequence_batching={"control_input": [{"name": "C", "control": [CORRELATION]}], "iterative_sequence": False},
    ),
    config("types", 0, *[(name, f"TYPE_{'STRING' if name == 'BYTES' else name}", [-1, -1]) for name in DATATYPES]),
]


def make_segment(kind: int, owner: int, geometry: Geometry) -> tuple[Segment, SegmentView]:
    """The owner's mapping and a peer's."""
    fd = segment.create(kind, owner, geometry, sealed=False)
    view = SegmentView.attach(segment.read_only(fd))
    return Segment.attach(fd), view


class Seen(NamedTuple):
    """A request as a worker reads it: each input is (name, wire number of its datatype, shape, bytes)."""

    model: int
    rows: int
    shape_key: int
    priority: int
    timeout_us: int
    id: str
    inputs: tuple[tuple[str, int, tuple[int, ...], bytes], ...]
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, Any]


class Pending(NamedTuple):
    """A submitted request."""

    number: int
    asked: Submitted

    @property
    def prepared(self) -> PreparedRequest:
        return self.asked if isinstance(self.asked, PreparedRequest) else self.asked.prepared


class Star:
    """A lane's port (client 5) and the batcher's and worker 9's ends of it."""

    def __init__(self, slab_nbytes: int = 64 * 4096) -> None:
        state = ServerState(started=True)
        for number, each in enumerate(CONFIGS):
            state.models.apply(message(number, each))
        client, client_view = make_segment(CLIENT, 5, Geometry(64, slab_nbytes))
        link, link_view = make_segment(LINK, 1, Geometry(64, 0))
        worker, worker_view = make_segment(WORKER, 9, Geometry(0, slab_nbytes))
        self.bell = Doorbell.create()
        self.state = state
        self.port = Port(client, link_view, self.bell, max_in_flight=16)
        self.port.add_segment(9, worker_view)
        self.submission = Submission(state, self.port)
        self.worker_slab = Slab(worker)
        self._requests, self._replies = RingReader(link, client_view), RingWriter(link, client_view)
        self._client_slab = SlabView(client_view)
        self.records: list[tuple[int, ...]] = []
        #: The block of the last reply.
        self.replied = 0

    def submit(self, model: str, json: bytes, tail: bytes | None = None, *, received: bool = False) -> Pending:
        """Submit as a lane does; `received`: the body came straight into a block. No `tail`: the body is JSON alone."""
        return self.submit_head(head_of(model, json, tail), json + (tail or b""), received=received)

    def submit_head(self, head: Head, body: bytes, *, received: bool) -> Pending:
        if not received:
            return Pending(*self.submission.submit(head, memoryview(b"head" + body + b"next")[4 : 4 + len(body)], None))
        offset = body_offset(head)
        block = self.port.allocate(offset + len(body) + 4096)
        block.memory[:] = b"\xee" * len(block.memory)  # what the block's last user left
        block.memory[offset : offset + len(body)] = body
        return Pending(*self.submission.submit(head, block.memory[offset : offset + len(body)], block))

    def submit_and_see(self, model: str, json: bytes) -> Seen:
        """JSON alone, and what became of it."""
        self.submit(model, json)
        return self.seen()

    def seen(self) -> Seen:
        """The one request that was submitted since; its record is kept in `records`."""
        self.port.flush()
        (record,) = self._requests.drain()
        self.records.append(record)
        block = self._client_slab.open(record[3])
        assert block is not None
        rows, shape_key, priority, timeout_us = record[5:9]
        return Seen(record[2], rows, shape_key, priority, timeout_us, *read(block, record[4]))

    def as_the_road(self, model: str, json: bytes, tail: bytes | None = None) -> Seen:
        """The same request as the road puts it into a block."""
        entry = self.state.models.lookup(model, None)
        headers = head_of(model, json, tail).headers
        prepared = prepare(entry, headers, memoryview(json + (tail or b"")), self.state.http_max_input_size)
        block = memoryview(bytearray(block_nbytes(prepared)))
        numbers = (entry.model_id, prepared.rows, prepared.shape_key, prepared.priority, prepared.timeout_us)
        return Seen(*numbers, *read(block, write_block(prepared, block)))

    def sequence_on_the_road(self, model: str, json: bytes, tail: bytes | None) -> tuple[int, int]:
        """The correlation word and flags of the same request in the record that the road would push."""
        entry = self.state.models.lookup(model, None)
        headers = head_of(model, json, tail).headers
        prepared = prepare(entry, headers, memoryview(json + (tail or b"")), self.state.http_max_input_size)
        correlation = prepared.correlation_id
        return correlation_word(correlation, b"") if correlation else 0, prepared.flags

    def num_waiting(self) -> int:
        """Requests that were submitted and not seen."""
        self.port.flush()
        return len(list(self._requests.drain()))

    def first_tensor_offset(self) -> int:
        """Of the request seen last, from the start of its block."""
        block = self._client_slab.open(self.records[-1][3])
        assert block is not None
        return unpack(block, self.records[-1][4]).inputs[0].offset

    def refuse(self, number: int) -> Reply:
        """The batcher's refusal: cancelled."""
        return self._reply(number, 8, 0, 0, 4)

    def num_cancels(self) -> int:
        """How often the lane has cancelled since requests or cancels were last looked at."""
        self.port.flush()
        return sum(record[0] == 2 for record in self._requests.drain())

    def end(self, number: int) -> Reply:
        """The end of an answer, without another response."""
        return self._reply(number, 0, 0, 0, 0)

    def reply(
        self, number: int, response: InferResponse, data: bytes, nbytes: int = 16384, *, more: bool = False
    ) -> Reply:
        """The worker's answer: `data` at the start of a block, the header at its end. Others follow if `more`."""
        block = self.worker_slab.allocate(nbytes)
        assert block is not None
        self.replied = block.ref
        block.memory[: len(data)] = data
        header = pack_response(response)
        start = len(block.memory) - len(header)
        block.memory[start:] = header
        return self._reply(number, 0, block.ref, start << 32 | len(header), 0, *[0] * 6, int(more))

    def fail(self, number: int, status: int, sentence: bytes) -> Reply:
        """The worker's error."""
        block = self.worker_slab.allocate(4096)
        assert block is not None
        block.memory[: len(sentence)] = sentence
        return self._reply(number, status, block.ref, len(sentence), 0)

    def _reply(self, *words: int) -> Reply:
        self._replies.push((4, *words, *[0] * (15 - len(words))))
        self._replies.publish()
        (reply,) = self.port.poll()
        return reply


def unpack(block: memoryview, span: int) -> InferRequest:
    """A request's header as a worker finds it."""
    offset, nbytes = unpack_span(span)
    found = unpack_request(block[offset : offset + nbytes], len(block))
    spans = sorted((ref.offset, ref.offset + ref.nbytes) for ref in found.inputs)
    ends = [0, *[end for _, end in spans]]
    assert all(end <= start for end, (start, _) in zip(ends, [*spans, (offset, 0)], strict=True)), "an overlap"
    return found


def read(block: memoryview, span: int) -> tuple[Any, ...]:
    """A request and its tensors."""
    found = unpack(block, span)
    inputs = [(*ref[:3], bytes(block[ref.offset : ref.offset + ref.nbytes])) for ref in found.inputs]
    return found.id, tuple(inputs), found.requested_outputs, found.parameters


def head_of(model: str, json: bytes, tail: bytes | None = None, json_length: int | None = None) -> Head:
    """The head that goes with this body, as the lane parses it."""
    fields = b"Content-Length: %d\r\n" % (len(json) + len(tail or b""))
    if tail is not None or json_length is not None:
        fields += b"Inference-Header-Content-Length: %d\r\n" % (len(json) if json_length is None else json_length)
    head = parse_head(b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\n%s\r\n" % (model.encode(), fields))
    assert head is not None
    return head


def used_template(pending: Pending) -> bool:
    """Whether the JSON was known."""
    return not isinstance(pending.asked, PreparedRequest)


def binary(name: str, datatype: str, shape: list[int], nbytes: int) -> bytes:
    return b'{"name":"%s","datatype":"%s","shape":%s,"parameters":{"binary_data_size":%d}}' % (
        name.encode(), datatype.encode(), str(shape).replace(" ", "").encode(), nbytes,
    )  # fmt: skip


def inputs(*tensors: bytes, more: bytes = b"") -> bytes:
    return b'{"inputs":[' + b",".join(tensors) + b"]" + more + b"}"


GRID = inputs(binary("A", "FP32", [1, 2], 8))
ONE, TWO = bytes.fromhex("0000803f00000040"), bytes.fromhex("0000404000008040")
