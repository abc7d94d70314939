"""Requests that cannot be read, or not joined, fail alone."""

import msgpack
import numpy as np
import pytest

from shoal.model_config.signature import Signature
from shoal.workers.backends.identity import IdentityBackend
from shoal.workers.loop import Loop
from tests.workers.surroundings import CONFIG, CPU, PAIR, VARIABLE, Batcher, loop_of, model, rows


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


def test_a_client_nobody_announced_and_one_that_is_gone(batcher: Batcher) -> None:
    memory = batcher.memory()
    backend = IdentityBackend()
    backend.load(model(CONFIG), CPU)
    loop = Loop(backend, Signature.from_config(CONFIG), "m_0_0", memory)
    request = batcher.request([("INPUT0", "FP32", rows(1))])
    batcher.send((99 << 40 | request[0] & (1 << 40) - 1, request[1]))
    memory.remove_segment(7)
    batcher.send(request)
    loop.step()
    assert [done.status for done in batcher.done()] == [2, 2]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        msgpack.packb(5),
        msgpack.packb(["", [], []]),
        msgpack.packb([5, [["INPUT0", 11, [1, 4], 0, 16]], [], {}]),
        msgpack.packb(["", [["INPUT0", 11, [1, 4], 0, 16]], "OUTPUT0", {}]),
        msgpack.packb(["", [["INPUT0", 11, [1, 4], 0, 16]], [], []]),
        msgpack.packb(["", [["INPUT0", 11, [1, 4], 1 << 20, 16]], [], {}]),
        msgpack.packb(["", [["INPUT0", 11, [1, 5], 0, 16]], [], {}]),
        msgpack.packb(["", [["INPUT0", 11, [], 0, 4]], [], {}]),
        msgpack.packb(["", [["INPUT0", 8, [1, 4], 0, 16]], [], {}]),
        msgpack.packb(["", [["INPUT9", 11, [1, 4], 0, 16]], [], {}]),
        msgpack.packb(["", [[{}, 11, [1, 4], 0, 16]], [], {}]),
        msgpack.packb(["", [["INPUT0", 11, [1, 4], 0]], [], {}]),
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
