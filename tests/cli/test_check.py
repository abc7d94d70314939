"""`shoal check`: the mistakes that a load would find, found without one, each at its place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.findings import Finding
from tests.end_to_end.broken_models import BROKEN, PYTHON, ensemble, write
from tests.end_to_end.server import SAMPLES
from tests.workers.backends.test_onnx_file import written

#: What root can read, and other users cannot.
ONLY_LOADED: set[str] = {"unreadable"} if os.geteuid() == 0 else set()
Printed = tuple[int, str, str]


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> Printed:
    """Exit code, stdout and stderr of the command."""
    code = main(["check", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def add(repository: Path, model: str, config: str, source: str = "") -> Path:
    """A model of one version, whose model.py is `source`; returns its directory."""
    (repository / model / "1").mkdir(parents=True, exist_ok=True)
    (repository / model / "config.pbtxt").write_text(config)
    (repository / model / "1" / "model.py").write_text(source)
    return repository / model


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of mistakes that test_load_messages.py has a server load."""
    directory = tmp_path_factory.mktemp("broken")
    write(directory)
    (directory / "simple").symlink_to(SAMPLES / "simple")
    return directory


@pytest.fixture(scope="module")
def errors(broken: Path) -> dict[str, list[str]]:
    """Model → the texts of the errors that are found."""
    command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", "check", "--json"]
    done = subprocess.run([*command, str(broken)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert set(report["models"]) == {*BROKEN, "simple"}
    found: dict[str, list[str]] = {}
    for row in report["findings"]:
        if row["severity"] == "error":
            found.setdefault(row["model"], []).append(row["text"])
    return found


def test_every_mistake_is_found_but_those_of_frameworks(errors: dict[str, list[str]]) -> None:
    assert set(BROKEN) - ONLY_LOADED <= set(errors)
    assert "simple" not in errors


@pytest.mark.parametrize(
    "model", ["flat", "named", "outer", "none", "circle", "other_name", "other_platform", "no_field"]
)
def test_the_sentence_is_that_of_a_load(errors: dict[str, list[str]], broken: Path, model: str) -> None:
    for part in BROKEN[model][1]:
        assert part.replace("{}", str(broken / model)) in errors[model][0]


def test_a_finding_names_its_line(capsys: pytest.CaptureFixture[str], broken: Path) -> None:
    code, printed, _ = check(capsys, broken)
    assert code == 2
    lines = printed.splitlines()
    assert f"{broken}/no_syntax/1/model.py:2: error: SyntaxError: expected ':'" in lines
    assert any(line.startswith(f"{broken}/no_field/config.pbtxt:1: error: failed to read text proto") for line in lines)
    assert any(line.startswith(f"{broken}/named: warning: ignore version directory 'v1'") for line in lines)
    assert lines[-1].startswith(f"{len(BROKEN) + 1} models: ")


def test_nothing_is_wrong_with_the_samples(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, complaint = check(capsys, SAMPLES, "--strict")
    assert (code, complaint) == (0, "")
    assert printed.endswith(" models: nothing is wrong that shows without loading them.\n")


def test_one_model_is_checked_with_those_beside_it(capsys: pytest.CaptureFixture[str], broken: Path) -> None:
    assert check(capsys, SAMPLES / "text_ensemble") == (
        0, "1 model: nothing is wrong that shows without loading it.\n", ""
    )  # fmt: skip
    code, printed, _ = check(capsys, broken / "circle", SAMPLES / "simple")
    assert code == 2
    assert printed.splitlines()[-1] == "2 models: 1 error and 0 warnings in 1 model."
    assert "circular dependency between ensembles: circle -> round -> circle" in printed


def test_steps_are_looked_for_in_all_repositories(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    add(one, "whole", ensemble("whole", "part").decode())
    other.mkdir()
    code, printed, _ = check(capsys, one, other)
    assert (code, printed.count("error:")) == (2, 1)
    assert "ensemble 'whole' contains the model 'part', which is in none of the repositories" in printed
    add(other, "part", 'backend: "identity" max_batch_size: 4 ' + _tensors("TYPE_FP32"))
    code, printed, _ = check(capsys, one, other)
    assert (code, printed.count("error:")) == (2, 3)
    assert "only allows maximum batch size to be 4" in printed
    assert "inconsistent" in printed
    add(other, "part", 'backend: "identity" max_batch_size: 8 ' + _tensors("TYPE_INT32"))
    assert check(capsys, one, other)[0] == 0


def _tensors(datatype: str) -> str:
    return " ".join(f'{role} {{ name: "{name}" data_type: {datatype} dims: 1 }}'
                    for role, name in (("input", "X"), ("output", "Y")))  # fmt: skip


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("class TritonPythonModel:\n    def execute(self, requests): ...\n", ""),
        ("from somewhere import TritonPythonModel\n", ""),
        ("from somewhere import *\n", ""),
        ("import somewhere\nTritonPythonModel = somewhere.Model\n", ""),
        ("if True:\n    class TritonPythonModel:\n        pass\n", ""),
        ("class TritonPythonModel(Other):\n    pass\n", ""),
        (
            "class TritonPythonModel:\n    execute = None\n",
            ":1: error: class TritonPythonModel has no method 'execute'",
        ),
        ("class Model: pass\nclass Other:\n    class TritonPythonModel: pass\n", "it defines Model, Other"),
        ("\n\nx = (\n", ":3: error: SyntaxError"),
        ("x = '\0'\n", "error: SyntaxError"),
    ],
    ids=["class", "import", "star", "assigned", "branch", "inherits", "no execute", "nested", "syntax", "null"],
)
def test_the_source_of_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str, text: str) -> None:
    add(tmp_path, "m", PYTHON.decode(), source)
    code, printed, _ = check(capsys, tmp_path)
    assert code == (2 if text else 0)
    assert text in printed


def test_a_fifo_in_place_of_a_model_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = add(tmp_path, "m", PYTHON.decode()) / "1" / "model.py"
    program.unlink()
    os.mkfifo(program)
    code, printed, _ = check(capsys, tmp_path)
    assert code == 2
    assert f"{program.parent}: error: '{program}' for model instance 'm_0_0' cannot be read: it is not a" in printed


def test_weights_that_are_no_file_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """ONNX Runtime reads no FIFO, inside the version's directory or outside."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    model = written(tmp_path / "m" / "1" / "model.onnx", location="weights.bin")
    data = model.read_bytes()
    assert data.count(b"weights.bin") == 1
    model.write_bytes(data.replace(b"weights.bin", b"../../w.bin"))
    (model.parent / "weights.bin").unlink()
    names = "'model.onnx' has its weights in a file of its own, '../../w.bin', which is "
    assert f"{names}not there: copy it, too\n" in check(capsys, tmp_path)[1]
    os.mkfifo(tmp_path / "w.bin")
    assert f"{names}not a regular file: put it in its place\n" in check(capsys, tmp_path)[1]


def test_links_that_lead_nowhere_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "lost").symlink_to("gone")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "1").symlink_to("/gone/1")
    code, printed, _ = check(capsys, tmp_path)
    assert code == 2
    assert f"{tmp_path / 'lost'}: warning: '{tmp_path / 'lost'}' is a link to 'gone', which is not there\n" in printed
    assert f"'{tmp_path / 'm' / '1'}' is a link to '/gone/1', which is not there\n" in printed
    assert check(capsys, tmp_path / "m")[0] == 2  # a model, not a repository without any


def test_a_warning_fails_only_where_it_should(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (add(tmp_path, "m", 'backend: "identity" ' + _tensors("TYPE_FP32")) / "latest").mkdir()
    code, printed, _ = check(capsys, tmp_path)
    assert (code, printed.splitlines()[-1]) == (0, "1 model: 0 errors and 1 warning in 1 model.")
    assert check(capsys, tmp_path, "--strict")[0] == 2


def test_a_finding_is_one_line() -> None:
    assert str(Finding("error", "m", Path("m/config.pbtxt"), "one\n  two", 3)) == "m/config.pbtxt:3: error: one two"
