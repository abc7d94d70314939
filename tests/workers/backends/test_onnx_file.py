"""An ONNX file's interface, read without ONNX Runtime: it is what ONNX Runtime says of the file, and no file is taken
for one that is none."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from shoal.errors import InvalidArgumentError
from shoal.workers.backends.onnx_file import read
from shoal.workers.backends.onnxruntime import _io_tensors
from tests.end_to_end.server import SAMPLES

FILES = sorted(SAMPLES.glob("*/1/model.onnx"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parts[-3])
def test_a_sample_has_the_inputs_and_outputs_that_onnx_runtime_finds(path: Path) -> None:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = read(path)
    assert found.io.inputs == _io_tensors(session.get_inputs())
    assert [each[:2] for each in found.io.outputs] == [each[:2] for each in _io_tensors(session.get_outputs())]
    assert found.initializers == _io_tensors(session.get_overridable_initializers())
    assert not found.locations


def written(path: Path, ir_version: int = 8, location: str = "") -> Path:
    """Y = X + w + s, with w as an input that has a default, and an output whose shape is not told."""
    shapes: dict[str, Sequence[str | int] | None] = {"X": ["n", 4], "w": [4], "s": [], "Y": None}
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    weights = numpy_helper.from_array(np.ones(4, "float32"), "w")
    nodes = [helper.make_node("Add", ["X", "w"], ["t"]), helper.make_node("Add", ["t", "s"], ["Y"])]
    graph = helper.make_graph(nodes, "g", tensors[:3], tensors[3:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)
    save_model(model, path, save_as_external_data=bool(location), location=location or None, size_threshold=0)
    return path


def test_a_default_is_no_required_input_and_an_unknown_rank_is_told(tmp_path: Path) -> None:
    found = read(written(tmp_path / "model.onnx"))
    assert [(each.name, each.data_type, each.dims) for each in found.io.inputs] == [
        ("X", "TYPE_FP32", (-1, 4)), ("s", "TYPE_FP32", ()),
    ]  # fmt: skip
    assert [(each.name, each.dims) for each in found.initializers] == [("w", (4,))]
    assert found.unknown_ranks == {"Y"}
    old = read(written(tmp_path / "old.onnx", ir_version=3))  # there an initializer is a constant
    assert (len(old.io.inputs), old.initializers) == (2, ())


def test_the_files_with_weights_are_named(tmp_path: Path) -> None:
    assert read(written(tmp_path / "model.onnx", location="weights.bin")).locations == {"weights.bin"}


def test_a_file_that_was_cut_short_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = written(tmp_path / "model.onnx").read_bytes()
    cut = tmp_path / "cut.onnx"
    expected = read(tmp_path / "model.onnx")
    for end in range(len(whole)):
        cut.write_bytes(whole[:end])
        try:
            found = read(cut)
        except InvalidArgumentError:
            continue
        assert found.io == expected.io  # only what follows the graph is missing


@pytest.mark.parametrize(
    "content", [b"", b"no model", b"\x08\x08", b"\xff" * 40, b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x00"]
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    if content == b"\x3a\x00":  # an empty graph: a model without inputs and outputs
        assert read(path).io.inputs == ()
        return
    with pytest.raises(InvalidArgumentError, match=f"'{path}' is no ONNX model, or was cut short"):
        read(path)
