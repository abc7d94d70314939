"""Every form that PyTorch saves models in, loaded and run against PyTorch's own results."""

import dataclasses
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.workers.backends.pytorch.backend import PytorchBackend
from shoal.workers.tensors import Array
from tests.models.pytorch.line import Line
from tests.workers.backends.pytorch.pytorch_models import (
    CPU,
    WARNINGS,
    Nested,
    Sum,
    Table,
    Twice,
    X,
    config,
    loaded,
    refusal,
    scripted,
)  # fmt: skip
from tests.workers.worker_harness import model, model_config, tensor_config

pytestmark = WARNINGS
LINE = Path(__file__).parents[3] / "models" / "pytorch" / "line.pt2"


# -- TorchScript ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["right", "left"], ["S", "D"]),
        (["B__1", "A__0"], ["D__1", "S__0"]),
        (["A", "B"], ["S", "D"]),
        (["ARGS[1]", "ARGS[0]"], ["RESULT[1]", "RESULT[0]"]),
    ],
)
def test_names_by_every_convention(tmp_path: Path, inputs: list[str], outputs: list[str]) -> None:
    backend = loaded(scripted(tmp_path, Sum()), config(inputs, outputs))
    left = next(name for name in inputs if name in ("left", "A__0", "A", "ARGS[0]"))
    right = next(name for name in inputs if name != left)
    found = backend.run({right: X * 10, left: X})
    total = next(name for name in outputs if name in ("S", "S__0", "RESULT[0]"))
    difference = next(name for name in outputs if name != total)
    assert np.array_equal(found[total], X * 11)
    assert np.array_equal(found[difference], X * -9)


def test_a_dictionary_in_and_out(tmp_path: Path) -> None:
    backend = loaded(scripted(tmp_path, Table()), config(["right", "left"], ["difference", "sum"]))
    found = backend.run({"right": X, "left": X * 3})
    assert np.array_equal(found["sum"], X * 4)
    assert np.array_equal(found["difference"], X * 2)


def test_a_key_that_is_not_returned_is_named(tmp_path: Path) -> None:
    backend = loaded(scripted(tmp_path, Table()), config(["right", "left"], ["quotient"]))
    with pytest.raises(InvalidArgumentError, match="output 'quotient' is not in what model 'm' returned"):
        backend.run({"right": X, "left": X})


def test_tuples_and_lists_by_paths(tmp_path: Path) -> None:
    inputs = ["ARGS[0]", "ARGS[1][0]", "ARGS[1][1]", "ARGS[2][0]", "ARGS[2][1]"]
    backend = loaded(scripted(tmp_path, Nested()), config(inputs, ["RESULT[1][1]", "RESULT[0]"]))
    found = backend.run({name: X * (number + 1) for number, name in enumerate(inputs)})
    assert np.array_equal(found["RESULT[0]"], X * 0)
    assert np.array_equal(found["RESULT[1][1]"], X * 15)


VISION = """
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")
"""


def test_operators_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for it, with one operator: it is imported when, and only when, a model asks for it."""
    made: dict[str, Any] = {}
    exec(VISION, made)
    file = scripted(tmp_path, Twice())
    made["library"]._destroy()
    monkeypatch.setitem(sys.modules, "torchvision", None)
    error = refusal(file, config(["X"], ["Y"]))
    assert isinstance(error, UnsupportedError)
    assert str(error).endswith("Install it with: pip install torchvision")
    monkeypatch.delitem(sys.modules, "torchvision")
    (tmp_path / "torchvision.py").write_text(VISION)
    monkeypatch.syspath_prepend(tmp_path)
    assert np.array_equal(loaded(file, config(["X"], ["Y"])).run({"X": X})["Y"], X * 2)
    sys.modules["torchvision"].library._destroy()


# -- torch.export and AOTInductor -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled_line(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once for each version of PyTorch, and kept in pytest's cache: it takes a C++ compiler five seconds."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("NOT CHECKED: AOTInductor, which needs a C++ compiler, and there is no g++ or clang++")
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    folder = cache.mkdir(f"aotinductor-{torch.__version__}") if cache else tmp_path_factory.mktemp("aotinductor")
    file = folder / "line.pt2"
    if not file.exists():
        made = folder / f"{os.getpid()}.pt2"
        # Without vectors, or trying which there are, without optimisation, and without headers compiled for the next
        # program: a quarter of the compiler's time.
        options = {
            "cpp.vec_isa_ok": False,
            "aot_inductor.compile_wrapper_opt_level": "O0",
            "aot_inductor.precompile_headers": False,
        }
        torch._inductor.aoti_compile_and_package(
            torch.export.load(LINE), package_path=str(made), inductor_configs=options
        )
        made.rename(file)
    return file


LINE_NAMES = [
    (["ARGS[0]", "KWARGS[more][b]"], ["RESULT[z]", "RESULT[y]"]),
    (["B__1", "A__0"], ["Z__1", "Y__0"]),
    (["X", "B"], ["y", "z"]),
]


def line_config(inputs: list[str], outputs: list[str]) -> dict[str, Any]:
    return model_config(
        [tensor_config(name, "TYPE_FP32", [4]) for name in inputs],
        [tensor_config(name, "TYPE_FP32", [3 if "y" in name.lower() else 4]) for name in outputs],
    )


def check_line(backend: PytorchBackend, inputs: list[str], outputs: list[str]) -> None:
    with torch.no_grad():
        expected = Line()(torch.from_numpy(X), more={"b": torch.ones(2, 4)})
    more = next(name for name in inputs if "b" in name.lower())
    x = next(name for name in inputs if name != more)
    found = backend.run({x: X, more: np.ones((2, 4), np.float32)})
    for name in outputs:
        assert np.allclose(found[name], expected["y" if "y" in name.lower() else "z"].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [*LINE_NAMES, (["KWARGS[more][b]", "x"], ["z", "y"])],  # x as the argument is called
)
def test_an_exported_program(inputs: list[str], outputs: list[str]) -> None:
    check_line(loaded(LINE, line_config(inputs, outputs)), inputs, outputs)


def test_a_shape_that_an_exported_program_does_not_take() -> None:
    backend = loaded(LINE, line_config(*LINE_NAMES[0]))
    with pytest.raises(InternalError, match=r"^PyTorch execute failure: Guard failed: .*4"):
        backend.run({"ARGS[0]": np.zeros((2, 5), np.float32), "KWARGS[more][b]": X})


class OddKeys(nn.Module):
    """A dictionary with keys that end in quotation marks and dots."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"a'": x + 1, "c.": x + 2}


