"""padding.py: what the model is given for requests of different lengths, and what each of them gets back."""

from typing import Any

import numpy as np
import pytest

from shoal.workers.backends.backend import BatchedBackend
from shoal.workers.padding import PaddedBatches, PaddingMetrics, ragged_batches
from shoal.workers.tensors import Array
from tests.workers.worker_harness import Batcher, Returning, loop_of, model_config, strings, tensor_config

RAGGED = {"allow_ragged_batch": False, "optional": False}
IDS = tensor_config("IDS", "TYPE_INT64", [-1], **RAGGED)
IMAGE = tensor_config("IMAGE", "TYPE_FP32", [2, -1], **RAGGED)
LABEL = tensor_config("LABEL", "TYPE_INT32", [1], **RAGGED)


def config(inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], **parameters: str) -> dict[str, Any]:
    return model_config(inputs, outputs, backend="onnxruntime", parameters={"ragged": "pad", **parameters})


class Seen(Returning):
    """A model that keeps what it was given, and returns what `result` makes of it."""

    def __init__(self, config: dict[str, Any], result: Any) -> None:
        super().__init__(result)
        self.given: list[dict[str, Array]] = []
        self.ragged = self.padded = PaddedBatches(config)

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        self.given.append(inputs)
        return super().run(inputs)


class Counts(PaddingMetrics):
    """What was counted."""

    def __init__(self) -> None:
        self.elements = self.padding = 0

    def added(self, elements: int, padding: int) -> None:
        self.elements, self.padding = self.elements + elements, self.padding + padding


def ask(batcher: Batcher, *rows: list[int]) -> None:
    """One batch of requests of one row each."""
    batcher.send(*[batcher.request([("IDS", "INT64", np.array([row], np.int64))]) for row in rows])


