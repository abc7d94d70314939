"""`shoal init`: what it writes is right at once, and nothing that exists is changed."""

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli import main
from tests.end_to_end.server import SAMPLES

FORESTS = Path(__file__).parents[1] / "data" / "forests"


def init(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    code = main(["init", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def answers(capsys: pytest.CaptureFixture[str], directory: Path) -> dict[str, object]:
    """The outputs of the model in a directory for its request, by name; its check finds nothing."""
    assert main(["check", "--strict", str(directory)]) == 0
    capsys.readouterr()
    assert main(["run", str(directory), "--data", str(directory / "request.json"), "--json"]) == 0
    return {each["name"]: each["shape"] for each in json.loads(capsys.readouterr().out)["outputs"]}


def test_a_template_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = tmp_path / "models" / "doubler"
    code, printed, _ = init(capsys, directory)
    assert code == 0
    assert f"Serve it:  shoal serve {directory}\n" in printed
    assert answers(capsys, directory) == {"Y": [1, 4]}


@pytest.mark.parametrize("model", ["digits", "mlp", "encoder"])
def test_a_file_is_copied_and_configured(capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str) -> None:
    source = SAMPLES / model / "1" / "model.onnx"
    code, _, _ = init(capsys, tmp_path / "fresh", "--from", source)
    assert code == 0
    assert (tmp_path / "fresh" / "1" / "model.onnx").read_bytes() == source.read_bytes()
    assert answers(capsys, tmp_path / "fresh")


@pytest.mark.parametrize("file", ["xgboost.json", "xgboost.ubj", "model.txt", "checkpoint.tl"])
def test_a_forest_is_copied_and_configured(capsys: pytest.CaptureFixture[str], tmp_path: Path, file: str) -> None:
    source = FORESTS / file
    code, _, _ = init(capsys, tmp_path / "fresh", "--from", source)
    assert code == 0
    assert (tmp_path / "fresh" / "1" / file).read_bytes() == source.read_bytes()
    assert answers(capsys, tmp_path / "fresh")


def test_a_file_that_is_no_forest_leaves_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("{}")
    code, printed, complaint = init(capsys, tmp_path / "fresh", "--from", tmp_path / "data.json")
    assert (code, printed) == (2, "")
    assert complaint.endswith("cannot be described: it is no forest of XGBoost, LightGBM or treelite 4\n")
    assert not (tmp_path / "fresh").exists()


def test_what_a_tensor_without_dimensions_needs_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    init(capsys, tmp_path / "fresh", "--from", SAMPLES / "digits" / "1" / "model.onnx")
    written = (tmp_path / "fresh" / "config.pbtxt").read_text()
    assert 'output { name: "label" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } }\n' in written


def test_a_file_that_cannot_be_read_leaves_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_text("no model")
    code, printed, complaint = init(capsys, tmp_path / "fresh", "--from", tmp_path / "broken.onnx")
    assert (code, printed) == (2, "")
    assert "model.onnx" in complaint
    assert not (tmp_path / "fresh").exists()


@pytest.mark.parametrize("verb", ["init", "samples"])
def test_a_disk_without_room_is_left_as_it_was(verb: str, tmp_path: Path) -> None:
    script = "from shoal.cli import main; raise SystemExit(main())"
    command = f"ulimit -f 0; exec {sys.executable} -c '{script}' {verb} {tmp_path}/m"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, [*tmp_path.iterdir()]) == (1, "", [])
    said = done.stderr.splitlines()[0]
    assert f"{tmp_path}/m" in said
    assert "cannot be written: " in said
    assert said.count("File too large") == 1


def test_commands_to_type_are_quoted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["init", f"{tmp_path}/my model"]) == 0
    assert f"Serve it:  shoal serve '{tmp_path}/my model'\n" in capsys.readouterr().out


def test_nothing_that_exists_is_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "add_sub", tmp_path / "add_sub")
    before = (tmp_path / "add_sub" / "config.pbtxt").read_bytes()
    assert init(capsys, tmp_path / "add_sub")[0] == 1
    assert (tmp_path / "add_sub" / "config.pbtxt").read_bytes() == before


def test_a_source_that_cannot_be_read_is_said_to_be_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("secret")
    (tmp_path / "m.onnx").chmod(0)
    tmp_path.chmod(0o777)
    is_root = os.getuid() == 0  # whom no mode keeps out
    before = os.getcwd()
    os.chdir(tmp_path)
    if is_root:
        os.seteuid(pwd.getpwnam("daemon").pw_uid)
    try:
        said = init(capsys, "fresh", "--from", "m.onnx")
    finally:
        if is_root:
            os.seteuid(0)
        os.chdir(before)
    assert said == (2, "", "'m.onnx' cannot be read: Permission denied\n")
    assert not (tmp_path / "fresh").exists()


def test_a_source_that_fails_while_it_is_copied_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").symlink_to("/proc/self/mem")  # can be opened, and nothing is mapped at its beginning
    code, printed, complaint = init(capsys, tmp_path / "fresh", "--from", tmp_path / "m.onnx")
    assert (code, printed) == (2, "")
    assert complaint == f"'{tmp_path}/m.onnx' cannot be read: Input/output error\n"
    assert not (tmp_path / "fresh").exists()
