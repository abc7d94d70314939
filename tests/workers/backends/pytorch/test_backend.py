"""The pytorch backend on tiny models: tensors in, tensors out, and what is said of those that do not fit."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnsupportedError
from shoal.model_config.autocomplete import ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends.backend import Device
from shoal.workers.backends.pytorch.backend import PytorchBackend
from shoal.workers.loop import Loop
from tests.workers.backends.pytorch.pytorch_models import (
    CPU,
    WARNINGS,
    Odd,
    Rest,
    Sum,
    Sums,
    Texts,
    X,
    config,
    loaded,
    scripted,
)
from tests.workers.worker_harness import Batcher, model, model_config, strings, tensor_config

pytestmark = WARNINGS


def test_strings(tmp_path: Path) -> None:
    texts = model_config(
        [tensor_config("texts", "TYPE_STRING", [-1]), tensor_config("x", "TYPE_FP32", [4])],
        [tensor_config("T", "TYPE_STRING", [-1]), tensor_config("N", "TYPE_FP32", [4])],
        max_batch_size=0,
    )
    backend = loaded(scripted(tmp_path, Texts()), texts)
    found = backend.run({"texts": np.array([b"a", "é".encode()], object), "x": X[0]})
    assert found["T"].tolist() == ["a!", "é!"]
    assert np.array_equal(found["N"], X[0] + 2)
    with pytest.raises(InternalError, match=r"^PyTorch execute failure: 'utf-8' codec can't decode"):
        backend.run({"texts": np.array([b"\xff"], object), "x": X[0]})


def test_a_list_of_no_strings_is_an_output(tmp_path: Path) -> None:
    tensors = [tensor_config("T", "TYPE_STRING", [-1])], [tensor_config("R", "TYPE_STRING", [-1])]
    backend = loaded(scripted(tmp_path, Rest()), model_config(*tensors, max_batch_size=0))
    for texts, left in (([b"a", b"b"], ["b"]), ([b"a"], [])):
        found = backend.run({"T": np.array(texts, object)})["R"]
        assert found.shape == (len(left),)
        assert found.tolist() == left


def test_strings_of_a_batch_are_split(tmp_path: Path, batcher: Batcher) -> None:
    scalar: dict[str, Any] = {"reshape": {"shape": []}}
    texts = model_config(
        [tensor_config("texts", "TYPE_STRING", [1], **scalar), tensor_config("x", "TYPE_FP32", [4])],
        [tensor_config("T", "TYPE_STRING", [1], **scalar), tensor_config("N", "TYPE_FP32", [4])],
    )
    backend = loaded(scripted(tmp_path, Texts()), texts)
    loop = Loop(backend, Signature.from_config(texts), "m_0_0", batcher.memory())
    batcher.send(
        batcher.request([("texts", "BYTES", ((1,), strings(b"a"))), ("x", "FP32", X[:1])]),
        batcher.request([("texts", "BYTES", ((2,), strings(b"b", b"c"))), ("x", "FP32", X)]),
    )
    loop.step()
    first, second = batcher.done()
    assert (first.outputs["T"], second.outputs["T"]) == (strings(b"a!"), strings(b"b!", b"c!"))
    assert np.array_equal(second.outputs["N"], X + 3)


@pytest.mark.parametrize(
    ("data_type", "dtype"),
    [
        ("TYPE_BOOL", np.bool_), ("TYPE_UINT8", np.uint8), ("TYPE_UINT16", np.uint16), ("TYPE_INT64", np.int64),
        ("TYPE_FP16", np.float16), ("TYPE_FP64", np.float64), ("TYPE_BF16", np.uint16),
    ],
)  # fmt: skip
def test_datatypes(tmp_path: Path, data_type: str, dtype: Any) -> None:
    array = np.array([[0, 1, 1, 0]], dtype)
    array.flags.writeable = False
    found = loaded(scripted(tmp_path, nn.Identity()), config(["X"], ["Y"], data_type)).run({"X": array})["Y"]
    assert found.dtype == dtype
    assert np.array_equal(found, array)


@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_inputs_may_be_written_to(tmp_path: Path, batcher: Batcher, max_batch_size: int) -> None:
    written = config(["X"], ["Y"], max_batch_size=max_batch_size)
    backend = loaded(scripted(tmp_path, Odd("written")), written)
    loop = Loop(backend, Signature.from_config(written), "m_0_0", batcher.memory())
    row = X[0] if max_batch_size == 0 else X[:1]
    requests = [batcher.request([("X", "FP32", row)]) for _ in range(2 if max_batch_size else 1)]
    batcher.send(*requests)
    loop.step()
    assert all(np.array_equal(done.outputs["Y"], row + 1) for done in batcher.done())


@pytest.mark.parametrize(
    ("kind", "outputs", "error", "sentence"),
    [
        ("scalar", ["Y"], InvalidArgumentError, "output 'Y' is a scalar which is not supported."),
        (
            "double",
            ["Y"],
            InvalidArgumentError,
            "configuration expects datatype TYPE_FP32 for output 'Y', model provides TYPE_FP64",
        ),
        (
            "grad",
            ["Y__1"],
            InvalidArgumentError,
            "The output Y__1 in the model configuration refers to an output index which doesn't exist. "
            "This model has 1 outputs",
        ),
    ],
)
def test_outputs_that_do_not_fit(
    tmp_path: Path, kind: str, outputs: list[str], error: type[ShoalError], sentence: str
) -> None:
    backend = loaded(scripted(tmp_path, Odd(kind)), config(["X"], outputs))
    with pytest.raises(error) as caught:
        backend.run({"X": X})
    assert str(caught.value) == sentence


def test_without_inference_mode_results_are_detached(tmp_path: Path) -> None:
    plain = config(["X"], ["Y"], parameters={"INFERENCE_MODE": "false", "DISABLE_OPTIMIZED_EXECUTION": "true"})
    assert np.array_equal(loaded(scripted(tmp_path, Odd("grad")), plain).run({"X": X})["Y"], X)
    loaded(scripted(tmp_path, Odd("grad")), config(["X"], ["Y"]))  # the switch is the process's: put it back


def test_a_failed_run_has_tritons_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    backend = loaded(scripted(tmp_path, Odd("seven")), config(["X"], ["Y"]))
    assert "the first run, on zeros, failed: PyTorch execute failure: " in caplog.text
    with pytest.raises(InternalError, match=r"(?s)^PyTorch execute failure: .*seven it must be"):
        backend.run({"X": X})


def test_channels_last(tmp_path: Path) -> None:
    convolution = nn.Conv2d(3, 4, 3).eval()
    images = model_config(
        [tensor_config("X", "TYPE_FP32", [3, 8, 8])],
        [tensor_config("Y", "TYPE_FP32", [4, 6, 6])],
        parameters={"CHANNELS_LAST": "true"},
    )
    array = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    found = loaded(scripted(tmp_path, convolution), images).run({"X": array})["Y"]
    assert found.strides[1] == 4  # a channel is beside the next one
    assert np.allclose(found, convolution(torch.from_numpy(array)).numpy(force=True), atol=1e-5)


def test_nothing_is_told_of_a_file(tmp_path: Path) -> None:
    assert PytorchBackend().describe(model(config(["X"], ["Y"]), str(tmp_path)), CPU) == ModelIO((), ())


def test_an_instance_for_a_gpu_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError, match=r"instance 'm_0_0' is of kind KIND_GPU, and this PyTorch \(.*\) sees"):
        loaded(scripted(tmp_path, Sum()), config(["X"], ["Y"]), Device("KIND_GPU", 0, (0,)))


def test_a_model_that_places_itself(tmp_path: Path) -> None:
    backend = loaded(scripted(tmp_path, nn.Identity()), config(["X"], ["Y"]), Device("KIND_MODEL", 0, (0,)))
    assert np.array_equal(backend.run({"X": X})["Y"], X)


def test_ragged_batches(tmp_path: Path, batcher: Batcher) -> None:
    source = {"source_input": ["INPUT__0"]}
    ragged = model_config(
        [tensor_config("INPUT__0", "TYPE_FP32", [-1], allow_ragged_batch=True)],
        [tensor_config("OUTPUT__0", "TYPE_FP32", [-1]), tensor_config("OUTPUT__1", "TYPE_FP32", [1])],
        batch_input=[{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["INPUT__1"], "data_type": "TYPE_INT32", **source}],
        batch_output=[{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["OUTPUT__0"], **source}],
    )
    backend = loaded(scripted(tmp_path, Sums()), ragged)
    arrays = [np.arange(length, dtype=np.float32)[None] for length in (3, 1, 4)]
    batcher.send(*[batcher.request([("INPUT__0", "FP32", array)]) for array in arrays])
    Loop(backend, Signature.from_config(ragged), "m_0_0", batcher.memory()).step()
    for done, array in zip(batcher.done(), arrays, strict=True):
        assert np.array_equal(done.outputs["OUTPUT__0"], array * 2)
        assert done.outputs["OUTPUT__1"].tolist() == [[array.sum()]]


def test_instances_of_several_threads_call_one_program(tmp_path: Path) -> None:
    file, tensors = scripted(tmp_path, Sum()), config(["left", "right"], ["sum", "difference"])
    first = loaded(file, tensors)
    others = [first.of_another_thread() for _ in range(2)]

    def run(number: int) -> None:
        others[number].load(model(tensors, str(file)), CPU)
        for step in range(50):
            found = others[number].run({"left": X + step, "right": X + number})
            assert np.array_equal(found["sum"], 2 * X + step + number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert all(each._program is first._program for each in others)
