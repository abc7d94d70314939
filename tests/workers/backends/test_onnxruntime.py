"""The ONNX Runtime backend on tiny models, against ONNX Runtime's own results."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends import onnxruntime as onnxruntime_backend
from shoal.workers.backends.backend import BackendModel, Device
from shoal.workers.backends.onnxruntime import OnnxruntimeBackend
from shoal.workers.backends.onnxruntime_options import CUDA, SessionSettings, session_settings
from shoal.workers.loop import Loop
from shoal.workers.warmup import warm_up
from tests.workers.backends.tensorrt.fake_gpu import fake_gpu
from tests.workers.worker_harness import Batcher, model, model_config, strings, tensor_config

CPU = Device("KIND_CPU", 0, (0,))


@pytest.fixture
def onnx_file(tmp_path: Path) -> Any:
    """(operator, inputs, outputs, initializers) → the path of a model of one node."""

    def make(operator: str, inputs: Any, outputs: Any, initializers: Any = (), **attributes: Any) -> str:
        values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (*inputs, *outputs)]
        names = [*(name for name, _, _ in inputs), *(array.name for array in initializers if array.name not in inputs)]
        node = helper.make_node(operator, list(dict.fromkeys(names)), [name for name, _, _ in outputs], **attributes)
        graph = helper.make_graph([node], "g", values[: len(inputs)], values[len(inputs) :], list(initializers))
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return str(path)

    return make


def loaded(file: str, config: dict[str, Any]) -> OnnxruntimeBackend:
    backend = OnnxruntimeBackend()
    backend.load(model(config, file), CPU)
    return backend


def one_to_one(data_type: str, dims: list[int], **fields: Any) -> dict[str, Any]:
    return model_config(
        [tensor_config("X", data_type, dims)], [tensor_config("Y", data_type, dims)], backend="onnxruntime", **fields
    )


def refusal(file: str, config: dict[str, Any]) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        loaded(file, config)
    return caught.value


def test_it_computes_what_onnx_runtime_computes(onnx_file: Any, batcher: Batcher) -> None:
    weights = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    file = onnx_file(
        "MatMul",
        [("X", TensorProto.FLOAT, ["N", 4])],
        [("Y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(weights, "W")],
    )
    config = model_config(
        [tensor_config("X", "TYPE_FP32", [4])], [tensor_config("Y", "TYPE_FP32", [3])], backend="onnxruntime"
    )
    loop = Loop(loaded(file, config), Signature.from_config(config), "m_0_0", batcher.memory())
    inputs = [np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32) for rows in (1, 3, 2)]
    batcher.send(*(batcher.request([("X", "FP32", array)]) for array in inputs))
    loop.step()
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for done, array in zip(batcher.done(), inputs, strict=True):
        assert np.array_equal(done.outputs["Y"], np.asarray(session.run(None, {"X": array})[0]))


def test_it_describes_the_file(onnx_file: Any) -> None:
    file = onnx_file("Identity", [("X", TensorProto.STRING, ["N", 2, None])], [("Y", TensorProto.STRING, None)])
    backend = OnnxruntimeBackend()
    model_io = backend.describe(model(one_to_one("TYPE_STRING", [2, -1]), file), CPU)
    assert model_io.inputs == (IOTensor("X", "TYPE_STRING", (-1, 2, -1)),)
    assert model_io.outputs[0][:2] == ("Y", "TYPE_STRING")


def test_the_session_is_opened_once_for_describe_and_load(onnx_file: Any) -> None:
    file = onnx_file("Relu", [("X", TensorProto.FLOAT, ["N", 4])], [("Y", TensorProto.FLOAT, ["N", 4])])
    served = model(one_to_one("TYPE_FP32", [4]), file)
    backend = OnnxruntimeBackend()
    assert isinstance(backend.describe(served, CPU), ModelIO)
    Path(file).unlink()
    backend.load(served, CPU)
    assert backend.run({"X": np.full((1, 4), -1, np.float32)})["Y"].tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("kind", "data_type", "dtype"),
    [
        (TensorProto.BOOL, "TYPE_BOOL", np.bool_),
        (TensorProto.UINT8, "TYPE_UINT8", np.uint8),
        (TensorProto.INT64, "TYPE_INT64", np.int64),
        (TensorProto.FLOAT16, "TYPE_FP16", np.float16),
        (TensorProto.DOUBLE, "TYPE_FP64", np.float64),
    ],
)
def test_datatypes(onnx_file: Any, kind: int, data_type: str, dtype: Any) -> None:
    file = onnx_file("Identity", [("X", kind, ["N", 2])], [("Y", kind, ["N", 2])])
    array = np.array([[0, 1]], dtype)
    array.flags.writeable = False
    output = loaded(file, one_to_one(data_type, [2])).run({"X": array})["Y"]
    assert output.dtype == dtype
    assert np.array_equal(output, array)


def test_bf16_travels_as_words(onnx_file: Any, batcher: Batcher) -> None:
    file = onnx_file("Identity", [("X", TensorProto.BFLOAT16, ["N", 2])], [("Y", TensorProto.BFLOAT16, ["N", 2])])
    config = one_to_one("TYPE_BF16", [2])
    loop = Loop(loaded(file, config), Signature.from_config(config), "m_0_0", batcher.memory())
    words = [np.array([[0x3F80, 0x4000]], np.uint16), np.array([[0x8000, 1]], np.uint16)]
    batcher.send(*(batcher.request([("X", "BF16", array)]) for array in words))
    loop.step()
    assert [done.outputs["Y"].tolist() for done in batcher.done()] == [[[0x3F80, 0x4000]], [[0x8000, 1]]]


def test_strings_end_at_their_first_nul(onnx_file: Any, batcher: Batcher) -> None:
    file = onnx_file("Identity", [("X", TensorProto.STRING, ["N", 2])], [("Y", TensorProto.STRING, ["N", 2])])
    config = one_to_one("TYPE_STRING", [2])
    loop = Loop(loaded(file, config), Signature.from_config(config), "m_0_0", batcher.memory())
    batcher.send(
        batcher.request([("X", "BYTES", ((1, 2), strings(b"a\x00b", "é".encode())))]),
        batcher.request([("X", "BYTES", ((1, 2), strings(b"", b"longer")))]),
    )
    loop.step()
    first, second = batcher.done()
    assert first.outputs["Y"] == b"\x01\x00\x00\x00a\x02\x00\x00\x00\xc3\xa9"
    assert second.outputs["Y"] == b"\x00\x00\x00\x00\x06\x00\x00\x00longer"


def test_strings_must_be_utf8(onnx_file: Any) -> None:
    file = onnx_file("Identity", [("X", TensorProto.STRING, ["N"])], [("Y", TensorProto.STRING, ["N"])])
    config = model_config(
        [tensor_config("X", "TYPE_STRING", [-1])], [tensor_config("Y", "TYPE_STRING", [-1])], max_batch_size=0
    )
    with pytest.raises(InvalidArgumentError, match="input 'X' of model 'm' has an element that is not UTF-8"):
        loaded(file, config).run({"X": np.array([b"ok", b"\xff"], object)})


def test_a_scalar_is_one_element_without_batching(onnx_file: Any) -> None:
    file = onnx_file("Neg", [("X", TensorProto.FLOAT, [])], [("Y", TensorProto.FLOAT, [])])
    output = loaded(file, one_to_one("TYPE_FP32", [1], max_batch_size=0)).run({"X": np.array([3], np.float32)})["Y"]
    assert (output.shape, output.tolist()) == ((1,), [-3])


def test_large_outputs_are_computed_in_the_block(onnx_file: Any, make_batcher: Callable[..., Batcher]) -> None:
    batcher = make_batcher(4 << 20, 4 << 20)  # a block of its slab may have a quarter of that
    file = onnx_file("Neg", [("X", TensorProto.FLOAT, ["N", 40000])], [("Y", TensorProto.FLOAT, ["N", 40000])])
    config = one_to_one("TYPE_FP32", [40000])
    backend = loaded(file, config)
    assert backend.known_outputs({}, 1) is None  # 160 kB: run and copy
    assert backend.known_outputs({}, 2) == {"Y": (2, 40000)}  # 320 kB: bound
    loop = Loop(backend, Signature.from_config(config), "m_0_0", batcher.memory())
    arrays = [np.arange(40000, dtype=np.float32)[None] + start for start in (0, 7)]
    batcher.send(*(batcher.request([("X", "FP32", array)]) for array in arrays))
    loop.step()
    done = batcher.done()
    assert [one.offsets["Y"] for one in done] == [0, 160000]
    assert all(np.array_equal(one.outputs["Y"], -array) for one, array in zip(done, arrays, strict=True))


def test_outputs_whose_dimensions_are_named_as_inputs_are_computed_in_the_block(
    onnx_file: Any, make_batcher: Callable[..., Batcher]
) -> None:
    batcher = make_batcher(4 << 20, 4 << 20)
    file = onnx_file("Neg", [("X", TensorProto.FLOAT, ["N", "S"])], [("Y", TensorProto.FLOAT, ["N", "S"])])
    config = one_to_one("TYPE_FP32", [-1])
    backend = loaded(file, config)
    loop = Loop(backend, Signature.from_config(config), "m_0_0", batcher.memory())
    for length in (40000, 35000, 4):
        arrays = [np.arange(length, dtype=np.float32)[None] + start for start in (0, 7)]
        assert (backend.known_outputs({"X": arrays[0]}, 2) == {"Y": (2, length)}) is (length > 4)
        batcher.send(*(batcher.request([("X", "FP32", array)]) for array in arrays))
        loop.step()
        done = batcher.done()
        assert all(np.array_equal(one.outputs["Y"], -array) for one, array in zip(done, arrays, strict=True))


def test_a_file_that_errs_about_its_dimensions_is_found_out_and_its_outputs_copied(
    onnx_file: Any, make_batcher: Callable[..., Batcher], caplog: pytest.LogCaptureFixture
) -> None:
    batcher = make_batcher(4 << 20, 4 << 20)
    caplog.set_level("INFO")
    twice = numpy_helper.from_array(np.array([1, 2], np.int64), "R")
    file = onnx_file("Tile", [("X", TensorProto.FLOAT, ["N", "S"])], [("Y", TensorProto.FLOAT, ["N", "S"])], [twice])
    config = one_to_one("TYPE_FP32", [-1])
    backend, memory = loaded(file, config), batcher.memory()
    loop = Loop(backend, Signature.from_config(config), "m_0_0", memory)
    array = np.arange(33000, dtype=np.float32)[None]
    for _ in range(2):
        batcher.send(batcher.request([("X", "FP32", array)]), batcher.request([("X", "FP32", array + 1)]))
        loop.step()
        for number, one in enumerate(batcher.done()):
            assert np.array_equal(one.outputs["Y"], np.tile(array + number, 2))
    assert caplog.text.count("of other shapes than the names of dimensions in its file promise") == 1
    assert backend.known_outputs({"X": array}, 2) is None


def test_a_failure_while_bound_gives_the_block_back(onnx_file: Any, make_batcher: Callable[..., Batcher]) -> None:
    batcher = make_batcher(4 << 20, 4 << 20)  # a block of its slab may have a quarter of that
    file = onnx_file("Reshape", [("X", TensorProto.FLOAT, ["N", 80000])], [("Y", TensorProto.FLOAT, ["N", 80000])],
                     [numpy_helper.from_array(np.array([-1, 7], np.int64), "S")])  # fmt: skip
    config = one_to_one("TYPE_FP32", [80000])
    memory = batcher.memory()
    loop = Loop(loaded(file, config), Signature.from_config(config), "m_0_0", memory)
    batcher.send(batcher.request([("X", "FP32", np.zeros((1, 80000), np.float32))]))
    loop.step()
    (done,) = batcher.done()
    assert done.status == 2
    assert done.sentence.startswith("onnx runtime error 1: ")
    assert memory.slab.num_taken == 1  # the sentence's


def test_a_failed_run_has_tritons_sentence(onnx_file: Any) -> None:
    file = onnx_file("Relu", [("X", TensorProto.FLOAT, ["N", 4])], [("Y", TensorProto.FLOAT, ["N", 4])])
    backend = loaded(file, one_to_one("TYPE_FP32", [4]))
    with pytest.raises(InternalError, match=r"^onnx runtime error 2: Got invalid dimensions for input: X"):
        backend.run({"X": np.zeros((1, 5), np.float32)})


def test_a_model_that_zeros_do_not_suit_loads(onnx_file: Any, caplog: pytest.LogCaptureFixture) -> None:
    file = onnx_file("Reshape", [("X", TensorProto.FLOAT, ["N", None])], [("Y", TensorProto.FLOAT, ["N", None])],
                     [numpy_helper.from_array(np.array([-1, 7], np.int64), "S")])  # fmt: skip
    caplog.set_level("INFO")
    config = one_to_one("TYPE_FP32", [-1])
    backend = loaded(file, {**config, "output": [tensor_config("Y", "TYPE_FP32", [7])]})
    assert "the first run, on zeros, failed: onnx runtime error 1" in caplog.text
    assert backend.run({"X": np.zeros((1, 7), np.float32)})["Y"].shape == (1, 7)


def test_a_model_with_samples_of_its_own_gets_no_zeros(onnx_file: Any, caplog: pytest.LogCaptureFixture) -> None:
    file = onnx_file("Reshape", [("X", TensorProto.FLOAT, ["N", None])], [("Y", TensorProto.FLOAT, ["N", None])],
                     [numpy_helper.from_array(np.array([-1, 7], np.int64), "S")])  # fmt: skip
    caplog.set_level("INFO")
    given = {"data_type": "TYPE_FP32", "dims": [7], "zero_data": True}
    samples = [{"name": "s", "batch_size": 8, "count": 1, "inputs": {"X": given}}]
    config = {
        **one_to_one("TYPE_FP32", [-1]), "output": [tensor_config("Y", "TYPE_FP32", [7])], "model_warmup": samples,
    }  # fmt: skip
    backend = loaded(file, config)
    warm_up(backend, model(config, file), Signature.from_config(config))
    assert caplog.text == ""
    given["dims"] = [5]
    with pytest.raises(InvalidArgumentError, match=r"^failed to run warmup sample 's': onnx runtime error 1: .*; $"):
        warm_up(backend, model(config, file), Signature.from_config(config))


def test_samples_warm_what_is_computed_in_place_too(onnx_file: Any) -> None:
    file = onnx_file("Neg", [("X", TensorProto.FLOAT, ["N", 40000])], [("Y", TensorProto.FLOAT, ["N", 40000])])
    given = {"data_type": "TYPE_FP32", "dims": [40000], "random_data": True}
    samples = [{"name": "s", "batch_size": 2, "count": 1, "inputs": {"X": given}}]
    config = one_to_one("TYPE_FP32", [40000], model_warmup=samples)
    backend = loaded(file, config)
    assert backend.known_outputs({}, 2) is not None
    warm_up(backend, model(config, file), Signature.from_config(config))


def test_an_initializer_may_be_left_out_or_given(onnx_file: Any) -> None:
    inputs = [("X", TensorProto.FLOAT, [2]), ("W", TensorProto.FLOAT, [2])]
    weights = numpy_helper.from_array(np.array([10, 20], np.float32), "W")
    file = onnx_file("Add", inputs, [("Y", TensorProto.FLOAT, [2])], [weights])
    config = model_config(
        [tensor_config("X", "TYPE_FP32", [2]), tensor_config("W", "TYPE_FP32", [2], optional=True)],
        [tensor_config("Y", "TYPE_FP32", [2])],
        max_batch_size=0,
    )
    backend = loaded(file, config)
    ones = np.ones(2, np.float32)
    assert backend.run({"X": ones})["Y"].tolist() == [11, 21]
    assert backend.run({"X": ones, "W": ones})["Y"].tolist() == [2, 2]


def test_a_model_directory_holds_the_file(onnx_file: Any, tmp_path: Path) -> None:
    file = Path(onnx_file("Relu", [("X", TensorProto.FLOAT, ["N", 4])], [("Y", TensorProto.FLOAT, ["N", 4])]))
    directory = tmp_path / "1" / "model.onnx"
    directory.mkdir(parents=True)
    file.rename(directory / "model.onnx")
    assert loaded(str(directory), one_to_one("TYPE_FP32", [4])).known_outputs({}, 1) is None


def test_a_missing_file_has_tritons_sentence(tmp_path: Path) -> None:
    error = refusal(str(tmp_path / "model.onnx"), one_to_one("TYPE_FP32", [4]))
    assert isinstance(error, UnavailableError)
    assert str(error) == f"unable to find '{tmp_path}/model.onnx' for model instance 'm_0_0'"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model")
    error = refusal(str(path), one_to_one("TYPE_FP32", [4]))
    assert isinstance(error, InternalError)
    assert str(error).startswith(f"onnx runtime error 7: Load model from {path} failed")


def test_a_configuration_that_does_not_fit_the_file(onnx_file: Any) -> None:
    file = onnx_file("Relu", [("X", TensorProto.FLOAT, ["N", 4])], [("Y", TensorProto.FLOAT, ["N", 4])])
    error = refusal(file, one_to_one("TYPE_INT32", [4]))
    assert str(error) == (
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'X', model provides TYPE_FP32"
    )
    texts = [tensor_config("X", "TYPE_STRING", [4])]
    assert isinstance(refusal(file, {**one_to_one("TYPE_BF16", [4]), "input": texts}), UnsupportedError)


def test_options_reach_the_session(onnx_file: Any) -> None:
    file = onnx_file("Relu", [("X", TensorProto.FLOAT, ["N", 4])], [("Y", TensorProto.FLOAT, ["N", 4])])
    parameters = {
        "intra_op_thread_count": "2", "inter_op_thread_count": "3", "execution_mode": "1", "enable_mem_arena": "0",
        "enable_mem_pattern": "0", "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": "1",
    }  # fmt: skip
    config = one_to_one("TYPE_FP32", [4], parameters=parameters, optimization={"graph": {"level": 2}})
    backend = loaded(file, config)
    options = backend._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
    backend.unload()


@pytest.mark.parametrize(
    ("operator", "element_type", "data_type", "dtype"),
    [("Neg", TensorProto.FLOAT, "FP32", np.float32), ("Identity", TensorProto.BFLOAT16, "BF16", np.uint16)],
)
def test_on_a_gpu_inputs_are_bound_from_page_locked_memory(
    onnx_file: Any,
    batcher: Batcher,
    monkeypatch: pytest.MonkeyPatch,
    operator: str,
    element_type: int,
    data_type: str,
    dtype: Any,
) -> None:
    """All that can be seen without one: CUDA's runtime is a fake, and the session is told to stay on the CPU."""

    def on_the_cpu(model: BackendModel, device: Device, available: Any) -> SessionSettings:
        return replace(session_settings(model, device, (*available, CUDA)), providers=(("CPUExecutionProvider", {}),))

    monkeypatch.setattr("shoal.workers.backends.onnxruntime.session_settings", on_the_cpu)
    node = (operator, [("X", element_type, ["N", 4])], [("Y", element_type, ["N", 4])])
    config = one_to_one(f"TYPE_{data_type}", [4])
    sign = -1 if operator == "Neg" else 1
    with fake_gpu() as (runtime, _):
        backend = OnnxruntimeBackend()
        backend.load(model(config, onnx_file(*node)), Device("KIND_GPU", 0, (0,)))
        loop = Loop(backend, Signature.from_config(config), "m_0_0", batcher.memory())
        for sizes in ((1, 3), (2,)):
            inputs = [np.full((rows, 4), rows, dtype) for rows in sizes]
            batcher.send(*(batcher.request([("X", data_type, array)]) for array in inputs))
            loop.step()
            assert [done.outputs["Y"].tolist() for done in batcher.done()] == [
                (sign * array.astype(int)).tolist() for array in inputs
            ]
        assert backend.stage is not None
        assert backend.known_outputs({}, 1) == {"Y": (1, 4)}  # where clients read them, however small
        assert runtime.calls == ["cudaMallocHost"]