def test_keys_of_a_result_are_taken_as_they_are(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(OddKeys(), (torch.zeros(2, 4),)), tmp_path / "model.pt2")
    found = loaded(tmp_path / "model.pt2", config(["x"], ["c.", "RESULT[a']"])).run({"x": X})
    assert np.array_equal(found["c."], X + 2)
    assert np.array_equal(found["RESULT[a']"], X + 1)


class Elsewhere(nn.Module):
    """Makes a tensor on another device than its input's."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 1, torch.ones(2, 4, device="meta")


def test_a_program_exported_on_another_device_is_moved_to_the_cpu(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Elsewhere(), (torch.zeros(2, 4),)), tmp_path / "model.pt2")
    found = loaded(tmp_path / "model.pt2", config(["x"], ["A__0", "B__1"])).run({"x": X})
    assert np.array_equal(found["B__1"], np.ones((2, 4)))


def test_a_load_of_what_was_compiled_runs_no_compiler(compiled_line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **_: pytest.fail(f"it has run {arguments}"))
    check_line(loaded(compiled_line, line_config(*LINE_NAMES[0])), *LINE_NAMES[0])


def test_a_program_compiled_ahead_of_time(compiled_line: Path) -> None:
    for inputs, outputs in LINE_NAMES:
        check_line(loaded(compiled_line, line_config(inputs, outputs)), inputs, outputs)
    backend = loaded(compiled_line, line_config(*LINE_NAMES[0]))
    with pytest.raises(InternalError, match=r"^PyTorch execute failure: .*unmatched dim value at 1"):
        backend.run({"ARGS[0]": np.zeros((2, 5), np.float32), "KWARGS[more][b]": X})


def test_an_output_that_an_exported_program_does_not_have() -> None:
    assert str(refusal(LINE, line_config(["A__0", "B__1"], ["Y__0", "Z__2"]))) == (
        "The output Z__2 in the model configuration refers to an output index which doesn't exist. "
        "This model has 2 outputs"
    )


def test_channels_last_is_not_for_archives() -> None:
    images = {**line_config(*LINE_NAMES[0]), "parameters": {"CHANNELS_LAST": {"string_value": "true"}}}
    assert isinstance(refusal(LINE, images), UnsupportedError)


# -- the Python runtime -----------------------------------------------------------------------------------------------

SOURCE = """
import torch
from torch.nn import Linear, Module

