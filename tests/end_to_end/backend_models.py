"""Models of ONNX, OpenVINO, PyTorch, TensorFlow and forests for one server, and what each framework itself answers."""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from shoal.workers.backends.fil_options import FILENAMES
from tests.end_to_end.server import SAMPLES
from tests.models.pytorch.digits import Digits
from tests.workers.openvino_models import op, ov, saved

#: It is too large for the environment of scripts/test: tests/workers/backends/test_tensorflow.py says how to run it.
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
DATA = Path(__file__).parents[1] / "data"
HELD_OUT = np.load(DATA / "held_out_digits.npz")
#: Digits that no model has been trained on.
IMAGES: NDArray[np.float32] = HELD_OUT["images"].astype(np.float32)
#: Nothing is executed until all rows of a batch are there.
PATIENT = "dynamic_batching { max_queue_delay_microseconds: 60000000 }"
Array = NDArray[Any]


def add(repository: Path, name: str, config: str) -> Path:
    """A model's version directory; without a configuration where that is empty."""
    directory = repository / name / "1"
    directory.mkdir(parents=True, exist_ok=True)
    if config:
        (repository / name / "config.pbtxt").write_text(config + " instance_group { count: 1 kind: KIND_CPU }")
    return directory


def ends(inputs: str, input_dims: object, outputs: str, output_dims: object, kind: str = "FP32") -> str:
    """One input and one output of a configuration."""
    return (
        f'input {{ name: "{inputs}" data_type: TYPE_{kind} dims: {input_dims} }} '
        f'output {{ name: "{outputs}" data_type: TYPE_{kind} dims: {output_dims} }} '
    )


# --- ONNX: an operator from a library, and tensors without a shape ---

#: An operator of no framework, `Double` of the domain shoal.test.
LIBRARY = DATA / "custom_ops" / "double.so"
#: Configured dims of a tensor that has no shape in its file.
SCALAR_DIMS = ([1], [1, 1], [1, 1, 1])


def save_onnx(repository: Path, name: str, operator: str, shape: Sequence[str | int] | None, config: str) -> Path:
    """A model X → Y of one operator, both tensors of `shape`; its version directory."""
    directory = add(repository, name, f'backend: "onnxruntime" {config}')
    kind = TensorProto.STRING if operator == "Identity" else TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(tensor, kind, shape) for tensor in "XY")
    node = helper.make_node(operator, ["X"], ["Y"], domain="shoal.test" if operator == "Double" else "")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("shoal.test", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8)
    onnx.save(model, directory / "model.onnx")
    return directory


def write_onnx(root: Path) -> None:
    """Scalars, and models whose operator is in a library that lies somewhere, or nowhere."""
    for dims in SCALAR_DIMS:
        save_onnx(root, f"onnx_scalar_{len(dims)}", "Neg", [], ends("X", dims, "Y", dims))
    save_onnx(root, "onnx_string_scalar", "Identity", [], ends("X", [1, 1], "Y", [1, 1], "STRING"))
    save_onnx(root, "onnx_rank_unknown", "Neg", None, ends("X", [1, 1], "Y", [1, 1]))
    save_onnx(root, "onnx_two_elements", "Neg", [], ends("X", [1, 2], "Y", [1, 2]))
    for name, file in {
        "in_version": "double.so",
        "in_model": "double.so",
        "absolute": str(LIBRARY),
        "missing": "nowhere.so",
        "no_library": "model.onnx",
    }.items():
        library = f'max_batch_size: 8 model_operations {{ op_library_filename: "{file}" }} '
        directory = save_onnx(root, f"onnx_{name}", "Double", ["N", 4], library + ends("X", [4], "Y", [4]))
        if name.startswith("in_"):
            shutil.copy(LIBRARY, directory if name == "in_version" else directory.parent)


# --- OpenVINO: IR, ONNX and a model of TensorFlow ---

MLP, ENCODER, SAVED_MODEL = SAMPLES / "mlp/1/model.onnx", SAMPLES / "encoder/1/model.onnx", DATA / "saved_model"
IDS = np.array([[2, 5, 7, 11, 3], [4, 9, 1, 0, 0]], np.int64)
ENCODED = {"input_ids": IDS, "attention_mask": (IDS > 0).astype(np.int64)}