def test_without_cuda_python_a_gpu_reads_from_where_clients_wrote(
    onnx_file: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "shoal.workers.cuda", None)
    monkeypatch.delattr("shoal.workers.cuda", raising=False)
    with caplog.at_level("INFO"):
        assert onnxruntime_backend._staging() is None
    assert "Install it with: pip install cuda-bindings" in caplog.text


def test_instances_of_several_threads_run_one_session(onnx_file: Any) -> None:
    file = onnx_file("Relu", [("X", TensorProto.FLOAT, ["N", 3])], [("Y", TensorProto.FLOAT, ["N", 3])])
    config = one_to_one("TYPE_FP32", [3])
    first = loaded(file, config)
    others = [first.of_another_thread() for _ in range(3)]

    def run(number: int) -> None:
        backend = others[number]
        backend.load(replace(model(config, file), instance_name=f"m_0_{number + 1}"), CPU)
        for step in range(200):
            x = np.full((1 + step % 3, 3), number + step, np.float32)
            assert np.array_equal(backend.run({"X": x})["Y"], x)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))
    assert all(each._session is first._session for each in others)
    others[0].unload()
    assert first.run({"X": np.ones((1, 3), np.float32)})["Y"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("cores", "process_cores", "threads"),
    [((0,), (), 1), ((0, 1), (), 2), ((0,), (0, 1), 1), ((0, 1), (0, 1, 2, 3), 3), ((0,), (0,), 1)],
)
def test_a_session_of_several_threads_has_their_cores(
    cores: tuple[int, ...], process_cores: tuple[int, ...], threads: int
) -> None:
    """Each instance computes with its own thread and with those of the session."""
    device = Device("KIND_CPU", 0, cores, process_cores=process_cores)
    settings = session_settings(model(one_to_one("TYPE_FP32", [3])), device, ["CPUExecutionProvider"])
    assert settings.intra_op_num_threads == threads
