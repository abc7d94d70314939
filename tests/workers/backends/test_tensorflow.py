"""The TensorFlow backend on small models, against TensorFlow's own results.

It is skipped without TensorFlow, which is too large for the environment of scripts/test. To run it:
`pip install 'shoal[tensorflow,dev]'`, then `pytest -k tensorflow`.
"""

import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'shoal[tensorflow]', then pytest -k tensorflow")
import tensorflow as tf

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends.backend import Device
from shoal.workers.backends.tensorflow import TensorflowBackend, keeps_inputs
from shoal.workers.loop import Loop
from tests.workers.worker_harness import Batcher, model, model_config, strings, tensor_config

CPU = Device("KIND_CPU", 0, (0,))
DATA = Path(__file__).parents[2] / "data"
DIGITS = str(DATA / "saved_model")
SCORES = [tensor_config("pixels", "TYPE_FP32", [64])], [tensor_config("scores", "TYPE_FP32", [10])]


def config(inputs: Any = SCORES[0], outputs: Any = SCORES[1], **fields: Any) -> dict[str, Any]:
    return {"platform": "tensorflow_savedmodel", **model_config(inputs, outputs, backend="tensorflow", **fields)}


def loaded(file: str, served: dict[str, Any]) -> TensorflowBackend:
    backend = TensorflowBackend()
    backend.load(model(served, file), CPU)
    return backend


def refusal(file: str, served: dict[str, Any]) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        loaded(file, served)
    return caught.value


def held_out() -> tuple[Any, Any]:
    """Digits that the model has not been trained on."""
    digits = np.load(DATA / "held_out_digits.npz")
    return digits["images"][300:].astype(np.float32), digits["labels"][300:]


def save(path: Path, function: Any, *specs: Any) -> str:
    """A SavedModel of one function, which returns a dictionary."""
    module = tf.Module()
    concrete = tf.function(function).get_concrete_function(*specs)
    tf.saved_model.save(module, str(path / "model.savedmodel"), {"serving_default": concrete})
    return str(path / "model.savedmodel")


def identity(path: Path, dtype: str, dims: list[int | None]) -> str:
    return save(path, lambda x: {"Y": tf.identity(x)}, tf.TensorSpec(dims, getattr(tf, dtype), "X"))


def one_to_one(data_type: str, dims: list[int], **fields: Any) -> dict[str, Any]:
    return config([tensor_config("X", data_type, dims)], [tensor_config("Y", data_type, dims)], **fields)


def test_a_trained_model_answers_a_batch_of_requests_as_tensorflow_does(batcher: Batcher) -> None:
    images, labels = held_out()
    served = config(max_batch_size=200)
    loop = Loop(loaded(DIGITS, served), Signature.from_config(served), "m_0_0", batcher.memory())
    parts = [images[:1], images[1:140], images[140:]]
    batcher.send(*(batcher.request([("pixels", "FP32", part)]) for part in parts))
    loop.step()
    answers = np.concatenate([done.outputs["scores"] for done in batcher.done()])
    alone = tf.saved_model.load(DIGITS).signatures["serving_default"](pixels=tf.constant(images))["scores"]
    np.testing.assert_allclose(answers, alone.numpy(), rtol=1e-5, atol=1e-6)
    assert np.mean(answers.argmax(axis=1) == labels) > 0.85


def test_another_signature() -> None:
    images, _ = held_out()
    label = config(SCORES[0], [tensor_config("label", "TYPE_INT64", [1], reshape={"shape": []})])
    label["parameters"] = {"TF_SIGNATURE_DEF": {"string_value": "label"}}
    answers = loaded(DIGITS, label).run({"pixels": images})["label"]
    assert np.array_equal(answers, loaded(DIGITS, config()).run({"pixels": images})["scores"].argmax(axis=1))


def test_a_signature_that_is_not_there_is_replaced_and_told(caplog: pytest.LogCaptureFixture) -> None:
    assert str(refusal(DIGITS, config(parameters={"TF_SIGNATURE_DEF": "none"}))).startswith(
        "unexpected inference output 'scores', allowed outputs are: label"
    )
    assert "model 'm' has no signature 'none', its signature 'label' is served" in caplog.text