def test_rows_are_filled_up_to_the_longest_and_answers_cut_to_each_ones_own(batcher: Batcher) -> None:
    given = config(
        [IDS],
        [tensor_config("TWICE", "TYPE_INT64", [-1]), tensor_config("SUM", "TYPE_INT64", [1])],
        ragged_mask="MASK:TYPE_INT64",
    )
    backend = Seen(given, lambda x: {"TWICE": 2 * x["IDS"], "SUM": x["IDS"].sum(1, keepdims=True)})
    backend.padded.counts = counts = Counts()
    loop = loop_of(batcher, given, backend)
    ask(batcher, [1, 2, 3], [4], [5, 6])
    loop.step()
    (seen,) = backend.given
    assert seen["IDS"].tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert seen["MASK"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert seen["MASK"].dtype == np.int64
    done = batcher.done()
    assert [one.outputs["TWICE"].tolist() for one in done] == [[[2, 4, 6]], [[8]], [[10, 12]]]
    assert [one.outputs["SUM"].tolist() for one in done] == [[[6]], [[4]], [[11]]]
    assert (counts.elements, counts.padding) == (9, 3)


def test_buckets_give_the_model_few_shapes(batcher: Batcher) -> None:
    given = config([IDS], [tensor_config("Y", "TYPE_INT64", [-1])], ragged_buckets="4,8")
    backend = Seen(given, lambda x: {"Y": x["IDS"]})
    loop = loop_of(batcher, given, backend)
    for rows in ([[1]], [[1] * 4, [2]], [[1] * 5], [[1] * 9]):
        ask(batcher, *rows)
        loop.step()
        assert [one.outputs["Y"].tolist() for one in batcher.done()] == [[row] for row in rows]
    assert [seen["IDS"].shape for seen in backend.given] == [(1, 4), (2, 4), (1, 8), (1, 9)]


def test_any_axis_several_rows_and_tensors_without_a_length(batcher: Batcher) -> None:
    given = config([IDS, IMAGE, LABEL], [tensor_config("Y", "TYPE_FP32", [2, -1])])
    backend = Seen(given, lambda x: {"Y": x["IMAGE"] + x["LABEL"][:, :, None].astype(np.float32)})
    loop = loop_of(batcher, given, backend)
    requests = []
    for rows, length in ((2, 3), (1, 1)):
        image = np.arange(rows * 2 * length, dtype=np.float32).reshape(rows, 2, length)
        tensors = ("IDS", np.full((rows, length), 7)), ("IMAGE", image), ("LABEL", np.full((rows, 1), rows, np.int32))
        datatypes = {"IDS": "INT64", "IMAGE": "FP32", "LABEL": "INT32"}
        requests.append(batcher.request([(name, datatypes[name], array) for name, array in tensors]))
    batcher.send(*requests)
    loop.step()
    (seen,) = backend.given
    assert [seen[name].shape for name in ("IDS", "IMAGE", "LABEL")] == [(3, 3), (3, 2, 3), (3, 1)]
    first, second = batcher.done()
    assert first.sentence == ""
    assert first.outputs["Y"].tolist() == [[[2, 3, 4], [5, 6, 7]], [[8, 9, 10], [11, 12, 13]]]
    assert second.outputs["Y"].tolist() == [[[1], [2]]]


def test_an_output_that_does_not_follow_is_left_as_it_is(batcher: Batcher) -> None:
    given = config([IDS], [tensor_config("Y", "TYPE_INT64", [-1])], ragged_outputs="")
    loop = loop_of(batcher, given, Seen(given, lambda x: {"Y": x["IDS"]}))
    ask(batcher, [1, 2], [3])
    loop.step()
    assert [one.outputs["Y"].tolist() for one in batcher.done()] == [[[1, 2]], [[3, 0]]]


def test_an_output_of_another_length_is_left_as_it_is(batcher: Batcher) -> None:
    given = config([IDS], [tensor_config("Y", "TYPE_INT64", [-1])])
    loop = loop_of(batcher, given, Seen(given, lambda x: {"Y": np.zeros((len(x["IDS"]), 5), np.int64)}))
    ask(batcher, [1, 2], [3])
    loop.step()
    assert [one.outputs["Y"].shape for one in batcher.done()] == [(1, 5), (1, 5)]


def test_strings_are_filled_up_with_empty_ones(batcher: Batcher) -> None:
    given = config([tensor_config("IDS", "TYPE_STRING", [-1], **RAGGED)], [tensor_config("Y", "TYPE_STRING", [-1])])
    backend = Seen(given, lambda x: {"Y": x["IDS"]})
    loop = loop_of(batcher, given, backend)
    batcher.send(
        batcher.request([("IDS", "BYTES", ((1, 2), strings(b"a", b"b")))]),
        batcher.request([("IDS", "BYTES", ((1, 1), strings(b"c")))]),
    )
    loop.step()
    assert backend.given[0]["IDS"].tolist() == [[b"a", b"b"], [b"c", b""]]
    assert [one.outputs["Y"] for one in batcher.done()] == [strings(b"a", b"b"), strings(b"c")]


def test_a_request_whose_inputs_have_two_lengths_fails_alone(batcher: Batcher) -> None:
    given = config([IDS, IMAGE], [tensor_config("Y", "TYPE_INT64", [-1])])
    loop = loop_of(batcher, given, Seen(given, lambda x: {"Y": x["IDS"]}))
    batcher.send(
        *[
            batcher.request([("IDS", "INT64", np.ones((1, 2), np.int64)), ("IMAGE", "FP32", np.ones((1, 2, n), "f"))])
            for n in (2, 3)
        ]
    )
    loop.step()
    right, wrong = batcher.done()
    assert (right.status, right.outputs["Y"].tolist()) == (0, [[1, 1]])
    assert "inputs are padded together and must have one length, got {'IDS': 2, 'IMAGE': 3}" in wrong.sentence


def test_a_request_without_its_rows_fails_alone(batcher: Batcher) -> None:
    given = config([IDS], [tensor_config("Y", "TYPE_INT64", [-1])])
    loop = loop_of(batcher, given, Seen(given, lambda x: {"Y": x["IDS"][:1]}))
    ask(batcher, [1], [2, 3])
    loop.step()
    first, second = batcher.done()
    assert (first.outputs["Y"].tolist(), second.status != 0) == ([[1]], True)
    assert "expected batch size of at least 2 in model output, got 1" in second.sentence


def test_requests_of_no_elements(batcher: Batcher) -> None:
    given = config([IDS], [tensor_config("Y", "TYPE_INT64", [-1])])
    loop = loop_of(batcher, given, Seen(given, lambda x: {"Y": x["IDS"]}))
    ask(batcher, [], [])
    ask(batcher, [], [1])
    loop.step()
    assert [one.outputs["Y"].tolist() for one in batcher.done()] == [[[]], [[]], [[]], [[1]]]


@pytest.mark.parametrize(("strategy", "kind"), [("pad", "PaddedBatches"), ("bucket", "PaddedBatches"), (None, None)])
def test_which_models_batches_are_padded(strategy: str | None, kind: str | None) -> None:
    given = model_config([IDS], [], parameters={} if strategy is None else {"ragged": strategy})
    made = ragged_batches(given)
    assert (None if made is None else type(made).__name__) == kind
    assert issubclass(Seen, BatchedBackend)
