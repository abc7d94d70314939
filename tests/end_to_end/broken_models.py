"""A repository of models that cannot be loaded, mostly by a beginner's mistake, and what is to be said of each."""

from collections.abc import Iterable
from pathlib import Path

from onnx import TensorProto, helper

from tests.end_to_end.server import SAMPLES

ONNX = (SAMPLES / "simple" / "1" / "model.onnx").read_bytes()
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "Y" data_type: TYPE_FP32 dims: 3 }'
PYTHON = f'backend: "python" {TENSORS}'.encode()
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def zipmap() -> bytes:
    """What skl2onnx makes of a classifier unless it is told otherwise: probabilities as a list of maps."""
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    given, label = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3]) for name in ("X", "label"))
    probabilities = helper.make_value_info("probabilities", helper.make_sequence_type_proto(maps))
    nodes = [
        helper.make_node("Identity", ["X"], ["label"]),
        helper.make_node("ZipMap", ["X"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]
    graph = helper.make_graph(nodes, "classifier", [given], [label, probabilities])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()


def ensemble(name: str, step: str) -> bytes:
    return f"""
        platform: "ensemble" name: "{name}" max_batch_size: 8
        input {{ name: "X" data_type: TYPE_INT32 dims: 1 }} output {{ name: "Y" data_type: TYPE_INT32 dims: 1 }}
        ensemble_scheduling {{ step {{
            model_name: "{step}" model_version: -1
            input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }}
        }} }}
    """.encode()


CONFIGURED_ZIPMAP = b"""
    backend: "onnxruntime" max_batch_size: 8 input { name: "X" data_type: TYPE_FP32 dims: 3 }
    output { name: "probabilities" data_type: TYPE_FP32 dims: 3 }
"""
FLAT = b'backend: "onnxruntime" max_batch_size: 8'
#: Model → its files, and parts of the reason why it does not load; `{}` stands for the model's directory.
BROKEN: dict[str, tuple[dict[str, bytes], tuple[str, ...]]] = {
    "zipmap": (
        {"1/model.onnx": zipmap()},
        ("Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'probabilities', expected 'ONNX_TYPE_TENSOR'.", "zipmap"),
    ),
    "zipmap_configured": (
        {"1/model.onnx": zipmap(), "config.pbtxt": CONFIGURED_ZIPMAP},
        ("Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'probabilities'", "options={'zipmap': False}"),
    ),
    "flat": (
        {"model.onnx": ONNX},
        ("Could not determine backend for model 'flat'", "lies in the model's directory", "to '{}/1/model.onnx'"),
    ),
    "flat_configured": (
        {"model.onnx": ONNX, "config.pbtxt": FLAT},
        ("at least one version must be available under the version policy of", "to '{}/1/model.onnx'"),
    ),
    "named": ({"v1/model.onnx": ONNX}, ("'{}/v1' is no version", "rename it to '{}/1'")),
    "outer": (
        {"inner/1/model.onnx": ONNX},
        ("Could not determine backend for model 'outer'", "'{}' is a repository of models itself: name it, --model-"),
    ),
    "none": ({"config.pbtxt": FLAT}, ("at least one version", "'{}' has no version: make '{}/1'")),
    "circle": (
        {"1/.keep": b"", "config.pbtxt": ensemble("circle", "round")},
        ("circular dependency between ensembles: circle -> round -> circle", "Remove one of these steps from the"),
    ),
    "round": (
        {"1/.keep": b"", "config.pbtxt": ensemble("round", "circle")},
        ("circular dependency between ensembles: round -> circle -> round", "Remove one of these steps from the"),
    ),
    "pointer": (
        {"1/model.onnx": POINTER},
        ("Protobuf parsing failed", "'{}/1/model.onnx' is a pointer of Git LFS", "git lfs pull"),
    ),
    "pointer_python": ({"1/model.py": POINTER, "config.pbtxt": PYTHON}, ("SyntaxError", "git lfs pull")),
    "unreadable": (
        {"1/model.onnx": ONNX},
        ("system error number 13", "'{}/1/model.onnx' cannot be read: Permission denied", "chmod"),
    ),
    "other_name": (
        {"1/model.onnx": ONNX, "config.pbtxt": b'backend: "onnx"'},
        ("unable to find backend library for backend 'onnx'", "Did you mean 'onnxruntime'?"),
    ),
    "typing_error": (
        {"1/model.onnx": ONNX, "config.pbtxt": b'backend: "onnxruntim"'},
        ("unable to find backend library for backend 'onnxruntim'", "Did you mean 'onnxruntime'?"),
    ),
    "other_platform": (
        {"1/model.onnx": ONNX, "config.pbtxt": b'platform: "onnx"'},
        ("unexpected platform type 'onnx' for other_platform", "Did you mean 'onnxruntime_onnx'?"),
    ),
    "no_class": (
        {"1/model.py": b"class Model:\n    pass\n", "config.pbtxt": PYTHON},
        ("has no attribute 'TritonPythonModel'", "'{}/1/model.py' has to define", "it defines Model"),
    ),
    "no_syntax": (
        {"1/model.py": b"class TritonPythonModel:\n    def execute(self)\n", "config.pbtxt": PYTHON},
        ("SyntaxError: expected ':' (model.py, line 2)", "At:\n  {}/1/model.py(2): def execute(self)\n"),
    ),
    "no_syntax_beside": (
        {"1/model.py": b"import beside_no_syntax\n", "1/beside_no_syntax.py": b"x = = 1\n", "config.pbtxt": PYTHON},
        ("SyntaxError: invalid syntax", "{}/1/beside_no_syntax.py(1): x = = 1\n", "{}/1/model.py(1): <module>"),
    ),
    "negative": (
        {"1/.keep": b"", "config.pbtxt": b"max_batch_size: -1 backend: 'identity'"},
        ("'max_batch_size' must be non-negative value for",),
    ),
    "no_field": ({"1/.keep": b"", "config.pbtxt": b"frobnicate: 1"}, ("failed to read text proto from",)),
    "no_backend": ({"1/model.py": b"", "config.pbtxt": b"backend: 'nobody'"}, ("nobody",)),
    "no_onnx": ({"1/model.onnx": b"no model", "config.pbtxt": FLAT}, ("model.onnx",)),
    "no_file": ({"1/.keep": b"", "config.pbtxt": FLAT}, ("unable to find",)),
    "operations": (
        {"1/.keep": b"", "config.pbtxt": b"backend: 'identity' model_operations { op_library_filename: 'x.so' }"},
        ("model_operations",),
    ),
}


def write(repository: Path, names: Iterable[str] = BROKEN) -> None:
    for name in names:
        for path, content in BROKEN[name][0].items():
            (repository / name / path).parent.mkdir(parents=True, exist_ok=True)
            (repository / name / path).write_bytes(content)
    if "unreadable" in names:
        (repository / "unreadable" / "1" / "model.onnx").chmod(0)
