"""The OpenVINO backend on tiny models, against OpenVINO's own results."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import InternalError, ShoalError, UnavailableError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends.backend import Device
from shoal.workers.backends.openvino import OpenvinoBackend
from shoal.workers.loop import Loop
from tests.workers.openvino_models import op, ov, parameter, saved
from tests.workers.worker_harness import Batcher, model, model_config, tensor_config

CPU = Device("KIND_CPU", 0, (0,))
BATCHED = [tensor_config("X", "TYPE_FP32", [4])], [tensor_config("Y", "TYPE_FP32", [4])]


def relu(path: Path, shape: Any, type_: str = "f32", layout: str = "") -> str:
    x = parameter(shape, type_)
    return saved(path, op.relu(x), x, layout=layout)


def halves(path: Path) -> str:
    """A model whose batch cannot change: it makes [2, 4] of what must be [2, 2, 2]."""
    x = parameter([2, 2, 2])
    return saved(path, op.reshape(x, op.constant(np.array([2, 4])), False), x)


def loaded(file: str, config: dict[str, Any]) -> OpenvinoBackend:
    backend = OpenvinoBackend()
    backend.load(model(config, file), CPU)
    return backend


def refusal(file: str, config: dict[str, Any]) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        loaded(file, config)
    return caught.value


def config(*tensors: Any, **fields: Any) -> dict[str, Any]:
    return model_config(*(tensors or BATCHED), backend="openvino", **fields)


def test_it_computes_what_openvino_computes_for_a_batch_of_requests(tmp_path: Path, batcher: Batcher) -> None:
    x = parameter([-1, 4])
    weights = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    file = saved(tmp_path, op.matmul(x, op.constant(weights), False, False), x)
    served = config([tensor_config("X", "TYPE_FP32", [4])], [tensor_config("Y", "TYPE_FP32", [3])])
    loop = Loop(loaded(file, served), Signature.from_config(served), "m_0_0", batcher.memory())
    inputs = [np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32) for rows in (1, 3, 2)]
    batcher.send(*(batcher.request([("X", "FP32", array)]) for array in inputs))
    loop.step()
    alone = ov.Core().compile_model(file, "CPU")
    for done, array in zip(batcher.done(), inputs, strict=True):
        np.testing.assert_allclose(done.outputs["Y"], alone(array)[0], rtol=1e-5, atol=1e-6)


def test_importing_it_starts_no_thread_that_reports() -> None:
    assert "openvino_telemetry" not in sys.modules


def test_its_threads_stay_on_the_workers_cores(tmp_path: Path) -> None:
    before, cores = set(os.listdir("/proc/self/task")), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        loaded(relu(tmp_path, [-1, 4]), config())
        started = set(os.listdir("/proc/self/task")) - before
        assert all(os.sched_getaffinity(int(thread)) == {min(cores)} for thread in started)
    finally:
        os.sched_setaffinity(0, cores)


# -- what the file says ---


def described(file: str, **fields: Any) -> ModelIO:
    return OpenvinoBackend().describe(model(config([], [], **fields), file), CPU)


def test_a_layout_with_a_batch_fills_max_batch_size(tmp_path: Path) -> None:
    assert described(relu(tmp_path, [1, 4], layout="NC"), max_batch_size=0) == ModelIO(
        (IOTensor("X", "TYPE_FP32", (-1, 4)),), (IOTensor("Y", "TYPE_FP32", (-1, 4)),)
    )


def test_without_a_layout_it_stays_as_configured(tmp_path: Path) -> None:
    file = relu(tmp_path, [1, 4])
    fixed = described(file, max_batch_size=0)
    assert (fixed.inputs[0].dims, fixed.fills_max_batch_size) == ((1, 4), False)
    assert described(file, max_batch_size=8).inputs[0].dims == (-1, 4)
    (tmp_path / "dynamic").mkdir()
    assert described(relu(tmp_path / "dynamic", [-1, -1]), max_batch_size=0).outputs[0].dims == (-1, -1)


def test_a_tensor_of_several_names_bears_the_configured_one(tmp_path: Path) -> None:
    x = parameter([-1, 4])
    x.output(0).get_tensor().set_names({"A", "X", "Z"})
    file = saved(tmp_path, op.relu(x), x)
    assert loaded(file, config()).run({"X": np.full((1, 4), -1, np.float32)})["Y"].tolist() == [[0, 0, 0, 0]]
    assert described(file).inputs[0].name == "A"


def test_the_file_is_read_once_for_describe_and_load(tmp_path: Path) -> None:
    served, backend = model(config(), relu(tmp_path, [-1, 4])), OpenvinoBackend()
    backend.describe(served, CPU)
    for file in tmp_path.iterdir():
        file.unlink()
    backend.load(served, CPU)
    assert backend.run({"X": np.full((1, 4), -1, np.float32)})["Y"].tolist() == [[0, 0, 0, 0]]
    backend.unload()


# -- batches ---


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_fixed_batch_is_made_dynamic(tmp_path: Path, rows: int) -> None:
    array = np.arange(-4, 4 * rows - 4, dtype=np.float32).reshape(rows, 4)
    array.flags.writeable = False
    assert np.array_equal(loaded(relu(tmp_path, [1, 4]), config()).run({"X": array})["Y"], np.maximum(array, 0))


PAIRS = [tensor_config("X", "TYPE_FP32", [2, 2])], [tensor_config("Y", "TYPE_FP32", [4])]


def test_where_the_batch_must_stay_it_is_padded_if_that_is_allowed(tmp_path: Path) -> None:
    file, one = halves(tmp_path), np.arange(4, dtype=np.float32).reshape(1, 2, 2)
    padding = loaded(file, config(*PAIRS, max_batch_size=2, parameters={"ENABLE_BATCH_PADDING": "YES"}))
    assert padding.run({"X": one})["Y"].tolist() == [[0, 1, 2, 3]]
    assert padding.run({"X": np.concatenate([one, -one])})["Y"].tolist() == [[0, 1, 2, 3], [0, -1, -2, -3]]
    with pytest.raises(InternalError) as caught:
        loaded(file, config(*PAIRS, max_batch_size=2)).run({"X": one})
    assert str(caught.value) == (
        "expected requests with batch size '2', got '1'... this error can be avoided by setting "
        "'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
    )


def test_a_batch_that_the_model_cannot_have(tmp_path: Path) -> None:
    assert str(refusal(halves(tmp_path), config(*PAIRS))).startswith("openvino error in setting max batch size : ")


def test_the_batch_is_fixed_where_the_configuration_says_so(tmp_path: Path) -> None:
    parameters = {"SKIP_OV_DYNAMIC_BATCHSIZE": "YES", "ENABLE_BATCH_PADDING": "YES"}
    backend = loaded(relu(tmp_path, [-1, 4]), config(parameters=parameters))
    assert backend._request.get_input_tensor(0).shape == ov.Shape([8, 4])
    assert backend.run({"X": np.full((3, 4), 2, np.float32)})["Y"].tolist() == [[2, 2, 2, 2]] * 3


def test_the_configurations_dims_where_they_are_asked_for(tmp_path: Path) -> None:
    file, reshape = relu(tmp_path, [1, 3, 8, 8]), {"RESHAPE_IO_LAYERS": "YES"}
    ends = [tensor_config("X", "TYPE_FP32", [3, -1, 5])], [tensor_config("Y", "TYPE_FP32", [3, -1, 5])]
    array = np.ones((2, 3, 7, 5), np.float32)
    assert loaded(file, config(*ends, parameters=reshape)).run({"X": array})["Y"].shape == array.shape
    whole = [tensor_config("X", "TYPE_FP32", [-1, 5])], [tensor_config("Y", "TYPE_FP32", [-1, 5])]
    unbatched = loaded(relu(tmp_path, [2, 4]), config(*whole, max_batch_size=0, parameters=reshape))
    assert unbatched.run({"X": np.ones((6, 5), np.float32)})["Y"].shape == (6, 5)


# -- datatypes ---


@pytest.mark.parametrize(
    ("type_", "data_type", "dtype"),
    [
        ("boolean", "TYPE_BOOL", np.bool_),
        ("u8", "TYPE_UINT8", np.uint8),
        ("i64", "TYPE_INT64", np.int64),
        ("f16", "TYPE_FP16", np.float16),
        ("f64", "TYPE_FP64", np.float64),
        ("bf16", "TYPE_BF16", np.uint16),
    ],
)
def test_datatypes(tmp_path: Path, type_: str, data_type: str, dtype: Any) -> None:
    x = parameter([-1, 2], type_)
    file = saved(tmp_path, op.concat([x, x], 1), x)
    array = np.array([[0, 0x3F80]] if type_ == "bf16" else [[0, 1]], dtype)
    array.flags.writeable = False
    ends = [tensor_config("X", data_type, [2])], [tensor_config("Y", data_type, [4])]
    output = loaded(file, config(*ends)).run({"X": array})["Y"]
    assert (output.dtype, output.tolist()) == (dtype, [array[0].tolist() * 2])


def test_configured_datatypes_are_converted_as_in_triton(tmp_path: Path) -> None:
    ends = [tensor_config("X", "TYPE_INT32", [4])], [tensor_config("Y", "TYPE_FP16", [4])]
    output = loaded(relu(tmp_path, [-1, 4]), config(*ends)).run({"X": np.array([[-1, 2, 3, -4]], np.int32)})["Y"]
    assert (output.dtype.name, output.tolist()) == ("float16", [[0, 2, 3, 0]])


# -- errors ---


def test_a_missing_file_has_tritons_sentence(tmp_path: Path) -> None:
    error = refusal(str(tmp_path / "model.xml"), config())
    assert isinstance(error, UnavailableError)
    assert str(error) == f"unable to find '{tmp_path}/model.xml' for model instance 'm_0_0'"


def test_weights_that_are_missing(tmp_path: Path) -> None:
    x = parameter([-1, 4])
    file = saved(tmp_path, op.add(x, op.constant(np.ones(4, np.float32))), x)
    (tmp_path / "model.bin").unlink()
    assert str(refusal(file, config())).startswith("openvino error in ")


def test_a_library_that_is_none(tmp_path: Path) -> None:
    parameters = {"CPU_EXTENSION_PATH": str(tmp_path / "none.so")}
    error = refusal(relu(tmp_path, [-1, 4]), config(parameters=parameters))
    assert str(error).startswith("openvino error in loading custom CPU extensions : ")


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (
            ([tensor_config("X", "TYPE_FP32", [5])], BATCHED[1]),
            "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,5])",
        ),
        (
            ([*BATCHED[0], tensor_config("X2", "TYPE_FP32", [4])], BATCHED[1]),
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            (BATCHED[0], [tensor_config("Z", "TYPE_FP32", [4])]),
            "unexpected inference output 'Z', allowed outputs are: Y",
        ),
        (
            ([tensor_config("X", "TYPE_STRING", [4])], BATCHED[1]),
            "unsupported datatype TYPE_STRING for input 'X' for model 'm'",
        ),
        (
            ([tensor_config("X", "TYPE_FP32", [4], optional=True)], BATCHED[1]),
            "model 'm', input 'X': 'optional' is not supported, OpenVINO needs every input of a model",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_the_file(tmp_path: Path, tensors: Any, sentence: str) -> None:
    assert str(refusal(relu(tmp_path, [-1, 4]), config(*tensors))) == sentence


@pytest.mark.parametrize("shape", [[], None])
def test_tensors_of_which_nothing_is_told(tmp_path: Path, shape: Any) -> None:
    file = relu(tmp_path, ov.PartialShape.dynamic() if shape is None else shape)
    for max_batch_size in (0, 8):
        error = refusal(file, config(max_batch_size=max_batch_size))
        assert isinstance(error, UnsupportedError)
        assert str(error) == (
            "model 'm', tensor 'X': the model gives it no dimensions; if that means any, set the parameter "
            "'RESHAPE_IO_LAYERS' to 'YES', and the configuration's are taken"
        )
    if shape is None:
        backend = loaded(file, config(parameters={"RESHAPE_IO_LAYERS": "YES"}))
        assert backend.run({"X": np.ones((2, 4), np.float32)})["Y"].shape == (2, 4)


def test_a_run_that_fails_has_openvinos_words_and_the_next_one_works(tmp_path: Path) -> None:
    backend = loaded(relu(tmp_path, [-1, 4]), config())
    with pytest.raises(InternalError, match=r"^openvino error in running inference : (?s:.*)shape=\[\?,4\]"):
        backend.run({"X": np.zeros((1, 5), np.float32)})
    assert backend.run({"X": np.ones((1, 4), np.float32)})["Y"].tolist() == [[1, 1, 1, 1]]