def test_it_describes_the_signature() -> None:
    backend = TensorflowBackend()
    assert backend.describe(model(config([], [], max_batch_size=0), DIGITS), CPU) == ModelIO(
        (IOTensor("pixels", "TYPE_FP32", (-1, 64)),), (IOTensor("scores", "TYPE_FP32", (-1, 10)),)
    )
    backend.load(model(config(), "gone"), CPU)  # what is open is not opened again
    backend.unload()


def test_a_rank_that_is_not_told_comes_from_the_configuration(tmp_path: Path) -> None:
    unknown: Any = None
    file = save(tmp_path, lambda x: {"Y": 2 * x}, tf.TensorSpec(unknown, tf.float32, "X"))
    doubled = loaded(file, one_to_one("TYPE_FP32", [2])).run({"X": np.ones((3, 2), np.float32)})["Y"]
    assert doubled.tolist() == [[2, 2]] * 3
    with pytest.raises(InvalidArgumentError) as caught:
        TensorflowBackend().describe(model(config([], []), file), CPU)
    assert str(caught.value) == ("unable to autofill for 'm': the rank of model tensor 'X' is 0 which is not supported")


@pytest.mark.parametrize(
    ("dtype", "data_type", "numpy_type"),
    [
        ("bool", "TYPE_BOOL", np.bool_),
        ("uint16", "TYPE_UINT16", np.uint16),
        ("int64", "TYPE_INT64", np.int64),
        ("float16", "TYPE_FP16", np.float16),
        ("float64", "TYPE_FP64", np.float64),
        ("bfloat16", "TYPE_BF16", np.uint16),
    ],
)
def test_datatypes(tmp_path: Path, dtype: str, data_type: str, numpy_type: Any) -> None:
    array = np.array([[0, 1]], numpy_type)
    array.flags.writeable = False
    output = loaded(identity(tmp_path, dtype, [None, 2]), one_to_one(data_type, [2])).run({"X": array})["Y"]
    assert (output.dtype, output.tolist()) == (numpy_type, array.tolist())


def test_strings_keep_every_byte(tmp_path: Path, batcher: Batcher) -> None:
    file = save(tmp_path, lambda x: {"Y": tf.strings.join([x, x])}, tf.TensorSpec([None, 1], tf.string, "X"))
    served = one_to_one("TYPE_STRING", [1])
    loop = Loop(loaded(file, served), Signature.from_config(served), "m_0_0", batcher.memory())
    given = [b"a\x00b", b"\xff"]
    batcher.send(*(batcher.request([("X", "BYTES", ((1, 1), strings(each)))]) for each in given))
    loop.step()
    assert [done.outputs["Y"] for done in batcher.done()] == [strings(2 * each) for each in given]


def test_a_model_keeps_copies_of_its_inputs(tmp_path: Path) -> None:
    """A client's block is another request's soon, and no memory that TensorFlow could write to."""
    module: Any = tf.Module()
    file, zeros = str(tmp_path / "model.savedmodel"), tf.zeros((1, 2), tf.float32)
    module.last = tf.Variable(zeros, shape=tf.TensorShape([None, 2]))

    def replace(x: Any) -> Any:
        last = tf.identity(module.last)
        with tf.control_dependencies([last]):
            module.last.assign(x)
        return {"Y": last}

    functions = {"serving_default": replace, "add": lambda x: {"Y": x + module.last}}
    spec = tf.TensorSpec([None, 2], tf.float32, "X")
    signatures = {name: tf.function(each).get_concrete_function(spec) for name, each in functions.items()}
    tf.saved_model.save(module, file, signatures)
    backend, block = loaded(file, one_to_one("TYPE_FP32", [2])), mmap.mmap(-1, 8)
    array = np.frombuffer(block, np.float32).reshape(1, 2)
    array[:] = 7
    backend.run({"X": array})
    array[:] = 1
    assert backend.run({"X": array})["Y"].tolist() == [[7, 7]]

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        read = tf.compat.v1.saved_model.load(session, ["serve"], file)
    keep = {name: keeps_inputs(read.graph_def, [read.signature_def[name].outputs["Y"].name]) for name in signatures}
    assert keep == {"serving_default": True, "add": False}  # of assignments both have those that restore the variable


