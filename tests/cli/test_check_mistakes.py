"""`shoal check` finds the mistakes that users of such servers report, before a server loads anything: a table of them,
many with the public thread that is about it (T: issues of triton-inference-server/server)."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.cli import main
from tests.end_to_end.server import SAMPLES

PYTHON = b"class TritonPythonModel:\n    def execute(self, requests): ...\n"
X_TO_Y = 'input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "Y" data_type: TYPE_FP32 dims: 3 }'
IDENTITY = f'backend: "identity" max_batch_size: 8 {X_TO_Y}'
A_MODEL_PY = f'backend: "python" {X_TO_Y}'
ONNX = (SAMPLES / "simple" / "1" / "model.onnx").read_bytes()  # INPUT0, INPUT1, OUTPUT0, OUTPUT1: INT32 [-1,16]


def simple(name: str = "INPUT0", data_type: str = "TYPE_INT32", dims: str = "16", max_batch: int = 8) -> str:
    """The configuration of the sample model `simple`, with a mistake in its first input."""
    others = ['input { name: "INPUT1" data_type: TYPE_INT32 dims: 16 }']
    others += [f'output {{ name: "OUTPUT{number}" data_type: TYPE_INT32 dims: 16 }}' for number in range(2)]
    first = f'input {{ name: "{name}" data_type: {data_type} dims: [ {dims} ] }}'
    return f'backend: "onnxruntime" max_batch_size: {max_batch} {first} {" ".join(others)}'


def parameter(key: str, value: str) -> str:
    return f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def warm_up(name: str = "X", dims: int = 3, data: str = "zero_data: true") -> str:
    given = f'inputs {{ key: "{name}" value {{ data_type: TYPE_FP32 dims: {dims} {data} }} }}'
    return f'{IDENTITY} model_warmup {{ name: "w" batch_size: 1 {given} }}'


class Mistake(NamedTuple):
    """A model with one mistake, and a part of what is said of it; `{}` stands for the model's directory."""

    config: str
    said: str
    files: dict[str, bytes] = {"1/.keep": b""}  # noqa: RUF012  of a NamedTuple: never changed
    thread: str = ""