def save_ir(directory: Path, *, scale: float = 1.0, layout: bool = False) -> None:
    """The sample MLP as IR, its scores multiplied by `scale`."""
    model = ov.Core().read_model(MLP)
    scores = op.multiply(model.get_results()[0].input_value(0), np.float32(scale))
    saved(directory, scores, *model.get_parameters(), layout="NC" if layout else "", name="scores")


def write_openvino(root: Path) -> None:
    """The samples' MLP and encoder, the digits, one without a configuration, and two that do not load."""
    save_ir(add(root, "openvino_mlp", f'backend: "openvino" max_batch_size: 4 {PATIENT}'))
    save_ir(add(root, "openvino_found_by_its_file", ""), layout=True)
    file = 'backend: "openvino" max_batch_size: {} default_model_filename: "{}"'
    shutil.copy(ENCODER, add(root, "openvino_encoder", file.format(8, "model.onnx")))
    directory = add(root, "openvino_digits", file.format(200, "model.saved_model"))
    shutil.copytree(SAVED_MODEL, directory / "model.saved_model")
    (add(root, "openvino_corrupt", 'backend: "openvino"') / "model.xml").write_text("<net")
    wrong = 'backend: "openvino" max_batch_size: 4 ' + ends("features", 511, "scores", 10)
    save_ir(add(root, "openvino_wrong", wrong))


def openvino(file: Path, inputs: Any) -> Array:
    """What OpenVINO itself answers."""
    found: Array = ov.Core().compile_model(file, "CPU")(inputs)[0]
    return found


def features(rows: int, seed: int = 0) -> NDArray[np.float32]:
    """Inputs of the MLP."""
    return np.random.default_rng(seed).normal(size=(rows, 512)).astype(np.float32)


# --- PyTorch: one trained model in every form that it saves ---

TORCH_FILES = Path(__file__).parents[1] / "models" / "pytorch"
#: Name → what is configured beside the tensors; their names.
FORMS = {
    "torch_script": (f'backend: "pytorch" {PATIENT}', "INPUT__0", "OUTPUT__0"),
    "torch_export": ('platform: "torch_aoti"', "ARGS[0]", "RESULT"),
    "torch_eager": ('backend: "pytorch" runtime: "model.py"', "images", "scores"),
    "torch_corrupt": ('platform: "pytorch_libtorch"', "INPUT__0", "OUTPUT__0"),
    "torch_narrow": ('platform: "pytorch_libtorch"', "INPUT__0", "OUTPUT__0"),
}


def digits(bias: float = 0.0) -> Digits:
    """The trained model; `bias` is added to its scores."""
    module = Digits().eval()
    module.load_state_dict(torch.load(TORCH_FILES / "digits_weights.pt", weights_only=True))
    with torch.no_grad():
        module.scores.bias.add_(bias)
    return module


def pytorch(images: Array, bias: float = 0.0) -> Array:
    """What PyTorch itself answers."""
    with torch.inference_mode():
        found: Array = digits(bias)(torch.from_numpy(images)).numpy()
    return found


def save_script(root: Path, bias: float = 0.0) -> None:
    """The model `torch_script`, new or instead of what it was."""
    script: Any = torch.jit.script(digits(bias))
    script.save(root / "torch_script" / "1" / "model.pt")


def write_pytorch(root: Path) -> None:
    """The model in each form, half a file of it, and one whose configuration promises too little."""
    for name, (fields, source, target) in FORMS.items():
        add(root, name, f"{fields} max_batch_size: 8 {ends(source, 60 if 'narrow' in name else 64, target, 10)}")
    save_script(root)
    script = root / "torch_script" / "1" / "model.pt"
    (root / "torch_corrupt" / "1" / "model.pt").write_bytes(script.read_bytes()[:1000])
    shutil.copy(script, root / "torch_narrow" / "1")
    shutil.copy(TORCH_FILES / "digits.pt2", root / "torch_export" / "1" / "model.pt2")
    shutil.copy(TORCH_FILES / "digits.py", root / "torch_eager" / "1" / "model.py")
    shutil.copy(TORCH_FILES / "digits_weights.pt", root / "torch_eager" / "1" / "model.pt")


