"""Makes the sample models in model_repository/ (run it through scripts/make-models).

Makes the models simple, simple_int8, simple_string, simple_identity, simple_sequence, simple_dyna_sequence, mlp and
digits, and the held-out digits in tests/data/; all files are committed. Equal package versions on one kind of processor
write equal bytes. Opset 17 and IR version 8, so that every ONNX Runtime since 1.17 runs the models.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

ROOT = Path(__file__).parents[1]
REPOSITORY = ROOT / "model_repository"
HELD_OUT_DIGITS = ROOT / "tests" / "data" / "held_out_digits.npz"
DIGIT_NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
OPSET = 17
IR_VERSION = 8

Array = npt.NDArray[np.generic]

# One instance on the CPU: the sample repository starts quickly on any machine.
ONE_CPU_INSTANCE = """\
instance_group [
  {
    count: 1
    kind: KIND_CPU
  }
]
"""

# The configuration of models with Triton's own tensors, INPUT0 and INPUT1 -> OUTPUT0 (sum) and OUTPUT1 (difference).
SUM_AND_DIFFERENCE_CONFIG = """\
name: "{name}"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {{
    name: "INPUT0"
    data_type: {data_type}
    dims: [ 16 ]
  }},
  {{
    name: "INPUT1"
    data_type: {data_type}
    dims: [ 16 ]
  }}
]
output [
  {{
    name: "OUTPUT0"
    data_type: {data_type}
    dims: [ 16 ]
  }},
  {{
    name: "OUTPUT1"
    data_type: {data_type}
    dims: [ 16 ]
  }}
]
"""

SIMPLE_IDENTITY_CONFIG = """\
name: "simple_identity"
backend: "identity"
max_batch_size: 8
input [
  {
    name: "INPUT0"
    data_type: TYPE_STRING
    dims: [ -1 ]
  }
]
output [
  {
    name: "OUTPUT0"
    data_type: TYPE_STRING
    dims: [ -1 ]
  }
]
"""

# Triton's two models for clients of sequences: flags and correlation id come as control tensors.
SEQUENCE_CONFIG = """\
name: "{name}"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {{
    name: "INPUT"
    data_type: TYPE_INT32
    dims: [ 1 ]
  }}
]
output [
  {{
    name: "OUTPUT"
    data_type: TYPE_INT32
    dims: [ 1 ]
  }}
]
sequence_batching {{
  max_sequence_idle_microseconds: 10000000
{strategy}{controls}}}
"""
FLAG_CONTROL = """\
  control_input {{
    name: "{name}"
    control {{ kind: CONTROL_SEQUENCE_{name} int32_false_true: [ 0, 1 ] }}
  }}
"""
CORRELATION_ID_CONTROL = """\
  control_input {
    name: "CORRID"
    control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }
  }
"""
OLDEST = """\
  oldest { max_candidate_sequences: 1024 }
"""

MLP_CONFIG = """\
name: "mlp"
backend: "onnxruntime"
max_batch_size: 32
input [
  {
    name: "features"
    data_type: TYPE_FP32
    dims: [ 512 ]
  }
]
output [
  {
    name: "scores"
    data_type: TYPE_FP32
    dims: [ 10 ]
  }
]
# A request waits up to 5 ms for others to share its execution with. Leave the delay out to batch only what queues up by
# itself while the instance is busy.
dynamic_batching {
  max_queue_delay_microseconds: 5000
}
"""

DIGITS_CONFIG = """\
# Name, backend and input are read from the folder and the ONNX file. The outputs are listed for the sake of the labels.
# `label` has one number an image and no further dimension, which a configuration writes as [ 1 ] with a reshape.
max_batch_size: 64
output [
  {
    name: "label"
    data_type: TYPE_INT64
    dims: [ 1 ]
    reshape { shape: [ ] }
  },
  {
    name: "probabilities"
    data_type: TYPE_FP32
    dims: [ 10 ]
    label_filename: "labels.txt"
  }
]
dynamic_batching { }
"""

DIGITS_README = """\
# digits: which digit is this?

A handwritten digit, 8 by 8 pixels, is recognised as one of zero to nine. The model is a multi-layer perceptron with one
hidden layer of {hidden} units, trained on the {num_train} images of scikit-learn's copy of the UCI handwritten digits.

**Test accuracy: {accuracy:.4f}** ({num_right} of {num_test} images that the training did not see;
`tests/data/held_out_digits.npz` holds them).