class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = Linear(4, 4)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def python_file(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(SOURCE)
    return tmp_path / "model.py"


def save_weights(file: Path) -> nn.Linear:
    layer = nn.Linear(4, 4)
    torch.save({f"layer.{name}": value for name, value in layer.state_dict().items()}, file.with_suffix(".pt"))
    return layer


@pytest.mark.parametrize("parameters", [{}, {"ENABLE_WEIGHT_SHARING": "true"}])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_python_file_and_its_weights(python_file: Path, parameters: dict[str, str], is_named: bool) -> None:
    layer = save_weights(python_file)
    net = config(["X"], ["Y"], parameters=parameters, runtime="model.py")
    backend = PytorchBackend()
    named = model(net, str(python_file))
    backend.load(named if is_named else dataclasses.replace(named, file=""), CPU)
    expected: Array = layer(torch.from_numpy(X)).numpy(force=True)
    assert np.allclose(backend.run({"X": X})["Y"], expected, atol=1e-5)


def test_a_python_file_without_weights(python_file: Path) -> None:
    assert loaded(python_file, config(["X"], ["Y"])).run({"X": X})["Y"].shape == (2, 4)


@pytest.mark.parametrize("arguments", ["x, y", "*tensors"])
def test_the_inputs_of_a_python_file_go_by_order(python_file: Path, arguments: str) -> None:
    """Their names are looked at where forward says how many it takes."""
    difference = "x - y" if arguments == "x, y" else "tensors[0] - tensors[1]"
    python_file.write_text(SOURCE.replace("self, x", f"self, {arguments}").replace("self.layer(x)", difference))
    found = loaded(python_file, config(["A__0", "B__1"], ["Y"])).run({"B__1": X, "A__0": X * 3})
    assert np.array_equal(found["Y"], X * 2)
    if arguments == "x, y":
        for names in (["A__1", "B__0"], ["x"], ["x", "y", "z"]):
            assert str(refusal(python_file, config(names, ["Y"]))).startswith("unable to load model 'm', ")


def test_a_compiled_module_is_compiled_when_it_is_ready(python_file: Path) -> None:
    layer = save_weights(python_file)
    compiled = {"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"backend": "eager"}'}
    backend = loaded(python_file, config(["X"], ["Y"], parameters=compiled))
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (1, 2, 5, 8):
            array = np.ones((rows, 4), np.float32)
            expected: Array = layer(torch.from_numpy(array)).numpy(force=True)
            assert np.allclose(backend.run({"X": array})["Y"], expected, atol=1e-5)


def test_what_cannot_be_compiled_is_not_served(python_file: Path) -> None:
    compiled = {"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"fullgraph": true, "backend": "eager"}'}
    python_file.write_text(SOURCE.replace("return self", "print(id(x)); return self"))
    sentence = str(refusal(python_file, config(["X"], ["Y"], parameters=compiled)))
    assert sentence.startswith("model 'm' could not be compiled by a first run on zeros")


def test_weights_are_data(python_file: Path) -> None:
    torch.save(nn.Linear(4, 4), python_file.with_suffix(".pt"))  # a pickled module: code
    sentence = str(refusal(python_file, config(["X"], ["Y"])))
    assert sentence == (
        f"failed to load model 'm': '{python_file.with_suffix('.pt')}' is no state dict, which is all that is read: "
        "Unsupported global: GLOBAL torch.nn.modules.linear.Linear was not an allowed global by default"
    )


def test_weights_that_are_damaged(python_file: Path) -> None:
    python_file.with_suffix(".pt").write_bytes(b"PK")
    assert "' is no state dict, which is all that is read: " in str(refusal(python_file, config(["X"], ["Y"])))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import torch", "Cannot find a subclass of torch.nn.Module"),
        ("1 / 0", "failed to load model 'm': division by zero"),
        (SOURCE.replace("4)", "5)"), "failed to load model 'm': Error(s) in loading state_dict for Net:"),
    ],
)
def test_python_files_that_cannot_be_loaded(python_file: Path, source: str, sentence: str) -> None:
    save_weights(python_file)
    python_file.write_text(source)
    assert str(refusal(python_file, config(["X"], ["Y"]))).startswith(sentence)


def test_without_any_file_tritons_sentence_is_told(tmp_path: Path) -> None:
    nothing = dataclasses.replace(model(config(["X"], ["Y"])), version_dir=str(tmp_path))
    with pytest.raises(UnavailableError) as caught:
        PytorchBackend().load(nothing, CPU)
    assert str(caught.value) == f"No model found in {tmp_path}/['model.py', 'model.pt']"


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    error = refusal(tmp_path / "model.pt", config(["X"], ["Y"]))
    assert isinstance(error, UnavailableError)
    assert str(error) == f"unable to find '{tmp_path}/model.pt' for model instance 'm_0_0'"
    shutil.copy(LINE, tmp_path / "model.pt2")
    check_line(loaded(tmp_path / "model.pt", line_config(*LINE_NAMES[0])), *LINE_NAMES[0])
    assert isinstance(refusal(tmp_path / "other.pt", line_config(*LINE_NAMES[0])), UnavailableError)


def test_a_damaged_file(tmp_path: Path) -> None:
    file = scripted(tmp_path, Sum())
    file.write_bytes(file.read_bytes()[:500])
    sentence = str(refusal(file, config(["left", "right"], ["S", "D"])))
    assert sentence == f"failed to load model 'm': '{file}' is no PyTorch archive: File is not a zip file"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/constants.pkl", b"")
    assert str(refusal(file, config(["left", "right"], ["S", "D"]))).startswith("failed to load model 'm': ")


def test_weights_without_a_model_are_told_from_a_model(tmp_path: Path) -> None:
    torch.save(nn.Linear(4, 4).state_dict(), tmp_path / "model.pt")
    sentence = str(refusal(tmp_path / "model.pt", config(["X"], ["Y"])))
    assert "holds weights and no model" in sentence
    assert 'set runtime: "model.py"' in sentence