# --- forests ---

FORESTS = np.load(DATA / "forests" / "answers.npz", allow_pickle=False)
#: model_type → features, columns of the output, parameters.
FOREST_TYPES = {
    "xgboost": (10, 1, {"is_classifier": "false"}),
    "xgboost_json": (30, 1, {"is_classifier": "true", "predict_proba": "true"}),
    "xgboost_ubj": (13, 3, {"is_classifier": "true", "predict_proba": "true"}),
    "lightgbm": (10, 1, {"output_class": "false"}),
    "treelite_checkpoint": (30, 2, {"output_class": "true", "predict_proba": "true"}),
}


def add_forest(root: Path, name: str, model_type: str, tensors: bool = True, width: int = 0) -> None:
    """A model of the forest of this type; with or without inputs and outputs, or with a wrong number of features."""
    num_features, columns, parameters = FOREST_TYPES[model_type]
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in {"model_type": model_type, **parameters}.items()
    ]
    if tensors:
        lines.append(ends("input__0", width or num_features, "output__0", columns))
    patient = PATIENT.replace("{ ", "{ preferred_batch_size: [ 40 ] ")
    directory = add(root, name, "\n".join(['backend: "fil" max_batch_size: 40', patient, *lines]))
    shutil.copy(DATA / "forests" / FILENAMES[model_type], directory)


def write_forests(root: Path) -> None:
    """Each type, one that will change, one without tensors, and one of another width than its forest."""
    for model_type in FOREST_TYPES:
        add_forest(root, f"forest_{model_type}", model_type)
    add_forest(root, "forest_changing", "xgboost")
    add_forest(root, "forest_described", "xgboost_ubj", tensors=False)
    add_forest(root, "forest_narrow", "xgboost_ubj", width=12)


# --- TensorFlow: a trained SavedModel, strings, a frozen graph ---


def save_function(directory: Path, function: Any, *spec: Any) -> None:
    """A SavedModel of one function of one tensor."""
    import tensorflow as tf

    concrete = tf.function(function).get_concrete_function(tf.TensorSpec(*spec))
    tf.saved_model.save(tf.Module(), str(directory / "model.savedmodel"), {"serving_default": concrete})


def save_scaled(root: Path, factor: float) -> None:
    """The model `tensorflow_scaled`, new or instead of what it was."""
    import tensorflow as tf

    shutil.rmtree(root / "tensorflow_scaled", ignore_errors=True)
    directory = add(root, "tensorflow_scaled", 'backend: "tensorflow"')
    save_function(directory, lambda x: {"Y": factor * x}, [None, 2], tf.float32, "X")


def write_tensorflow(root: Path) -> None:
    """The digits as they are, without a configuration and wrong in two ways; and models of one operator."""
    import tensorflow as tf

    saved_model = 'platform: "tensorflow_savedmodel" max_batch_size: 4 '
    for name, config in {
        "digits": saved_model + PATIENT,
        "found_by_its_file": "",
        "corrupt": saved_model,
        "wrong": saved_model + ends("pixels", 63, "scores", 10),
    }.items():
        shutil.copytree(SAVED_MODEL, add(root, f"tensorflow_{name}", config) / "model.savedmodel")
    (root / "tensorflow_corrupt" / "1" / "model.savedmodel" / "saved_model.pb").write_bytes(b"no model")
    upper = add(root, "tensorflow_upper", 'backend: "tensorflow"')
    save_function(upper, lambda text: {"UPPER": tf.strings.upper(text)}, [None, 1], tf.string, "TEXT")
    save_scaled(root, 2.0)
    with tf.Graph().as_default() as graph:
        tf.multiply(tf.compat.v1.placeholder(tf.float32, [None, 2], "X"), 3.0, name="Y")
    config = 'platform: "tensorflow_graphdef" max_batch_size: 8 ' + ends("X", 2, "Y", 2)
    (add(root, "tensorflow_frozen", config) / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())


def tensorflow(images: Array) -> Array:
    """What TensorFlow itself answers."""
    import tensorflow as tf

    scores = tf.saved_model.load(str(SAVED_MODEL)).signatures["serving_default"](pixels=tf.constant(images))["scores"]
    found: Array = scores.numpy()
    return found
