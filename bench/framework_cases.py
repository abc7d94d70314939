"""The models that bench/frameworks.py measures: one of 5 ms or more per batch of each framework.

Frameworks are imported as the backends import them, since that has consequences which both sides must share: idle
threads sleep in the framework's own loop, too, and no telemetry is sent. Each gets a thread per core.
"""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.workers import backends

Array: TypeAlias = NDArray[np.float32]
NUM_CPUS = len(os.sched_getaffinity(0))  # available to this process
INPUT, OUTPUT = "input__0", "output__0"  # names that forests must have, and PyTorch may


@dataclass(frozen=True, slots=True)
class Case:
    """A framework, and a model with one FP32 input and one FP32 output, with these sizes per row."""

    config: str  # the lines of config.pbtxt that name the backend
    filename: str
    features: int
    outputs: int
    save: Callable[[Path], None]  # makes the model's file
    open: Callable[[Path], Callable[[Array], Array]]  # loads the file in the framework; the result runs a batch


def _imported(package: str, backend: str) -> Any:
    """Import a framework. Raises UnsupportedError where it is not installed."""
    return vars(sys.modules[type(backends.create(backend)).__module__])[package]


def _layers() -> list[Array]:
    """The weights of a perceptron: eight layers of 1024 and one of 10, each followed by ReLU."""
    random = np.random.default_rng(0)
    return [random.normal(0, 1 / 32, (1024, size)).astype(np.float32) for size in [1024] * 8 + [10]]


# -- PyTorch ----------------------------------------------------------------------------------------------------------


def _save_torchscript(file: Path) -> None:
    torch = _imported("torch", "pytorch")
    modules = []
    for weights in _layers():
        linear = torch.nn.Linear(*weights.shape)
        linear.weight = torch.nn.Parameter(torch.from_numpy(weights.T.copy()))
        modules += [linear, torch.nn.ReLU()]
    torch.jit.script(torch.nn.Sequential(*modules).eval()).save(file)


def _open_torchscript(file: Path) -> Callable[[Array], Array]:
    torch = _imported("torch", "pytorch")
    torch.set_num_threads(NUM_CPUS)
    script = torch.jit.load(file)

    def run(batch: Array) -> Array:
        with torch.inference_mode():
            answer: Array = script(torch.from_numpy(batch)).numpy()
            return answer

    return run


# -- ONNX: ONNX Runtime and OpenVINO ----------------------------------------------------------------------------------


def _save_onnx(file: Path) -> None:
    import onnx
    from onnx import helper

    layers, nodes = _layers(), []
    names = [INPUT, *(f"hidden{number}" for number in range(1, len(layers))), OUTPUT]
    for number in range(len(layers)):
        nodes.append(helper.make_node("MatMul", [names[number], f"weights{number}"], [f"sums{number}"]))
        nodes.append(helper.make_node("Relu", [f"sums{number}"], [names[number + 1]]))
    weights = [onnx.numpy_helper.from_array(layer, f"weights{number}") for number, layer in enumerate(layers)]
    inputs = [helper.make_tensor_value_info(INPUT, onnx.TensorProto.FLOAT, ["batch", 1024])]
    outputs = [helper.make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, ["batch", 10])]
    graph = helper.make_graph(nodes, "perceptron", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


def _open_onnxruntime(file: Path) -> Callable[[Array], Array]:
    onnxruntime = _imported("onnxruntime", "onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = NUM_CPUS
    # Set as in the backend: other processes need the cores on which idle threads would spin.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(batch: Array) -> Array:
        answer: Array = session.run([OUTPUT], {INPUT: batch})[0]
        return answer

    return run


def _open_openvino(file: Path) -> Callable[[Array], Array]:
    openvino = _imported("openvino", "openvino")
    properties = {"INFERENCE_NUM_THREADS": NUM_CPUS, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(file, "CPU", properties).create_infer_request()

    def run(batch: Array) -> Array:
        answer: Array = request.infer([batch], share_inputs=True)[0]
        return answer

    return run


# -- forests ----------------------------------------------------------------------------------------------------------


def _save_forest(file: Path) -> None:
    """Write a forest of a thousand trees of depth eight over 32 features: fifty random trees, each twenty times."""
    treelite = _imported("treelite", "fil")
    building = importlib.import_module("treelite.model_builder")
    num_trees, num_inner, random = 50, 255, np.random.default_rng(0)
    builder = building.ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=building.Metadata(32, "kRegressor", False, 1, [1], (1, 1)),
        tree_annotation=building.TreeAnnotation(num_trees, [0] * num_trees, [0] * num_trees),
        postprocessor=building.PostProcessorFunc("identity"),
        base_scores=[0.0],
    )
    for _ in range(num_trees):
        builder.start_tree()
        for node, value in enumerate(random.normal(size=2 * num_inner + 1).tolist()):
            builder.start_node(node)
            if node < num_inner:
                children = {"left_child_key": 2 * node + 1, "right_child_key": 2 * node + 2}
                builder.numerical_test(node % 32, value, default_left=False, opname="<", **children)
            else:
                builder.leaf(value / 1000)
            builder.end_node()
        builder.end_tree()
    treelite.Model.concatenate([builder.commit()] * 20).serialize(file)


def _open_forest(file: Path) -> Callable[[Array], Array]:
    treelite = _imported("treelite", "fil")
    forest = treelite.Model.deserialize(file)

    def run(batch: Array) -> Array:
        answer: Array = treelite.gtil.predict(forest, batch, nthread=NUM_CPUS).reshape(len(batch), 1)
        return answer

    return run


# -- TensorFlow -------------------------------------------------------------------------------------------------------


def _save_saved_model(file: Path) -> None:
    tf = _imported("tf", "tensorflow")
    layers = _layers()

    def scores(batch: Any) -> Any:
        for layer in layers:
            batch = tf.nn.relu(tf.matmul(batch, layer))
        return {OUTPUT: batch}

    signature = tf.function(scores).get_concrete_function(tf.TensorSpec([None, 1024], tf.float32, INPUT))
    tf.saved_model.save(tf.Module(), str(file), {"serving_default": signature})


def _open_saved_model(file: Path) -> Callable[[Array], Array]:
    tf = _imported("tf", "tensorflow")
    signature = tf.saved_model.load(str(file)).signatures["serving_default"]

    def run(batch: Array) -> Array:
        answer: Array = signature(tf.constant(batch))[OUTPUT].numpy()
        return answer

    return run


#: Cases by the name of their backend.
CASES = {
    "pytorch": Case('backend: "pytorch"', "model.pt", 1024, 10, _save_torchscript, _open_torchscript),
    "onnxruntime": Case('backend: "onnxruntime"', "model.onnx", 1024, 10, _save_onnx, _open_onnxruntime),
    "openvino": Case(
        'backend: "openvino" default_model_filename: "model.onnx"', "model.onnx", 1024, 10, _save_onnx, _open_openvino
    ),
    "fil": Case(
        """
            backend: "fil"
            parameters { key: "model_type" value { string_value: "treelite_checkpoint" } }
            parameters { key: "is_classifier" value { string_value: "false" } }
        """,
        "checkpoint.tl", 32, 1, _save_forest, _open_forest,
    ),
    "tensorflow": Case(
        'platform: "tensorflow_savedmodel"', "model.savedmodel", 1024, 10, _save_saved_model, _open_saved_model
    ),
}  # fmt: skip
