"""ONNX models behind a real server: tensors without a shape, operators from a library, and models that do not load."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.end_to_end.server import DEADLINE_S, Server, serving

#: An operator of no framework, `Double` of the domain shoal.test.
LIBRARY = Path(__file__).parents[1] / "data" / "custom_ops" / "double.so"
#: Configured dims of a tensor that has no shape in its file.
SCALAR_DIMS = ([1], [1, 1], [1, 1, 1])
#: Where op_library_filename says that the library is → where it lies in the model's directory; None: nowhere.
LIBRARIES = {
    "in_version": "1/double.so",
    "in_model": "double.so",
    "absolute": None,
    "missing": None,
    "no_library": None,
}
TENSOR = 'name: "{}" data_type: TYPE_{} dims: {}'


def save(
    repository: Path, name: str, operator: str, shape: Sequence[str | int] | None, dims: list[int], **config: str
) -> Path:
    """A model X → Y of one operator, both tensors of `shape`, and its configuration; its directory."""
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    element_type, data_type = (TensorProto.STRING, "STRING") if operator == "Identity" else (TensorProto.FLOAT, "FP32")
    x, y = (helper.make_tensor_value_info(tensor, element_type, shape) for tensor in "XY")
    node = helper.make_node(operator, ["X"], ["Y"], domain="shoal.test" if operator == "Double" else "")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("shoal.test", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8)
    onnx.save(model, directory / "1" / "model.onnx")
    fields = {
        "backend": '"onnxruntime"',
        "input": f"{{ {TENSOR.format('X', data_type, dims)} }}",
        "output": f"{{ {TENSOR.format('Y', data_type, dims)} }}",
        "instance_group": "{ count: 1 kind: KIND_CPU }",
        **config,
    }
    (directory / "config.pbtxt").write_text("\n".join(f"{field}: {value}" for field, value in fields.items()))
    return directory


def save_with_library(repository: Path, name: str, file: str) -> None:
    operations = f'{{ op_library_filename: "{file}" }}'
    directory = save(repository, name, "Double", ["N", 4], [4], max_batch_size="8", model_operations=operations)
    if (place := LIBRARIES[name]) is not None:
        shutil.copy(LIBRARY, directory / place)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    for dims in SCALAR_DIMS:
        save(root, f"scalar_{len(dims)}", "Neg", [], dims)
    save(root, "string_scalar", "Identity", [], [1, 1])
    save(root, "rank_unknown", "Neg", None, [1, 1])
    save(root, "two_elements", "Neg", [], [1, 2])
    save_with_library(root, "in_version", "double.so")
    save_with_library(root, "in_model", "double.so")
    save_with_library(root, "absolute", str(LIBRARY))
    save_with_library(root, "missing", "nowhere.so")
    save_with_library(root, "no_library", "model.onnx")
    with serving(root, "--exit-on-error=false", "--strict-readiness=false") as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as connected:
        yield connected


def ask(client: Any, model: str, array: Any) -> Any:
    tensor = triton.InferInput("X", list(array.shape), np_to_triton_dtype(array.dtype))
    return client.infer(model, [tensor.set_data_from_numpy(array)]).as_numpy("Y")


@pytest.mark.parametrize("dims", SCALAR_DIMS, ids=str)
def test_a_tensor_without_a_shape_takes_any_number_of_dimensions_of_one(client: Any, dims: list[int]) -> None:
    answer = ask(client, f"scalar_{len(dims)}", np.full(dims, 3, np.float32))
    assert (list(answer.shape), answer.tolist()) == (dims, np.full(dims, -3.0).tolist())
    assert client.get_model_metadata(f"scalar_{len(dims)}")["outputs"][0]["shape"] == dims


def test_a_string_without_a_shape_too(client: Any) -> None:
    assert ask(client, "string_scalar", np.array([["shoal"]], object)).tolist() == [[b"shoal"]]


def test_a_file_that_does_not_say_the_rank_is_one_element_as_in_triton(client: Any) -> None:
    assert ask(client, "rank_unknown", np.array([[3]], np.float32)).tolist() == [[-3]]


def refusal(client: Any, model: str) -> str:
    (row,) = [row for row in client.get_model_repository_index() if row["name"] == model]
    assert row["state"] == "UNAVAILABLE"
    return str(row["reason"])


def test_dims_of_more_than_one_element_are_refused_in_tritons_words(client: Any) -> None:
    expected = (
        "unable to load model 'two_elements', scalar tensor 'X', should only provide 1 in the model configuration when "
        "the model doesn't support batching. Model configuration provided: [1,2]."
    )
    assert expected in refusal(client, "two_elements")


@pytest.mark.parametrize("model", ["in_version", "in_model", "absolute"])
def test_operators_come_from_the_library_that_the_configuration_names(client: Any, model: str) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert ask(client, model, rows).tolist() == (2 * rows).tolist()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("missing", ("nowhere.so", "cannot open shared object file")),
        ("no_library", ("model.onnx", "invalid ELF header")),
    ],
)
def test_a_library_that_cannot_be_loaded_is_named_with_where_it_was_looked_for(
    client: Any, model: str, words: Sequence[str]
) -> None:
    reason = refusal(client, model)
    assert "onnx runtime error 1: " in reason
    assert all(word in reason for word in (*words, "op_library_filename", f"/{model}/1"))
    with pytest.raises(InferenceServerException, match=f"'{model}'"):
        ask(client, model, np.zeros((1, 4), np.float32))