def test_its_threads_stay_on_the_workers_cores(tmp_path: Path) -> None:
    before, cores = set(os.listdir("/proc/self/task")), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        loaded(identity(tmp_path, "float32", [None, 2]), one_to_one("TYPE_FP32", [2]))
        started = set(os.listdir("/proc/self/task")) - before
        assert all(os.sched_getaffinity(int(thread)) == {min(cores)} for thread in started)
    finally:
        os.sched_setaffinity(0, cores)


# -- frozen graphs ---


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """X → Y = X + a variable that an operation sets to 5."""
    with tf.Graph().as_default() as made:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], "X")
        tf.compat.v1.placeholder(tf.float32, [None, 2], "unused")
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="v")
        tf.raw_ops.AssignVariableOp(resource=handle, value=5.0, name="set")
        tf.add(x, tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), name="Y")
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "model.graphdef").write_bytes(made.as_graph_def().SerializeToString())
    return str(tmp_path / "1" / "model.graphdef")


def graph_config(**fields: Any) -> dict[str, Any]:
    return {**one_to_one("TYPE_FP32", [2], **fields), "platform": "tensorflow_graphdef"}


def test_a_graph_with_its_initialising_operations(graph: str) -> None:
    served = graph_config(parameters={"TF_INIT_OPS_FILE": "init.json"})
    assert str(refusal(graph, served)) == "unable to find 'init.json' for model instance 'm_0_0'"
    path = Path(graph).parents[1] / "init.json"
    path.write_text(json.dumps({"init_ops": "set"}))
    assert str(refusal(graph, served)) == "model 'm': 'init.json' must have a list 'init_ops' of names of operations"
    path.write_text(json.dumps({"init_ops": ["set"]}))
    assert loaded(graph, served).run({"X": np.ones((1, 2), np.float32)})["Y"].tolist() == [[6, 6]]
    assert TensorflowBackend().describe(model(served, graph), CPU) == ModelIO((), ())


def test_a_graph_that_is_none(graph: str) -> None:
    Path(graph).write_bytes(b"")
    assert str(refusal(graph, graph_config())) == "model m has an empty network"


# -- errors ---


def test_a_missing_model_has_tritons_sentence(tmp_path: Path) -> None:
    error = refusal(str(tmp_path / "model.savedmodel"), config())
    assert isinstance(error, UnavailableError)
    assert str(error) == f"unable to find '{tmp_path}/model.savedmodel' for model instance 'm_0_0'"


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"no model")
    error = refusal(str(tmp_path), config())
    assert isinstance(error, InternalError)
    assert str(error).startswith("unable to load model 'm': Cannot parse file b'")


def test_a_tag_that_is_not_there() -> None:
    error = refusal(DIGITS, config(parameters={"TF_GRAPH_TAG": "train"}))
    assert str(error).startswith(
        "unable to load model 'm': MetaGraphDef associated with tags 'train' could not be found"
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        (
            [tensor_config("pixels", "TYPE_FP32", [63])],
            SCORES[1],
            "model 'm', tensor 'pixels': the model expects 2 dimensions (shape [-1,64]) but the model configuration",
        ),
        (
            [tensor_config("pixels", "TYPE_INT32", [64])],
            SCORES[1],
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'pixels', "
            "model provides TYPE_FP32",
        ),
        (
            [tensor_config("pixels", "TYPE_FP32", [64], optional=True)],
            SCORES[1],
            "model 'm', input 'pixels': 'optional' is not supported, TensorFlow needs every input of a model",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_the_model(inputs: Any, outputs: Any, sentence: str) -> None:
    assert str(refusal(DIGITS, config(inputs, outputs))).startswith(sentence)


def test_a_run_that_fails_has_tensorflows_words_and_the_next_one_works(tmp_path: Path) -> None:
    file = save(
        tmp_path, lambda x: {"Y": tf.debugging.check_numerics(x, "no number")}, tf.TensorSpec([None], tf.float32, "X")
    )
    backend = loaded(file, one_to_one("TYPE_FP32", [-1], max_batch_size=0))
    with pytest.raises(InternalError, match="no number : Tensor had NaN values"):
        backend.run({"X": np.array([np.nan], np.float32)})
    assert backend.run({"X": np.ones(2, np.float32)})["Y"].tolist() == [1, 1]
