"""Requests that cannot be read, or not joined, fail alone; headers that come again; gathering."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.errors import InternalError
from shoal.model_config.signature import Signature
from shoal.shm.layout import B
from shoal.workers.backends.identity import IdentityBackend
from shoal.workers.loop import Loop
from shoal.workers.requests import Request, RequestReader, gather, why_not_joined
from tests.request_headers import request_header
from tests.workers.worker_harness import (
    CONFIG,
    CPU,
    PAIR,
    STRINGS,
    VARIABLE,
    Batcher,
    loop_of,
    model,
    rows,
    strings,
)


def test_a_stale_block_fails_its_request_only(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    stale = batcher.request([("INPUT0", "FP32", rows(1))])
    batcher.client_slab.free(stale[0])
    good = batcher.request([("INPUT0", "FP32", rows(2))])
    batcher.send((stale[0] ^ 1 << 10, stale[1]), good)
    loop.step()
    bad, done = batcher.done()
    assert (bad.status, bad.sentence) == (
        2,
        "a request to model 'm' is gone: its block of shared memory was freed",
    )
    assert done.status == 0
    assert done.outputs["OUTPUT0"].tolist() == [[2, 2, 2, 2]]


def test_a_client_that_was_not_announced_and_one_that_is_gone(batcher: Batcher) -> None:
    memory = batcher.memory()
    backend = IdentityBackend()
    backend.load(model(CONFIG), CPU)
    loop = Loop(backend, Signature.from_config(CONFIG), "m_0_0", memory)
    request = batcher.request([("INPUT0", "FP32", rows(1))])
    batcher.send((99 << 40 | request[0] & (1 << 40) - 1, request[1]))
    memory.segments.remove(7)
    batcher.send(request)
    loop.step()
    assert [done.status for done in batcher.done()] == [2, 2]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        request_header(5),
        request_header("", [], []),
        request_header(5, [["INPUT0", 11, [1, 4], 0, 16]], [], {}),
        request_header("", [["INPUT0", 11, [1, 4], 0, 16]], "OUTPUT0", {}),
        request_header("", [["INPUT0", 11, [1, 4], 0, 16]], [], []),
        request_header("", [["INPUT0", 11, [1, 4], 1 << 20, 16]], [], {}),
        request_header("", [["INPUT0", 11, [1, 5], 0, 16]], [], {}),
        request_header("", [["INPUT0", 11, [], 0, 4]], [], {}),
        request_header("", [["INPUT0", 8, [1, 4], 0, 16]], [], {}),
        request_header("", [["INPUT9", 11, [1, 4], 0, 16]], [], {}),
        request_header("", [[{}, 11, [1, 4], 0, 16]], [], {}),
        request_header("", [["INPUT0", 11, [1, 4], 0]], [], {}),
    ],
)
def test_a_damaged_header_fails_its_request_only(batcher: Batcher, header: bytes) -> None:
    loop = loop_of(batcher)
    batcher.send(batcher.raw_request(bytes(64), header), batcher.request([("INPUT0", "FP32", rows(2))]))
    loop.step()
    bad, good = batcher.done()
    assert bad.status == 2
    assert bad.sentence
    assert (good.status, good.outputs["OUTPUT0"].tolist()) == (0, [[2, 2, 2, 2]])


def test_inputs_of_one_request_with_different_rows(batcher: Batcher) -> None:
    loop = loop_of(batcher, PAIR)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1, 2)), ("INPUT1", "INT32", np.zeros((1, 2), np.int32))]))
    loop.step()
    assert batcher.done()[0].sentence == (
        "input 'INPUT1' of model 'm' has shape [1,2], expected a first dimension of 2"
    )


def test_shapes_that_cannot_be_joined_fail_their_request_only(batcher: Batcher) -> None:
    loop = loop_of(batcher, VARIABLE)
    shapes = [(1, 2), (1, 3), (2, 2)]
    batcher.send(
        *(batcher.request([("INPUT0", "FP32", np.ones(shape, np.float32))], request_id="x") for shape in shapes)
    )
    loop.step()
    first, bad, last = batcher.done()
    assert (bad.status, bad.sentence) == (
        2,
        "[request id: x] input 'INPUT0' of shape [1,3] cannot be batched with shape [1,2]",
    )
    assert first.outputs["OUTPUT0"].shape == (1, 2)
    assert last.outputs["OUTPUT0"].shape == (2, 2)


# -- headers that come again ------------------------------------------------------------------------------------------

PLAIN = ["", [["INPUT0", 11, [1, 4], 64, 16]], [], {}]


def block_of(value: float, nbytes: int = 128) -> memoryview:
    return memoryview(bytes(64) + rows(value).tobytes() + bytes(48)).toreadonly()[:nbytes]


def test_a_plain_header_is_read_once_and_each_request_has_its_own_tensors() -> None:
    reader = RequestReader(Signature.from_config(CONFIG))
    first, second = (
        reader.open(0, block_of(1), request_header(*PLAIN)),
        reader.open(1, block_of(2), request_header(*PLAIN)),
    )
    assert first.parsed is second.parsed
    assert (first.position, second.position) == (0, 1)
    assert [one.inputs["INPUT0"].tolist() for one in (first, second)] == [[[1] * 4], [[2] * 4]]
    assert not second.inputs["INPUT0"].flags.writeable
    assert second.inputs is second.inputs


def test_a_known_header_over_a_smaller_block_is_an_error_of_that_request() -> None:
    reader = RequestReader(Signature.from_config(CONFIG))
    reader.open(0, block_of(1, 80), request_header(*PLAIN))
    with pytest.raises(InternalError, match="cannot be read from 16 bytes at 64 of a block of 79 bytes"):
        reader.open(0, block_of(1, 79), request_header(*PLAIN))
    assert reader.open(0, block_of(3), request_header(*PLAIN)).inputs["INPUT0"].tolist() == [[3] * 4]


@pytest.mark.parametrize(
    "fields",
    [
        ["", [["INPUT0", 11, [1, 4], 63, 16]], [], {}],
        ["", PLAIN[1], ["x" * 1100], {}],
    ],
)
def test_headers_that_do_not_come_again_are_read_each_time(fields: list[Any]) -> None:
    reader = RequestReader(Signature.from_config(CONFIG))
    parsed = [reader.open(0, block_of(1), request_header(*fields)).parsed for _ in range(2)]
    assert parsed[0] == parsed[1]
    assert parsed[0] is not parsed[1]


@pytest.mark.parametrize("inputs", [PLAIN[1], [["INPUT0", 11, [1, 4], 64, 16, 9]]], ids=["plain", "lent"])
def test_requests_that_differ_in_their_options_share_what_is_known_of_their_tensors(inputs: list[Any]) -> None:
    reader = RequestReader(Signature.from_config(CONFIG), open_block=lambda _ref, _borrower: block_of(1))
    first, second, third, last = [
        reader.open(0, block_of(1), request_header(id_, inputs, [], *options))
        for id_, *options in (("a", {}), ("", {"key": 5}), ("b", {"key": 6}, ["s", 3]), ("", {}))
    ]
    assert first.parsed is second.parsed is third.parsed is last.parsed
    assert [one.id for one in (first, second, third, last)] == ["a", "", "b", ""]
    assert [one.parameters for one in (first, second, third, last)] == [{}, {"key": 5}, {"key": 6}, {}]
    assert [(one.correlation_id, one.flags) for one in (first, third, last)] == [(0, 0), ("s", 3), (0, 0)]


LENDS = ["", [["INPUT0", 11, [1, 4], 64, 16, 9]], [], {}]


def test_a_header_that_lends_is_read_once_and_its_block_is_looked_up_each_time() -> None:
    blocks: dict[tuple[int, int], memoryview] = {(9, 5): block_of(1), (9, 6): block_of(2)}
    reader = RequestReader(Signature.from_config(CONFIG), open_block=lambda ref, borrower: blocks.get((ref, borrower)))

    def ask(own_block: int) -> Request:
        record = [0] * 16
        record[B.BLOCK] = own_block
        return reader.open(0, memoryview(b""), request_header(*LENDS), record)

    first, second = ask(5), ask(6)
    assert first.parsed is second.parsed
    assert [one.inputs["INPUT0"].tolist() for one in (first, second)] == [[[1] * 4], [[2] * 4]]
    with pytest.raises(InternalError, match="'INPUT0' is gone"):
        ask(7)  # whose it is not
    blocks[9, 5] = block_of(3, 79)
    with pytest.raises(InternalError, match="cannot be read from 16 bytes at 64 of a block of 79 bytes"):
        ask(5)
    del blocks[9, 5]
    with pytest.raises(InternalError, match="'INPUT0' is gone"):
        ask(5)
    assert ask(6).parsed is first.parsed


def test_of_headers_that_lend_no_more_than_64_are_kept() -> None:
    reader = RequestReader(Signature.from_config(CONFIG), open_block=lambda _ref, _borrower: block_of(1))
    plain = reader.open(0, block_of(1), request_header(*PLAIN)).parsed
    headers = [request_header("", [["INPUT0", 11, [1, 4], 64, 16, ref]], [], {}) for ref in range(1, 66)]
    parsed = [reader.open(0, block_of(1), one).parsed for one in headers]
    assert reader.open(0, block_of(1), headers[64]).parsed is parsed[64]
    assert reader.open(0, block_of(1), headers[0]).parsed is not parsed[0]
    assert reader.open(0, block_of(1), request_header(*PLAIN)).parsed is plain


def test_strings_are_read_each_time(batcher: Batcher) -> None:
    loop = loop_of(batcher, STRINGS)
    for data in (strings(b"ab"), b"\xff" * 6, strings(b"cd")):  # one header; the second is damaged
        batcher.send(batcher.request([("INPUT0", "BYTES", ((1, 1), data))]))
    loop.step()
    first, bad, last = batcher.done()
    assert (first.status, bad.status, last.status) == (0, 2, 0)
    assert (first.outputs["OUTPUT0"], last.outputs["OUTPUT0"]) == (strings(b"ab"), strings(b"cd"))


def test_no_more_than_512_headers_are_kept() -> None:
    reader = RequestReader(Signature.from_config(CONFIG))
    headers = [request_header("", PLAIN[1], [f"OUTPUT{number}"], {}) for number in range(513)]
    parsed = [reader.open(0, block_of(1), one).parsed for one in headers]
    assert reader.open(0, block_of(1), headers[512]).parsed is parsed[512]
    assert reader.open(0, block_of(1), headers[0]).parsed is not parsed[0]


def test_a_requests_parameters_are_its_own() -> None:
    reader = RequestReader(Signature.from_config(CONFIG))
    reader.open(0, block_of(1), request_header(*PLAIN)).parameters["key"] = 5
    assert reader.open(0, block_of(1), request_header(*PLAIN)).parameters == {}


@pytest.mark.parametrize("outputs", [[["OUTPUT0"]], [{}], [5]])
def test_damaged_names_of_outputs_fail_at_most_their_request(batcher: Batcher, outputs: list[Any]) -> None:
    loop = loop_of(batcher)
    bad = batcher.raw_request(bytes(128), request_header("", PLAIN[1], outputs, {}))
    batcher.send(bad, batcher.request([("INPUT0", "FP32", rows(2))]))
    assert loop.step() == 1
    assert batcher.done()[1].outputs["OUTPUT0"].tolist() == [[2, 2, 2, 2]]


# -- gathering --------------------------------------------------------------------------------------------------------

ARRAYS = hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(4)), elements=st.integers(-9, 9))


def request_of(config: dict[str, Any], tensors: dict[str, tuple[int, Any, bytes]], start: int = 0) -> Request:
    """A request to `config`, from (wire, shape, bytes) by name; its tensors lie from `start` on, in any alignment."""
    body, refs = bytearray(start), []
    for name, (wire, shape, data) in tensors.items():
        refs.append([name, wire, list(shape), len(body), len(data)])
        body += data
    return RequestReader(Signature.from_config(config)).open(0, memoryview(body), request_header("", refs, [], {}))


@given(st.lists(st.tuples(ARRAYS, st.integers(0, 3)), min_size=1, max_size=6))
def test_gathered_rows_are_the_requests_rows_in_order(arrays: list[tuple[Any, int]]) -> None:
    requests, pairs = [], []
    for array, start in arrays:
        ints = array[:, :2].astype(np.int32)
        pairs.append((array, ints))
        tensors = {"INPUT0": (11, array.shape, array.tobytes()), "INPUT1": (8, ints.shape, ints.tobytes())}
        if start == 3:  # another order is parsed anew
            tensors = dict(reversed(tensors.items()))
        requests.append(request_of(PAIR, tensors, start))
    assert not any(why_not_joined(requests[0].parsed, request.parsed) for request in requests)
    gathered = gather(requests)
    assert np.array_equal(gathered["INPUT0"], np.concatenate([first for first, _ in pairs]))
    assert np.array_equal(gathered["INPUT1"], np.concatenate([second for _, second in pairs]))
    assert all(array.flags.aligned for array in gathered.values())
    memory: dict[str, bytearray] = {}

    def stage(name: str, nbytes: int) -> memoryview:
        return memoryview(memory.setdefault(name, bytearray(nbytes)))

    staged = gather(requests, stage)
    for name, array in gathered.items():
        assert np.array_equal(staged[name], array)
        assert memory[name] == array.tobytes()


def test_gathered_strings() -> None:
    requests = [
        request_of(STRINGS, {"INPUT0": (13, (len(elements), 1), strings(*elements))})
        for elements in ([b"a", b""], [b"\xff\x00"])
    ]
    assert gather(requests)["INPUT0"].tolist() == [[b"a"], [b""], [b"\xff\x00"]]


def test_a_single_request_is_not_copied() -> None:
    request = request_of(CONFIG, {"INPUT0": (11, (1, 4), bytes(16))})
    assert gather([request]) is request.inputs


def test_why_requests_cannot_be_joined() -> None:
    first = request_of(VARIABLE, {"INPUT0": (11, (2, 2), bytes(16))}).parsed
    assert why_not_joined(first, request_of(VARIABLE, {"INPUT0": (11, (5, 2), bytes(40))}).parsed) == ""
    assert why_not_joined(first, request_of(VARIABLE, {"INPUT0": (11, (2, 3), bytes(24))}).parsed) == (
        "input 'INPUT0' of shape [2,3] cannot be batched with shape [2,2]"
    )
    inputs = [{**each, "optional": True} for each in PAIR["input"]]
    other = request_of({**PAIR, "input": inputs}, {"INPUT1": (8, (1, 2), bytes(8))}).parsed
    assert why_not_joined(first, other) == "inputs INPUT1 cannot be batched with inputs INPUT0"
