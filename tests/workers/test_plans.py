"""Where outputs and headers lie, and that a plan is made once."""

from typing import Any

import msgpack
import numpy as np
import pytest

from shoal.model_config.signature import Signature
from shoal.workers.plans import OutputLayout, OutputLayouts, make_plan
from tests.workers.worker_harness import CONFIG, PAIR, STRINGS, Batcher, Returning, loop_of, rows, tensor_config

ALL: tuple[str, ...] = ()


def headers(plan: OutputLayout) -> list[Any]:
    """What the spans of a plan point at."""
    spans = [((span >> 32) - plan.headers_offset, span & 0xFFFFFFFF) for span in plan.spans]
    return [msgpack.unpackb(plan.headers[offset : offset + nbytes]) for offset, nbytes in spans]


def test_requests_point_at_their_rows() -> None:
    columns = [("A", 11, (3, 4), 48), ("B", 8, (3,), 12)]
    plan = make_plan(0, [(1, ALL), (2, ("B",))], columns, {})
    assert (plan.offsets, plan.headers_offset, plan.end) == ((0, 64), 76, 76 + len(plan.headers))
    assert headers(plan) == [
        [[["A", 11, [1, 4], 0, 16], ["B", 8, [1], 64, 4]], {}],
        [[["B", 8, [2], 68, 8]], {}],
    ]


def test_one_request_has_the_whole_of_an_output_and_its_parameters() -> None:
    plan = make_plan(100, [(1, ALL)], [("A", 11, (), 4)], {"key": 5})
    assert plan.offsets == (128,)
    assert headers(plan) == [[[["A", 11, [], 128, 4]], {"key": 5}]]


def test_requests_without_rows() -> None:
    assert (
        headers(make_plan(0, [(0, ALL), (0, ALL)], [("A", 11, (0, 4), 0)], {})) == [[[["A", 11, [0, 4], 0, 0]], {}]] * 2
    )


def test_a_plan_is_made_once_for_what_determines_it() -> None:
    plans = OutputLayouts(Signature.from_config(CONFIG))
    columns = (("OUTPUT0", 11, (1, 4), 16),)
    plan = plans.plan(0, ((1, ALL),), columns)
    assert plans.plan(0, ((1, ALL),), columns) is plan
    assert plans.plan(0, ((1, ALL),), columns, {}) is plan
    others = [
        plans.plan(64, ((1, ALL),), columns),
        plans.plan(0, ((1, ("OUTPUT0",)),), columns),
        plans.plan(0, ((1, ALL),), (("OUTPUT0", 11, (1, 5), 20),)),
        plans.plan(0, ((1, ALL),), columns, {"key": 5}),
    ]
    assert not any(plan is other for other in others)
    assert plans.plan(0, ((1, ALL),), columns, {"key": 5}) is not others[-1]


@pytest.mark.parametrize("config", [STRINGS, {**PAIR, "output": [tensor_config("S", "TYPE_STRING", [1])]}])
def test_plans_of_strings_are_not_kept(config: dict[str, Any]) -> None:
    plans = OutputLayouts(Signature.from_config(config))
    columns = (("OUTPUT0", 13, (1, 1), 5),)
    assert plans.plan(0, ((1, ALL),), columns) is not plans.plan(0, ((1, ALL),), columns)


def test_no_more_than_256_plans_are_kept_and_no_long_ones() -> None:
    plans = OutputLayouts(Signature.from_config(CONFIG))
    keys = [((number, ALL),) for number in range(1, 258)]
    made = [plans.plan(0, key, (("OUTPUT0", 11, (key[0][0], 4), 16 * key[0][0]),)) for key in keys]
    assert plans.plan(0, keys[-1], (("OUTPUT0", 11, (257, 4), 16 * 257),)) is made[-1]
    assert plans.plan(0, keys[0], (("OUTPUT0", 11, (1, 4), 16),)) is not made[0]
    long = ((1, ALL),) * 600
    columns = (("OUTPUT0", 11, (600, 4), 9600),)
    assert plans.plan(0, long, columns) is not plans.plan(0, long, columns)


def test_batches_of_other_rows_and_shapes_follow_each_other(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    batches: list[list[tuple[int, ...]]] = [[(1,), (2, 3)], [(1, 2), (3,)], [(4,), (5, 6)], [(7,)], [(8,)]]
    for number, values in enumerate(batches):
        batcher.send(*(batcher.request([("INPUT0", "FP32", rows(*value))]) for value in values), batch=number)
    loop.step()
    answers = [one.outputs["OUTPUT0"][:, 0].tolist() for one in batcher.done()]
    assert answers == [list(value) for values in batches for value in values]


def test_strings_beside_numbers_are_split_request_by_request(batcher: Batcher) -> None:
    outputs = [tensor_config("OUTPUT0", "TYPE_FP32", [4]), tensor_config("S", "TYPE_STRING", [1])]
    texts = np.array([[b"a"], [b"bc"], [b""]], object)
    loop = loop_of(
        batcher, {**CONFIG, "output": outputs}, Returning(lambda inputs: {"OUTPUT0": inputs["INPUT0"], "S": texts})
    )
    batcher.send(
        batcher.request([("INPUT0", "FP32", rows(1))]),
        batcher.request([("INPUT0", "FP32", rows(2, 3))], outputs=["S"]),
    )
    loop.step()
    first, second = batcher.done()
    assert first.outputs["OUTPUT0"].tolist() == [[1, 1, 1, 1]]
    assert first.outputs["S"] == b"\x01\x00\x00\x00a"
    assert second.outputs == {"S": b"\x02\x00\x00\x00bc\x00\x00\x00\x00"}


def test_a_request_that_failed_to_open_leaves_the_others_their_places(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    for _ in range(2):
        good = [batcher.request([("INPUT0", "FP32", rows(value))]) for value in (1, 2)]
        batcher.send(good[0], batcher.raw_request(b"", b"\xc1"), good[1])
        loop.step()
        first, bad, last = batcher.done()
        assert (first.status, bad.status, last.status) == (0, 2, 0)
        assert bad.sentence.startswith("a request header in shared memory is damaged")
        assert (first.outputs["OUTPUT0"][0, 0], last.outputs["OUTPUT0"][0, 0]) == (1, 2)


def test_a_backend_that_answers_no_request_does_not_end_the_worker(batcher: Batcher) -> None:
    class Silent(Returning):
        def execute(self, requests: Any, answers: Any) -> None: ...

    loop = loop_of(batcher, backend=Silent(lambda inputs: inputs))
    batcher.send(*(batcher.request([("INPUT0", "FP32", rows(value))]) for value in (1, 2)))
    assert loop.step() == 1
