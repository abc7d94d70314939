"""The TensorRT backend against a fake GPU: what is copied when, which profile, which graph. Not run on a real one."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.workers import backends
from shoal.workers.backends.backend import BackendModel, BatchedBackend, Device
from shoal.workers.faults import Fault, fault_of
from shoal.workers.tensors import Array
from tests.workers.backends.tensorrt.fake_gpu import Runtime, Status, fake_gpu
from tests.workers.worker_harness import Batcher, loop_of, model, model_config, tensor_config

GPU = Device("KIND_GPU", 0, (0,))
INPUTS = [tensor_config("X", "TYPE_FP32", [3])]
OUTPUTS = [tensor_config("Y", "TYPE_FP32", [3]), tensor_config("SUM", "TYPE_FP32", [1], reshape={"shape": []})]


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with fake_gpu() as (runtime, _):
        yield runtime


@pytest.fixture
def there() -> Iterator[ModuleType]:
    with fake_gpu() as (_, tensorrt):
        yield tensorrt


def engine_model(tmp_path: Path, data: bytes = b"an engine", **fields: Any) -> BackendModel:
    path = tmp_path / "model.plan"
    path.write_bytes(data)
    config = {**model_config(INPUTS, OUTPUTS, max_batch_size=4), "instance_group": groups(), **fields}
    return model(config, file=str(path))


def groups(*profiles: str) -> list[dict[str, Any]]:
    return [{"name": "m_0", "kind": "KIND_GPU", "profile": list(profiles)}]


def loaded(tmp_path: Path, **fields: Any) -> BatchedBackend:
    backend = backends.create("tensorrt")
    assert isinstance(backend, BatchedBackend)
    most = 64 if fields.get("instance_group") else 4
    backend.load(engine_model(tmp_path, **{"max_batch_size": most, **fields}), GPU)
    return backend


def batch(rows: int, start: int = 1) -> dict[str, Array]:
    return {"X": np.arange(start, start + 3 * rows, dtype=np.float32).reshape(rows, 3)}


def check(backend: BatchedBackend, inputs: dict[str, Array]) -> None:
    outputs = backend.run(inputs)
    assert outputs["Y"].tolist() == (2 * inputs["X"]).tolist()
    assert outputs["SUM"].tolist() == inputs["X"].sum(axis=1).tolist()


def test_batches_of_all_sizes(runtime: Runtime, tmp_path: Path) -> None:
    backend = loaded(tmp_path, instance_group=groups("0", "1"))
    for rows in (1, 4, 64, 2, 5):
        check(backend, batch(rows, rows))
    backend.unload()


def test_a_batch_is_gathered_in_page_locked_memory_and_not_copied_again(
    runtime: Runtime, tmp_path: Path, batcher: Batcher
) -> None:
    backend = loaded(tmp_path)
    check(backend, batch(4))  # makes the memory
    loop = loop_of(batcher, model_config(INPUTS, OUTPUTS, max_batch_size=4), backend)
    for sizes in ((1, 2), (3,)):
        arrays = [batch(rows, 10 * rows)["X"] for rows in sizes]
        batcher.send(*(batcher.request([("X", "FP32", array)]) for array in arrays))
        runtime.calls.clear()
        loop.step()
        done = batcher.done()
        assert [one.outputs["Y"].tolist() for one in done] == [(2 * array).tolist() for array in arrays]
        assert runtime.calls == ["cudaMemcpyAsync"] * 3 + ["cudaStreamSynchronize"]


def test_no_profile_fits(runtime: Runtime, tmp_path: Path) -> None:
    backend = loaded(tmp_path)
    with pytest.raises(InvalidArgumentError) as caught:
        backend.run(batch(7))
    assert str(caught.value) == (
        "failed to find any Optimization Profile among [ 0[0]] to support the requested dimensions (or shape values): "
        "'X' [7, 3]"
    )


def test_graphs_of_the_batch_sizes_that_ask_for_them(runtime: Runtime, tmp_path: Path) -> None:
    cuda = {"cuda": {"graphs": True, "graph_spec": [{"batch_size": 2}]}}
    backend = loaded(tmp_path, instance_group=groups("0", "1"), optimization=cuda)
    check(backend, batch(4))
    check(backend, batch(2))
    runtime.calls.clear()
    check(backend, batch(2, 50))
    assert runtime.calls == ["cudaGraphLaunch", "cudaStreamSynchronize"]
    check(backend, batch(4, 70))
    check(backend, batch(64, 90))  # memory has moved: the graph would copy from where nothing is
    runtime.calls.clear()
    check(backend, batch(2, 30))
    assert "cudaGraphLaunch" not in runtime.calls
    check(backend, batch(2, 40))
    assert runtime.calls[-2:] == ["cudaGraphLaunch", "cudaStreamSynchronize"]


def test_an_output_that_the_configuration_leaves_out_stays_on_the_gpu(runtime: Runtime, tmp_path: Path) -> None:
    backend = loaded(tmp_path, output=OUTPUTS[:1])
    runtime.calls.clear()
    outputs = backend.run(batch(2))
    assert {name: array.tolist() for name, array in outputs.items()} == {"Y": (2 * batch(2)["X"]).tolist()}
    assert runtime.calls.count("cudaMemcpyAsync") == 2


def test_a_graph_does_not_outlive_memory_that_could_not_grow(runtime: Runtime, tmp_path: Path) -> None:
    backend = loaded(tmp_path, instance_group=groups("1"), optimization={"cuda": {"graphs": True, "graph_spec": []}})
    for _ in range(2):
        check(backend, batch(16))
        assert runtime.calls.count("cudaGraphLaunch") == 0  # it is new each time
        assert len(backend._graphs) == 1  # type: ignore[attr-defined]
        runtime.fails["cudaMalloc"] = Status.cudaErrorMemoryAllocation
        with pytest.raises(RuntimeError, match="out of memory"):
            backend.run(batch(32))
    check(backend, batch(16))
    check(backend, batch(16, 50))
    assert runtime.calls.count("cudaGraphLaunch") == 1


def test_page_locked_memory_that_could_not_grow_is_freed_once(runtime: Runtime, tmp_path: Path) -> None:
    backend = loaded(tmp_path)
    check(backend, batch(1))
    runtime.fails["cudaMallocHost"] = Status.cudaErrorMemoryAllocation
    with pytest.raises(RuntimeError, match="out of memory"):
        backend.run(batch(4))
    check(backend, batch(4))


@pytest.mark.parametrize(
    ("fails", "num_destroyed"),
    [
        ({"cudaMemcpyAsync": Status.cudaErrorStreamCaptureUnsupported}, 1),
        (
            {
                "cudaMemcpyAsync": Status.cudaErrorStreamCaptureUnsupported,
                "cudaStreamEndCapture": Status.cudaErrorStreamCaptureInvalidated,
            },
            0,
        ),
    ],
)
def test_what_cannot_be_captured_is_answered_and_not_tried_again(
    runtime: Runtime, tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: dict[str, Status], num_destroyed: int
) -> None:
    backend = loaded(tmp_path, instance_group=groups("1"), optimization={"cuda": {"graphs": True, "graph_spec": []}})
    runtime.fails_captured = fails
    check(backend, batch(16))
    check(backend, batch(16, 50))
    assert runtime.calls.count("cudaStreamBeginCapture") == runtime.calls.count("cudaStreamEndCapture") == 2
    assert runtime.calls.count("cudaGraphDestroy") == 1 + num_destroyed  # of the first run, on 5 rows
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning == (
        "there will be no CUDA graph of batches of {'X': (16, 3)}: CUDA error 900: operation not permitted when stream "
        "is capturing (cudaErrorStreamCaptureUnsupported in cudaMemcpyAsync)"
    )
    check(backend, batch(17))
    check(backend, batch(17, 70))
    assert runtime.calls[-2:] == ["cudaGraphLaunch", "cudaStreamSynchronize"]


def test_a_device_lost_while_a_graph_is_made_is_lost(runtime: Runtime, tmp_path: Path) -> None:
    backend = loaded(tmp_path, instance_group=groups("1"), optimization={"cuda": {"graphs": True, "graph_spec": []}})
    runtime.fails["cudaGraphInstantiate"] = Status.cudaErrorLaunchFailure
    with pytest.raises(RuntimeError) as caught:
        backend.run(batch(16))
    assert fault_of(caught.value) is Fault.DEVICE_LOST


def test_graphs_are_bounded(runtime: Runtime, tmp_path: Path) -> None:
    backend = loaded(tmp_path, instance_group=groups("1"), optimization={"cuda": {"graphs": True, "graph_spec": []}})
    check(backend, batch(64))
    for rows in [*range(5, 40), *range(5, 40)]:
        check(backend, batch(rows, rows))
    assert runtime.calls.count("cudaStreamEndCapture") == 17  # of them one that moving made useless


@pytest.mark.parametrize(
    ("call", "status", "fault"),
    [
        ("cudaStreamSynchronize", Status.cudaErrorLaunchFailure, Fault.DEVICE_LOST),
        ("cudaMalloc", Status.cudaErrorMemoryAllocation, Fault.OUT_OF_MEMORY),
    ],
)
def test_what_cuda_says_is_understood(
    runtime: Runtime, tmp_path: Path, call: str, status: Status, fault: Fault
) -> None:
    backend = loaded(tmp_path)
    runtime.fails[call] = status
    with pytest.raises(RuntimeError) as caught:
        backend.run(batch(4))
    assert str(caught.value).startswith(f"CUDA error {int(status)}: ")
    assert str(caught.value).endswith(f" ({status.name} in {call})")
    assert fault_of(caught.value) is fault


def keeping(tmp_path: Path, **fields: Any) -> BatchedBackend:
    """An engine with an output whose shape depends on the data."""
    backend = backends.create("tensorrt")
    assert isinstance(backend, BatchedBackend)
    outputs = [tensor_config("Y", "TYPE_FP32", [-1, 3]), tensor_config("KEPT", "TYPE_FP32", [-1])]
    fields = {"max_batch_size": 0, "input": [tensor_config("X", "TYPE_FP32", [-1, 3])], "output": outputs, **fields}
    backend.load(engine_model(tmp_path, b"an engine that keeps", **fields), GPU)
    return backend


def test_an_output_whose_shape_depends_on_the_data(runtime: Runtime, tmp_path: Path) -> None:
    cuda = {"cuda": {"graphs": True, "graph_spec": []}}
    backend = keeping(tmp_path, optimization=cuda)
    for values in ([[1, -2, 3]], [[1, 2, 3], [-4, 5, 6], [7, 8, 9]], [[-1, -2, -3]], [[1, -2, 3]]):
        array = np.array(values, np.float32)
        outputs = backend.run({"X": array})
        assert outputs["Y"].tolist() == (2 * array).tolist()
        assert outputs["KEPT"].tolist() == array[array > 0].tolist()
    assert "cudaStreamBeginCapture" not in runtime.calls  # its memory may move with each run
    backend.unload()


def test_an_output_whose_shape_depends_on_the_data_and_that_is_not_asked_for(runtime: Runtime, tmp_path: Path) -> None:
    backend = keeping(tmp_path, output=[tensor_config("Y", "TYPE_FP32", [-1, 3])])
    runtime.calls.clear()
    assert list(backend.run({"X": np.ones((2, 3), np.float32)})) == ["Y"]
    assert runtime.calls.count("cudaMemcpyAsync") == 2


def test_no_memory_for_an_output_whose_shape_depends_on_the_data(runtime: Runtime, tmp_path: Path) -> None:
    backend = keeping(tmp_path)
    backend.run({"X": np.ones((2, 3), np.float32)})
    # Of four rows X, Y and SUM have room already after the first of these.
    backend.run({"X": np.ones((3, 3), np.float32)})
    there = backend._there  # type: ignore[attr-defined]
    for name in ("X", "Y", "SUM"):
        there.reserve(name, 4 * 3 * 4)
    runtime.fails["cudaMalloc"] = Status.cudaErrorMemoryAllocation
    with pytest.raises(RuntimeError) as caught:
        backend.run({"X": np.ones((4, 3), np.float32)})
    assert fault_of(caught.value) is Fault.OUT_OF_MEMORY
    assert backend.run({"X": np.ones((4, 3), np.float32)})["KEPT"].tolist() == [1.0] * 12


def test_what_tensorrt_says_is_understood(there: ModuleType, tmp_path: Path) -> None:
    backend = loaded(tmp_path)
    there.engines[0].fails = True
    with pytest.raises(InternalError, match="TensorRT failed to execute: Error Code 1: Cuda Runtime") as caught:
        backend.run(batch(1))
    assert fault_of(caught.value) is Fault.DEVICE_LOST


@pytest.mark.parametrize(
    ("fields", "kind", "sentence"),
    [
        (
            {"data": b"a vectorised engine"},
            UnsupportedError,
            "unable to load model 'm': tensor 'Y' has the format CHW32 in the engine, and clients send and receive LIN",
        ),
        ({"data": b"no engine"}, InternalError, "unable to create TensorRT engine from .*: Serialization assertion"),
        (
            {"max_batch_size": 128},
            InvalidArgumentError,
            "unable to load model 'm': configuration specified max-batch 128 but TensorRT engine only supports "
            "max-batch 64",
        ),
        ({"instance_group": groups("2")}, InvalidArgumentError, "asks for optimization profile 2, the engine has 2"),
        (
            {"input": [tensor_config("X", "TYPE_FP16", [3])]},
            InvalidArgumentError,
            "expects datatype TYPE_FP16 for input 'X'",
        ),
        (
            {"input": [tensor_config("X", "TYPE_FP32", [4])]},
            InvalidArgumentError,
            "tensor 'X': the model expects 2 dimens",
        ),
        ({"output": [tensor_config("Z", "TYPE_FP32", [3])]}, InvalidArgumentError, "unexpected inference output 'Z'"),
    ],
)
def test_engines_that_cannot_be_loaded(
    runtime: Runtime, tmp_path: Path, fields: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    fields = {"instance_group": groups("1"), **fields}
    with pytest.raises(kind, match=sentence):
        backends.create("tensorrt").load(engine_model(tmp_path, **fields), GPU)


def test_a_missing_file_and_a_missing_plugin(runtime: Runtime, tmp_path: Path) -> None:
    wanted = engine_model(tmp_path)
    lacking = model(wanted.config, file=wanted.file, backend_config={"plugins": "/no/plugin.so;"})
    with pytest.raises(InvalidArgumentError, match="cannot load the TensorRT plugin library"):
        backends.create("tensorrt").load(lacking, GPU)
    Path(wanted.file).unlink()
    with pytest.raises(UnavailableError, match=r"unable to find '.*model.plan' for model instance 'm_0_0'"):
        backends.create("tensorrt").load(wanted, GPU)


def test_a_configuration_is_completed_from_the_engine(runtime: Runtime, tmp_path: Path) -> None:
    config = engine_model(tmp_path, input=[], output=[], max_batch_size=0, backend="tensorrt")
    model_io = backends.create("tensorrt").describe(config, GPU)
    assert model_io.completed is not None
    completed = model_io.completed
    assert (completed["max_batch_size"], "dynamic_batching" in completed) == (4, True)  # of profile 0
    assert [(tensor["name"], tensor["dims"]) for tensor in completed["input"]] == [("X", [3])]
    assert [tensor["name"] for tensor in completed["output"]] == ["Y", "SUM"]
    too_large = engine_model(tmp_path, input=[], output=[], max_batch_size=5, backend="tensorrt")
    with pytest.raises(InvalidArgumentError) as caught:
        backends.create("tensorrt").describe(too_large, GPU)
    assert str(caught.value) == (
        "autofill failed for model 'm': configuration specified max-batch 5 but TensorRT engine only supports "
        "max-batch 4"
    )


def test_without_the_package_its_command_is_named() -> None:
    with pytest.raises(UnsupportedError) as caught:
        backends.create("tensorrt")
    sentence = str(caught.value)
    assert sentence.startswith("backend 'tensorrt' cannot be imported: No module named '")
    assert sentence.endswith("'. Install it with: pip install 'shoal[tensorrt]'")


def test_instances_of_several_threads_share_the_engine_and_nothing_else(tmp_path: Path, runtime: Runtime) -> None:
    first = loaded(tmp_path)
    other = first.of_another_thread()
    other.load(engine_model(tmp_path), GPU)
    assert isinstance(other, BatchedBackend)
    one, two = vars(first), vars(other)
    assert one["_engine"] is two["_engine"]
    for name in ("_contexts", "_stream", "_here", "_there"):
        assert one[name] is not two[name]
    assert not set(map(id, one["_contexts"].values())) & set(map(id, two["_contexts"].values()))
    kept = first.run(batch(2))["Y"]
    expected = kept.copy()
    check(other, batch(2, 7))
    assert np.array_equal(kept, expected)  # the other's outputs lie elsewhere
    other.unload()
    check(first, batch(1))