| | name | datatype | shape | |
| --- | --- | --- | --- | --- |
| input | `image` | FP32 | [batch, 64] | the pixels row by row, 0 (white) to 16 (black) |
| output | `label` | INT64 | [batch, 1] | the digit |
| output | `probabilities` | FP32 | [batch, 10] | one per digit; `labels.txt` names them |

`request.json` holds the first of the test images, a {digit}, and asks for the three likeliest digits:

```sh
curl localhost:8000/v2/models/digits/infer -d @model_repository/digits/request.json
```

The answer's `data` lists them as probability, index and label: `{classes}`.

`scripts/make-models` trains the model, exports it with skl2onnx, measures it with ONNX Runtime and writes this page.
"""


def write(path: Path, content: str | bytes) -> None:
    """Writes a file and its parent directories, and prints its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def write_model(name: str, config: str, model: onnx.ModelProto | None) -> None:
    """Writes version 1 of a model with one CPU instance; its directory stays empty without an ONNX model."""
    write(REPOSITORY / name / "config.pbtxt", config + ONE_CPU_INSTANCE)
    if model is None:
        write(REPOSITORY / name / "1" / ".gitkeep", "")
    else:
        onnx.checker.check_model(model, full_check=True)
        write(REPOSITORY / name / "1" / "model.onnx", model.SerializeToString(deterministic=True))


