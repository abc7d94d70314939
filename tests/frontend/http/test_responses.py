"""frontend/http/responses.py: what a lane sends its client for a reply; with a known head, what `render` would make.

The requests' side, and the star, are those of test_submission.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from shoal.frontend.http.responses import known_response
from shoal.frontend.response import response_head
from shoal.frontend.v2.infer import render
from shoal.request import InferResponse, TensorRef
from shoal.shm.port import Reply
from tests.frontend.lane_star import ONE, TWO, Pending, Star, binary, inputs, used_template


class Sent(NamedTuple):
    """A whole response, and whether its head was known."""

    wire: bytes
    known: bool


def sent(star: Star, pending: Pending, reply: Reply) -> Sent:
    chunks = known_response(pending.asked, reply)
    if chunks is not None:
        return Sent(b"".join(chunks), known=True)
    return Sent(b"".join(star.submission.response(pending.asked, reply)), known=False)


def ask(star: Star, model: str, json: bytes, tail: bytes) -> Pending:
    pending = star.submit(model, json, tail)
    star.seen()
    return pending


def out(name: str, shape: tuple[int, ...], offset: int, nbytes: int, datatype: int = 11) -> TensorRef:
    return TensorRef(name, datatype, shape, offset, nbytes)


def request(*names: bytes, more: bytes = b"", is_binary: bool = True) -> bytes:
    """The model "batched" asked for these outputs; for none: for all."""
    wanted = b",".join(
        b'{"name":"%s","parameters":{"binary_data":%s}}' % (name, b"true" if is_binary else b"false") for name in names
    )
    more += b',"outputs":[' + wanted + b"]" if names else b""
    return inputs(binary("A", "INT32", [1, 2], 8), binary("B", "INT32", [1, 2], 8), more=more)


ALL_BINARY = b',"parameters":{"binary_data_output":true}'
PAIR = (TensorRef("OUT_A", 8, (1, 2), 0, 8), TensorRef("OUT_B", 8, (1, 2), 64, 8))
#: Request, the worker's response, and whether its head is known the second time.
REPLIES: dict[str, tuple[bytes, InferResponse, bool]] = {
    "one of two": (request(b"OUT_A"), InferResponse(PAIR[:1], {}), True),
    "both": (request(b"OUT_A", b"OUT_B"), InferResponse(PAIR, {}), True),
    "in another order": (request(b"OUT_B", b"OUT_A"), InferResponse(PAIR, {}), True),
    "all, because none is named": (request(more=ALL_BINARY), InferResponse(PAIR, {}), True),
    "more than was asked for": (request(b"OUT_B"), InferResponse(PAIR, {}), True),
    "with an id": (request(b"OUT_A", more=b',"id":"\xc3\xa9\\u0001"'), InferResponse(PAIR[:1], {}), True),
    "with parameters": (request(b"OUT_A"), InferResponse(PAIR[:1], {"a": 1, "b": "x"}), True),
    "one is empty": (
        request(b"OUT_A", b"OUT_B"), InferResponse((PAIR[0], TensorRef("OUT_B", 8, (0, 2), 8, 0)), {}), True
    ),
    "strings": (request(b"OUT_A"), InferResponse((TensorRef("OUT_A", 13, (2,), 0, 9),), {}), True),
    "values in JSON": (request(b"OUT_A", is_binary=False), InferResponse(PAIR[:1], {}), False),
    "all in JSON": (request(), InferResponse(PAIR, {}), False),
    "mixed": (
        request(b"OUT_A").replace(b"]}", b',{"name":"OUT_B"}]}'), InferResponse(PAIR, {}), False
    ),
    "classes": (
        request(b"OUT_A").replace(b'"binary_data":true', b'"binary_data":true,"classification":1'),
        InferResponse(PAIR[:1], {}),
        False,
    ),
    "nothing": (request(b"OUT_A"), InferResponse((), {}), False),
}  # fmt: skip


@pytest.mark.parametrize("case", REPLIES)
def test_every_response_is_the_one_that_render_makes(star: Star, case: str) -> None:
    json, response, is_known = REPLIES[case]
    known = []
    for number in range(4):
        pending = ask(star, "batched", json, bytes(range(16)))
        assert used_template(pending) == (number > 0)
        reply = star.reply(pending.number, response, bytes(range(number, number + 128)))
        assert reply.block is not None
        rendered = render(pending.prepared, response, reply.block)
        found = sent(star, pending, reply)
        assert found.wire == response_head(rendered) + b"".join(rendered.chunks)
        known.append(found.known)
    assert known == [False, False, is_known, is_known]


def number_bytes(dtype: str, numbers: Sequence[float]) -> bytes:
    return np.array(numbers).astype(dtype).tobytes()


JSON_OUTPUTS: dict[str, tuple[bytes, tuple[TensorRef, ...], list[bytes]]] = {
    "integers": (
        b"", (TensorRef("OUT_A", 8, (1, 2), 0, 8),), [number_bytes("<i4", each) for each in ([1, -2], [3, 4], [0, 0])]
    ),
    "floats": (
        b"", (out("OUT_A", (2,), 0, 8),),
        [number_bytes("<f4", each) for each in ([0.5, 1], [1e30, -0.0], [float("nan"), float("-inf")])],
    ),
    "truths": (b"", (TensorRef("OUT_A", 1, (3,), 0, 3),), [b"\0\1\0", b"\1\1\1"]),
    "strings": (b"", (TensorRef("OUT_A", 13, (1,), 0, 9),), [b"\5\0\0\0[1,2]", b'\5\0\0\0"a":"']),
    "none": (b"", (), [b"", b"x"]),
    "no elements": (b"", (out("OUT_A", (0, 2), 0, 0),), [b"", b"x"]),
    "two": (b"", PAIR, [bytes(range(each, each + 72)) for each in (0, 9)]),
    "one of two, with an id": (
        b',"id":"\\"data\\":[1]","outputs":[{"name":"OUT_B"}]', PAIR, [bytes(range(each, each + 72)) for each in (0, 9)]
    ),
    "one of two in binary": (
        b',"outputs":[{"name":"OUT_A"},{"name":"OUT_B","parameters":{"binary_data":true}}]', PAIR,
        [bytes(range(each, each + 72)) for each in (0, 9)],
    ),
    "classes": (
        b',"outputs":[{"name":"OUT_A","parameters":{"classification":1}}]', PAIR,
        [bytes(range(each, each + 72)) for each in (0, 9)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JSON_OUTPUTS)
def test_numbers_in_json_are_printed_as_render_prints_them(star: Star, case: str) -> None:
    more, tensors, contents = JSON_OUTPUTS[case]
    json = inputs(b'{"name":"A","datatype":"INT32","shape":[1,2],"data":[1,2]}', more=more)
    response = InferResponse(tensors, {"x": 1})
    for data in contents * 3:
        pending = star.submit("batched", json)
        star.seen()
        reply = star.reply(pending.number, response, data)
        assert reply.block is not None
        rendered = render(pending.prepared, response, reply.block)
        assert sent(star, pending, reply).wire == response_head(rendered) + b"".join(map(bytes, rendered.chunks))
        star.worker_slab.free(star.replied)


def test_numbers_outside_their_block_are_an_error_though_the_same_header_was_right(star: Star) -> None:
    json = inputs(b'{"name":"A","datatype":"INT32","shape":[1,2],"data":[1,2]}')
    response = InferResponse((TensorRef("OUT_A", 8, (1, 2), 4096, 8),), {})
    for nbytes in (8192, 8192, 8192, 4096):
        pending = star.submit("batched", json)
        star.seen()
        wire = sent(star, pending, star.reply(pending.number, response, b"", nbytes)).wire
        assert wire.startswith(b"HTTP/1.1 200 OK" if nbytes == 8192 else b"HTTP/1.1 500 Internal Server Error")


def test_a_response_byte_for_byte(star: Star) -> None:
    json = request(b"OUT_B", more=b',"id":"7"')
    for number, data in enumerate([ONE, TWO, ONE]):
        pending = ask(star, "batched", json, bytes(16))
        reply = star.reply(pending.number, InferResponse((PAIR[1],), {}), bytes(64) + data)
        assert sent(star, pending, reply) == (
            b"HTTP/1.1 200 OK\r\n"
            b"Content-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: 151\r\n"
            b"Content-Length: 159\r\n"
            b"\r\n"
            b'{"id":"7","model_name":"batched","model_version":"1","outputs":'
            b'[{"name":"OUT_B","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}' + data,
            number == 2,
        )


def test_heads_are_known_by_request_and_by_place(star: Star) -> None:
    """Rows of a batch lie one behind the other: the same request's tensor is at another place each time."""
    grid = inputs(binary("A", "FP32", [1, 2], 8), more=b',"x":"%s"' + ALL_BINARY)

    def answer(word: bytes, offset: int) -> bool:
        pending = ask(star, "grid", grid % word, ONE)
        response = InferResponse((out("OUT_A", (1, 2), offset, 8),), {})
        reply = star.reply(pending.number, response, bytes(offset) + TWO, nbytes=4096)
        wire, known = sent(star, pending, reply)
        assert wire.endswith(b"}]}" + TWO)
        return known

    assert [answer(b"a", 0), answer(b"a", 0), answer(b"a", 64), answer(b"a", 0)] == [False, False, False, True]
    assert [answer(b"b", 0), answer(b"b", 0), answer(b"b", 0), answer(b"a", 64)] == [False, False, True, True]