AS_ONNX = {"1/model.onnx": ONNX}
AS_PYTHON = {"1/model.py": PYTHON}
MISTAKES: dict[str, Mistake] = {
    # Shapes and the implicit batch dimension.
    "batch dimension twice": Mistake(simple(dims="-1, 16"), "making complete shape [-1,-1,16]", AS_ONNX, "T#5319"),
    "no batch dimension": Mistake(simple(max_batch=0), "model configuration specifies 1 dimensions", AS_ONNX, "T#998"),
    "other dims": Mistake(simple(dims="8"), "the model expects 2 dimensions (shape [-1,16])", AS_ONNX, "T#5079"),
    "other datatype": Mistake(
        simple(data_type="TYPE_FP32"), "expects datatype TYPE_FP32 for input 'INPUT0', model provides TYPE_INT32",
        AS_ONNX, "T#6529",
    ),
    "other name": Mistake(simple("input"), "allowed inputs are: INPUT0, INPUT1", AS_ONNX, "T#326"),
    "input left out": Mistake(
        simple().replace('input { name: "INPUT1" data_type: TYPE_INT32 dims: 16 }', ""),
        "configuration expects 1 inputs, model provides 2", AS_ONNX, "T#294",
    ),
    "batch alone": Mistake(
        'backend: "identity" max_batch_size: 8 input { name: "X" data_type: TYPE_FP32 }', "must specify 'dims'",
        thread="T#7981",
    ),
    "no such datatype": Mistake(IDENTITY.replace("TYPE_FP32", "FLOAT32", 1), "failed to read text proto"),
    "reshape": Mistake(
        IDENTITY.replace("dims: 3", "dims: 3 reshape { shape: [ 4 ] }", 1), "has different size for dims and reshape",
        thread="T#5319",
    ),
    # Batching.
    "preferred beyond the largest": Mistake(
        f"{IDENTITY} dynamic_batching {{ preferred_batch_size: 16 }}", "preferred size must be <= max batch size",
        thread="T#3116",
    ),
    "two schedulers": Mistake(f"{IDENTITY} dynamic_batching {{ }} sequence_batching {{ }}", "another member of oneof"),
    "priorities": Mistake(
        f"{IDENTITY} dynamic_batching {{ priority_levels: 2 default_priority_level: 5 }}", "must be in range [1, 2]"
    ),
    "sequence controls": Mistake(
        IDENTITY + ' sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START } } }',
        "must specify either 'int32_false_true'", thread="T#4178",
    ),
    "cache of a stream": Mistake(
        f"{A_MODEL_PY} model_transaction_policy {{ decoupled: true }} response_cache {{ enable: true }}",
        "Response Cache does not currently support", AS_PYTHON, "T#4362",
    ),
    # Files and versions.
    "weights left behind": Mistake("", "its weights in a file of its own, 'weights.bin', which is not there"),
    "cut short": Mistake(simple(), "is no ONNX model, or was cut short", {"1/model.onnx": ONNX[:200]}),
    "other file name": Mistake(
        f'default_model_filename: "net.onnx" {simple()}', "unable to find '{}/1/net.onnx'", AS_ONNX
    ),
    "version of a policy": Mistake(
        f"{IDENTITY} version_policy {{ specific {{ versions: 7 }} }}", "at least one version must be available"
    ),
    "name of the directory": Mistake(f'name: "other" {IDENTITY}', "directory name must equal model name"),
    # Python models and their environments.
    "packed environment": Mistake(
        A_MODEL_PY + parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env.tar.gz"),
        "EXECUTION_ENV_PATH '{}/env.tar.gz' does not exist", AS_PYTHON, "T#8290",
    ),
    "interpreter": Mistake(
        A_MODEL_PY + parameter("PYTHON_INTERPRETER", "/no/python"), "PYTHON_INTERPRETER '/no/python' is no program",
        AS_PYTHON, "T#5133",
    ),
    "model.py without execute": Mistake(
        A_MODEL_PY, "has no method 'execute'", {"1/model.py": b"class TritonPythonModel:\n    pass\n"}, "T#7121"
    ),
    # Settings of a framework, and warm-up.
    "threads": Mistake(
        simple() + parameter("intra_op_thread_count", "many"), "must be a number of threads", AS_ONNX, "T#2958"
    ),
    "threads of PyTorch": Mistake(
        'platform: "pytorch_libtorch" max_batch_size: 8 '
        + X_TO_Y.replace('"X"', '"X__0"').replace('"Y"', '"Y__0"') + parameter("INTRA_OP_THREAD_COUNT", "many"),
        "must be a number of threads", {"1/model.pt": b"PK"},
    ),
    "warm-up file": Mistake(
        warm_up(data='input_data_file: "x.raw"'), "failed to open text file for read {}/warmup/x.raw", thread="T#6014"
    ),
    "warm-up too short": Mistake(
        warm_up(data='input_data_file: "x.raw"'), "expects 12 bytes",
        {"1/.keep": b"", "warmup/x.raw": bytes(8)}, "T#6014",
    ),
    "warm-up of another input": Mistake(warm_up("Z"), "unexpected inference input 'Z'"),
    "warm-up of another shape": Mistake(warm_up(dims=4), "Expected [-1,3], got [1,4]"),
    # Instances.
    "no instances": Mistake(f"{IDENTITY} instance_group {{ count: -1 }}", "must be a positive number of instances"),
}  # fmt: skip


def without_weights(directory: Path) -> None:
    """A model as torch.onnx exports a large one, of which somebody has copied the smaller file."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save_model

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("X", "Y")]
    weights = numpy_helper.from_array(np.ones((4, 4), "float32"), "w")
    nodes = [helper.make_node("MatMul", ["X", "w"], ["Y"])]
    graph = helper.make_graph(nodes, "large", tensors[:1], tensors[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = directory / "1" / "model.onnx"
    save_model(model, file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (directory / "1" / "weights.bin").unlink()


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """The repository of all mistakes, and the texts of what one run says of each model."""
    repository = tmp_path_factory.mktemp("mistakes")
    for name, mistake in MISTAKES.items():
        directory = repository / name
        for path, content in mistake.files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
        if mistake.config:
            (directory / "config.pbtxt").write_text(mistake.config)
    without_weights(repository / "weights left behind")
    shutil.copytree(SAMPLES / "simple", repository / "simple")
    with pytest.MonkeyPatch.context() as patched:
        printed: list[str] = []
        patched.setattr("builtins.print", lambda text, **_: printed.append(str(text)))
        assert main(["check", str(repository), "--json"]) == 2
    found: dict[str, list[str]] = {}
    for row in json.loads(printed[0])["findings"]:
        if row["severity"] == "error":
            found.setdefault(row["model"], []).append(row["text"])
    return repository, found


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_without_loading(findings: tuple[Path, dict[str, list[str]]], name: str) -> None:
    repository, found = findings
    said = MISTAKES[name].said.replace("{}", str(repository / name))
    assert len(found[name]) == 1, found[name]
    assert said in found[name][0]


def test_the_model_without_a_mistake_has_none(findings: tuple[Path, dict[str, list[str]]]) -> None:
    assert set(findings[1]) == set(MISTAKES)