def onnx_model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """An ONNX model of the opset OPSET."""
    initializers = [numpy_helper.from_array(array, tensor) for tensor, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    return helper.make_model(
        graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="shoal"
    )


def tensor(name: str, datatype: int, *dims: int) -> onnx.ValueInfoProto:
    """A tensor's description whose first dimension is the batch."""
    return helper.make_tensor_value_info(name, datatype, ["batch", *dims])


def simple() -> onnx.ModelProto:
    """The model `simple`: INT32[16] twice -> their sum and their difference."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    inputs = [tensor(name, TensorProto.INT32, 16) for name in ("INPUT0", "INPUT1")]
    outputs = [tensor(name, TensorProto.INT32, 16) for name in ("OUTPUT0", "OUTPUT1")]
    return onnx_model("simple", nodes, inputs, outputs)


def simple_sequence() -> onnx.ModelProto:
    """The model `simple_sequence`: INT32[1] -> the number, plus one at a sequence's start; 0 for an empty slot."""
    nodes = [
        helper.make_node("Add", ["INPUT", "START"], ["sum"]),
        helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"]),
    ]
    inputs = [tensor(name, TensorProto.INT32, 1) for name in ("INPUT", "START", "READY")]
    return onnx_model("simple_sequence", nodes, inputs, [tensor("OUTPUT", TensorProto.INT32, 1)])


def simple_dyna_sequence() -> onnx.ModelProto:
    """The model `simple_dyna_sequence`: the number, plus one at a start, plus the correlation id at an end."""
    nodes = [
        helper.make_node("Cast", ["CORRID"], ["id"], to=TensorProto.INT32),
        helper.make_node("Mul", ["id", "END"], ["id_at_end"]),
        helper.make_node("Add", ["INPUT", "START"], ["begun"]),
        helper.make_node("Add", ["begun", "id_at_end"], ["sum"]),
        helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"]),
    ]
    inputs = [tensor(name, TensorProto.INT32, 1) for name in ("INPUT", "START", "END", "READY")]
    inputs.append(tensor("CORRID", TensorProto.UINT64, 1))
    return onnx_model("simple_dyna_sequence", nodes, inputs, [tensor("OUTPUT", TensorProto.INT32, 1)])


def simple_cast(name: str, datatype: int) -> onnx.ModelProto:
    """The model `simple` for another datatype, computed as INT32; strings are decimal numbers."""
    nodes = [
        helper.make_node("Cast", ["INPUT0"], ["left"], to=TensorProto.INT32),
        helper.make_node("Cast", ["INPUT1"], ["right"], to=TensorProto.INT32),
        helper.make_node("Add", ["left", "right"], ["sum"]),
        helper.make_node("Sub", ["left", "right"], ["difference"]),
        helper.make_node("Cast", ["sum"], ["OUTPUT0"], to=datatype),
        helper.make_node("Cast", ["difference"], ["OUTPUT1"], to=datatype),
    ]
    inputs = [tensor(each, datatype, 16) for each in ("INPUT0", "INPUT1")]
    outputs = [tensor(each, datatype, 16) for each in ("OUTPUT0", "OUTPUT1")]
    return onnx_model(name, nodes, inputs, outputs)


def mlp() -> onnx.ModelProto:
    """The model `mlp`: 512 -> 1024 -> 10 with random weights of a fixed seed, as a load for the batcher."""
    random = np.random.Generator(np.random.PCG64(seed=0))

    def weight(rows: int, columns: int) -> Array:
        scale = np.float32(np.sqrt(2 / rows))
        return scale * random.standard_normal((rows, columns), np.float32)

    weights = {
        "hidden_weight": weight(512, 1024),
        "hidden_bias": np.zeros(1024, np.float32),
        "output_weight": weight(1024, 10),
        "output_bias": np.zeros(10, np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["features", "hidden_weight", "hidden_bias"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["activation"]),
        helper.make_node("Gemm", ["activation", "output_weight", "output_bias"], ["scores"]),
    ]
    inputs, outputs = [tensor("features", TensorProto.FLOAT, 512)], [tensor("scores", TensorProto.FLOAT, 10)]
    return onnx_model("mlp", nodes, inputs, outputs, weights)


def make_digits(hidden: int = 256) -> None:
    """Trains, exports, measures and describes the model `digits`."""
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images.astype(np.float32), labels, test_size=0.25, random_state=0, stratify=labels
    )
    classifier = make_pipeline(MaxAbsScaler(), MLPClassifier((hidden,), max_iter=400, random_state=0))
    classifier.fit(train_images, train_labels)
    model = to_onnx(
        classifier,
        name="digits",
        initial_types=[("image", FloatTensorType([None, 64]))],
        options={"zipmap": False},  # probabilities as one array, not as a list of maps
        target_opset={"": OPSET, "ai.onnx.ml": 3},
    )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    write_model("digits", DIGITS_CONFIG, model)

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    predicted, probabilities = session.run(["label", "probabilities"], {"image": test_images})
    num_right = int((predicted == test_labels).sum())
    likeliest = np.argsort(-probabilities[0])[:3]
    readme = DIGITS_README.format(
        hidden=hidden,
        num_train=len(train_labels),
        num_test=len(test_labels),
        num_right=num_right,
        accuracy=num_right / len(test_labels),
        digit=DIGIT_NAMES[test_labels[0]],
        classes=json.dumps([f"{probabilities[0][index]:.6f}:{index}:{DIGIT_NAMES[index]}" for index in likeliest]),
    )
    write(REPOSITORY / "digits" / "README.md", readme)
    write(REPOSITORY / "digits" / "labels.txt", "".join(f"{name}\n" for name in DIGIT_NAMES))
    write(REPOSITORY / "digits" / "request.json", digits_request(test_images[0]))
    HELD_OUT_DIGITS.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(HELD_OUT_DIGITS, images=test_images.astype(np.uint8), labels=test_labels.astype(np.uint8))
    print(f"digits: {num_right} of {len(test_labels)} right")


def digits_request(image: Array) -> str:
    """A request in JSON for one image and its three likeliest digits, with the pixels in rows."""
    rows = ",\n".join("    " + ", ".join(f"{int(pixel):2}" for pixel in row) for row in image.reshape(8, 8))
    return (
        '{\n  "inputs": [{"name": "image", "shape": [1, 64], "datatype": "FP32", "data": [\n'
        f"{rows}\n  ]}}],\n"
        '  "outputs": [{"name": "probabilities", "parameters": {"classification": 3}}]\n}\n'
    )


def make_sequences() -> None:
    """Writes the two models whose requests belong to sequences."""
    start, end, ready = (FLAG_CONTROL.format(name=name) for name in ("START", "END", "READY"))
    config = SEQUENCE_CONFIG.format(name="simple_sequence", strategy="", controls=start + ready)
    write_model("simple_sequence", config, simple_sequence())
    controls = start + end + ready + CORRELATION_ID_CONTROL
    config = SEQUENCE_CONFIG.format(name="simple_dyna_sequence", strategy=OLDEST, controls=controls)
    write_model("simple_dyna_sequence", config, simple_dyna_sequence())


def main() -> None:
    """Writes all sample models."""
    write_model("simple", SUM_AND_DIFFERENCE_CONFIG.format(name="simple", data_type="TYPE_INT32"), simple())
    for name, datatype in ("simple_int8", "INT8"), ("simple_string", "STRING"):
        config = SUM_AND_DIFFERENCE_CONFIG.format(name=name, data_type=f"TYPE_{datatype}")
        write_model(name, config, simple_cast(name, TensorProto.DataType.Value(datatype)))
    write_model("simple_identity", SIMPLE_IDENTITY_CONFIG, None)
    make_sequences()
    write_model("mlp", MLP_CONFIG, mlp())
    make_digits()


if __name__ == "__main__":
    main()