def test_a_model_that_answers_another_shape(star: Star) -> None:
    grid = inputs(binary("A", "FP32", [1, 2], 8), more=ALL_BINARY)
    shapes = []
    for shape in [(1, 2), (1, 2), (1, 2), (2, 1), (1, 2)]:
        pending = ask(star, "grid", grid, ONE)
        reply = star.reply(pending.number, InferResponse((out("OUT_A", shape, 0, 8),), {}), TWO)
        shapes.append(b'"shape":[%d,%d]' % shape in sent(star, pending, reply).wire)
    assert all(shapes)


def test_a_tensor_outside_its_block_is_an_error_though_the_same_header_was_right(star: Star) -> None:
    """A worker runs the user's code: its header is as right as the block that it comes with."""
    grid = inputs(binary("A", "FP32", [1, 2], 8), more=ALL_BINARY)
    response = InferResponse((out("OUT_A", (1, 2), 4096, 8),), {})
    for nbytes in (8192, 8192, 8192, 4096):
        pending = ask(star, "grid", grid, ONE)
        wire, _ = sent(star, pending, star.reply(pending.number, response, b"", nbytes))
        head, _, body = wire.partition(b"\r\n\r\n")
        assert b"Content-Length: %d" % len(body) in head
        assert head.startswith(b"HTTP/1.1 200 OK" if nbytes == 8192 else b"HTTP/1.1 500 Internal Server Error")


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (out("OUT_A", (1, 2), 4096, 8), b"a response header in shared memory is damaged"),
        (out("OUT_A", (1, 3), 0, 8), b"output tensor shape does not match size of output for 'OUT_A'"),
    ],
    ids=["outside", "shape"],
)
def test_a_response_that_cannot_be_is_an_error_each_time(star: Star, tensor: TensorRef, sentence: bytes) -> None:
    grid = inputs(binary("A", "FP32", [1, 2], 8), more=ALL_BINARY)
    for _ in range(3):
        pending = ask(star, "grid", grid, ONE)
        wire, known = sent(star, pending, star.reply(pending.number, InferResponse((tensor,), {}), b"", 4096))
        assert not known
        assert wire.startswith(b"HTTP/1.1 500 ")
        assert sentence in wire


def test_refusals_and_errors_of_known_and_new_requests(star: Star) -> None:
    grid = inputs(binary("A", "FP32", [1, 2], 8), more=b',"id":"7"' + ALL_BINARY)

    def error(status: bytes, text: bytes) -> list[bytes]:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(text))
        return [head, text]

    for _ in range(2):
        refused = ask(star, "grid", grid, ONE)
        refusal = star.refuse(refused.number)
        assert known_response(refused.asked, refusal) is None
        assert star.submission.response(refused.asked, refusal) == error(
            b"400 Bad Request", b'{"error":"[request id: 7] Request was cancelled"}'
        )
        failed = ask(star, "grid", grid, ONE)
        failure = star.fail(failed.number, 2, b'caf\xc3\xa9 is "closed"')
        assert known_response(failed.asked, failure) is None
        assert star.submission.response(failed.asked, failure) == error(
            b"500 Internal Server Error", b'{"error":"caf\xc3\xa9 is \\"closed\\""}'
        )
    assert (star.port.slab.num_taken, star.port.counts["requests_open"]) == (0, 0)
