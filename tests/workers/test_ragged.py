"""Ragged batches: what the model is given of requests of different shapes, and what each gets of the answer."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shoal.errors import InvalidArgumentError
from shoal.workers.backends.backend import Backend, Device
from shoal.workers.backends.onnxruntime import OnnxruntimeBackend
from shoal.workers.ragged import RaggedBatches
from tests.workers.ragged_models import save_summing
from tests.workers.worker_harness import Batcher, Returning, loop_of, model, model_config, tensor_config

CPU = Device("KIND_CPU", 0, (0,))
X = tensor_config("X", "TYPE_FP32", [-1], allow_ragged_batch=True)
#: Three requests, one of two rows.
SHAPES = ((1, 3), (2, 2), (1, 5))


def made(kind: str, target: str = "MADE", data_type: str = "TYPE_INT32") -> dict[str, Any]:
    return {"kind": kind, "target_name": [target], "data_type": data_type, "source_input": ["X"]}


def scattered(*targets: str) -> list[dict[str, Any]]:
    kind = "BATCH_SCATTER_WITH_INPUT_SHAPE"
    return [{"kind": kind, "target_name": [target], "source_input": ["X"]} for target in targets]


def ragged_config(**fields: Any) -> dict[str, Any]:
    outputs = [tensor_config("Y", "TYPE_FP32", [-1]), tensor_config("SUM", "TYPE_FP32", [1])]
    return model_config([X], outputs, backend="onnxruntime", **fields)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def send(batcher: Batcher) -> None:
    batcher.send(*[batcher.request([("X", "FP32", numbers(*shape))]) for shape in SHAPES])


@pytest.fixture
def seen() -> list[dict[str, Any]]:
    return []


def echoing(seen: list[dict[str, Any]], config: dict[str, Any], **outputs: Any) -> Backend:
    """Notes what it is given."""

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        seen.append({name: array.copy() for name, array in inputs.items()})
        return {"Y": inputs["X"], "SUM": np.zeros((4, 1), np.float32), **outputs}

    backend = Returning(run)
    backend.ragged = RaggedBatches(config)
    return backend


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [3, 4, 5]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 7, 12]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 7, 12]),
        ("BATCH_ITEM_SHAPE", [[3], [2], [2], [5]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 2, 2, 5]),
    ],
)
@pytest.mark.parametrize("data_type", ["TYPE_INT32", "TYPE_FP32"])
def test_what_is_made_of_a_batch(
    batcher: Batcher, seen: list[dict[str, Any]], kind: str, data_type: str, expected: list[Any]
) -> None:
    config = ragged_config(batch_input=[made(kind, data_type=data_type)], batch_output=scattered("Y"))
    send(batcher)
    loop_of(batcher, config, echoing(seen, config)).step()
    (inputs,) = seen
    assert inputs["X"].tolist() == [1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 4, 5]
    assert inputs["MADE"].tolist() == expected
    assert inputs["MADE"].dtype == {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32}[data_type]
    for done, shape in zip(batcher.done(), SHAPES, strict=True):
        assert np.array_equal(done.outputs["Y"], numbers(*shape))
        assert done.outputs["SUM"].shape == (shape[0], 1)


def test_the_largest_count_is_told_as_a_shape(batcher: Batcher, seen: list[dict[str, Any]]) -> None:
    config = ragged_config(batch_input=[made("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE")], batch_output=scattered("Y"))
    send(batcher)
    loop_of(batcher, config, echoing(seen, config)).step()
    assert seen[0]["MADE"].shape == (5,)


def test_a_request_alone_is_flat_too(batcher: Batcher, seen: list[dict[str, Any]]) -> None:
    config = ragged_config(batch_input=[made("BATCH_ELEMENT_COUNT")], batch_output=scattered("Y"))
    batcher.send(batcher.request([("X", "FP32", numbers(2, 3))]))
    loop_of(batcher, config, echoing(seen, config)).step()
    assert seen[0]["X"].shape == (6,)
    assert batcher.done()[0].outputs["Y"].shape == (2, 3)


@pytest.mark.parametrize("shape", [(3, 1), ()])
def test_who_gets_too_little_fails_and_the_others_do_not(
    batcher: Batcher, seen: list[dict[str, Any]], shape: tuple[int, ...]
) -> None:
    """An output without dimensions has no rows."""
    config = ragged_config(batch_output=scattered("Y"))
    send(batcher)
    loop_of(batcher, config, echoing(seen, config, SUM=np.zeros(shape, np.float32))).step()
    num_rows = shape[0] if shape else 0
    assert [done.sentence for done in batcher.done()] == [
        "" if end <= num_rows else "[request id: <id_unknown>] failed to split the output tensor 'SUM' in responses: "
        f"expected batch size of at least {end} in model output, got {num_rows}"
        for end in (1, 3, 4)
    ]  # fmt: skip


def test_a_scattered_output_may_be_too_short(batcher: Batcher, seen: list[dict[str, Any]]) -> None:
    config = ragged_config(batch_output=scattered("Y"))
    send(batcher)
    loop_of(batcher, config, echoing(seen, config, Y=np.zeros(8, np.float32))).step()
    assert [done.sentence for done in batcher.done()] == [
        "", "", "[request id: <id_unknown>] failed to split the output tensor 'Y' in responses: expected the elements "
        "of shape [1,5] in model output, got 1",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def summing(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_summing(tmp_path_factory.mktemp("summing") / "model.onnx"))


def test_an_onnx_model_sums_requests_of_different_lengths_at_once(batcher: Batcher, summing: str) -> None:
    zero = made("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "ENDS")
    config = ragged_config(batch_input=[zero], batch_output=scattered("Y"))
    backend = OnnxruntimeBackend()
    backend.load(model(config, summing), CPU)
    shapes = ((1, 3), (1, 1), (1, 5))
    batcher.send(*[batcher.request([("X", "FP32", numbers(*shape))]) for shape in shapes])
    loop_of(batcher, config, backend).step()
    told = batcher.done()
    assert [done.outputs["SUM"].tolist() for done in told] == [[[6.0]], [[1.0]], [[15.0]]]
    assert [done.outputs["Y"].shape for done in told] == list(shapes)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            ragged_config(),
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            ragged_config(batch_input=[made("BATCH_ELEMENT_COUNT", "ENDS", "TYPE_FP32")]),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'ENDS', model provides "
            "TYPE_INT32",
        ),
        (
            ragged_config(batch_input=[made("BATCH_ELEMENT_COUNT", "BEGINS")]),
            "unexpected inference input 'BEGINS', allowed inputs are: ENDS, X",
        ),
    ],
)
def test_the_file_must_fit(summing: str, config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        OnnxruntimeBackend().load(model(config, summing), CPU)
    assert str(caught.value) == sentence


def test_a_ragged_input_has_one_dimension_in_the_file(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in ("X", "Y")]
    graph = helper.make_graph([helper.make_node("Identity", ["X"], ["Y"])], "g", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    config = model_config([X], [tensor_config("Y", "TYPE_FP32", [-1])], backend="onnxruntime")
    with pytest.raises(InvalidArgumentError) as caught:
        OnnxruntimeBackend().load(model(config, str(path)), CPU)
    assert str(caught.value) == (
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'X', "
        "model provides [-1,-1]"
    )


def test_identity_gives_each_its_own(batcher: Batcher) -> None:
    ragged = tensor_config("INPUT0", "TYPE_FP32", [-1], allow_ragged_batch=True)
    config = model_config([ragged], [tensor_config("OUTPUT0", "TYPE_FP32", [-1])])
    batcher.send(*[batcher.request([("INPUT0", "FP32", numbers(*shape))]) for shape in SHAPES])
    loop_of(batcher, config).step()
    assert [done.outputs["OUTPUT0"].shape for done in batcher.done()] == list(SHAPES)


def test_what_is_plain_is_not_ragged() -> None:
    plain = model_config([tensor_config("X", "TYPE_FP32", [-1])], [tensor_config("Y", "TYPE_FP32", [-1])])
    assert not RaggedBatches(plain)
    assert RaggedBatches(ragged_config())
