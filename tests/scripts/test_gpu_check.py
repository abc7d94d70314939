"""scripts/gpu-check without a GPU: what it says, what it packs, and that no row stops another."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import row_process
from scripts.gpu_check import __main__ as gpu_check
from scripts.gpu_check import devices, machine, pack
from scripts.gpu_check.finding import FAKES, Finding, Verdict
from scripts.gpu_check.rows import ROWS, Row
from scripts.gpu_check.run_row import shortened

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu-check"


def run_script(*arguments: str, path: str = "/usr/bin:/bin") -> "subprocess.CompletedProcess[str]":
    variables = {**os.environ, "PYTHON": sys.executable, "PATH": path, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, check=False, env=variables
    )


def test_without_a_gpu_it_says_so() -> None:
    done = run_script()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("There is no GPU here that NVIDIA's driver tells of. Nothing has been checked.\n")


def test_the_table_on_a_cpu(tmp_path: Path) -> None:
    arguments = ["--on-cpu", "--seconds", "0.1", "--only", "onnx-cuda", "--only", "tensorrt", "--logs", str(tmp_path)]
    done = run_script(*arguments)
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    assert cells[0] == ["row", "verdict", "found", "seconds"]
    assert [row[:2] for row in cells[2:]] == [["ONNX Runtime, CUDA", "right"], ["TensorRT engine", "not run"]]
    assert cells[2][2].startswith("CPUExecutionProvider; error ")
    assert cells[3][2] == "it needs the package tensorrt and a GPU"
    assert {file.name for file in tmp_path.iterdir()} == {"onnx-cuda.log", "tensorrt.log"}


def test_a_row_that_is_not_there() -> None:
    done = run_script("--only", "onnx")
    assert done.returncode == 2
    assert done.stderr.startswith("no such row: onnx; there are machine, torchscript, ")


# -- rows -------------------------------------------------------------------------------------------------------------

DONE = 'print(\'gpu-check result: ["right", "7 | 8"]\', flush=True)'


def finding_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, limit_s: float = 60, row_limit_s: float = 0
) -> Finding:
    """The finding of a row whose process runs a program of the test's."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!{sys.executable}\n{program}\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    given = argparse.Namespace(seconds=1.0, on_cpu=True)
    return gpu_check.run(Row("odd", "an odd row", "", row_limit_s or limit_s), {}, tmp_path / "odd.log", limit_s, given)


def test_what_a_row_has_found_counts_even_if_its_process_ends_badly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import os\n{DONE}\nos.abort()"
    assert finding_of(tmp_path, monkeypatch, program) == Finding(Verdict.RIGHT, "7 | 8")


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("import os; print('so far', flush=True); os.abort()", "its process ended with -6: so far"),
        ("raise SystemExit(3)", "its process ended with 3: nothing was printed"),
    ],
)
def test_a_row_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, found: str) -> None:
    assert finding_of(tmp_path, monkeypatch, program) == Finding(Verdict.WRONG, found)


def test_a_row_that_hangs_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = finding_of(tmp_path, monkeypatch, "import signal\nsignal.pause()", limit_s=1)
    assert finding == Finding(Verdict.WRONG, "it was not done after 1 s: nothing was printed")


def test_a_row_whose_time_was_cut_is_not_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = finding_of(tmp_path, monkeypatch, "import signal\nsignal.pause()", limit_s=1, row_limit_s=60)
    assert finding == Finding(Verdict.NOT_RUN, "no time was left: it was not done after 1 s")


def test_the_end_of_a_row_ends_what_it_has_started(tmp_path: Path) -> None:
    # A child in a process group of its own, as a server is, holds the pipe's writing end until it is killed.
    program = (
        "import os, signal\nif os.fork() == 0:\n    os.setpgid(0, 0)\n    print('here', flush=True)\nsignal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        row_process.end_session(process.pid)
        assert process.stdout.read() == b""  # its end: no process writes any more


def test_rows_for_which_no_time_is_left_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = argparse.Namespace(minutes=0.0)
    assert gpu_check.check(ROWS, {}, tmp_path, given) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines == [f"| {row.title} | not run | no time was left | 0 |" for row in ROWS]


def test_the_table_of_rows_is_whole_and_runs_in_time() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        module, _, function = row.function.partition(":")
        text = (ROOT / "scripts" / "gpu_check" / f"{module}.py").read_text()
        assert f"\ndef {function}(setup: Setup) -> Finding:\n" in text


def test_a_long_error_keeps_both_its_ends() -> None:
    assert shortened("short") == "short"
    found = shortened("begin" + "x" * 1000 + "end")
    assert found.startswith("begin")
    assert found.endswith("end")
    assert len(found) < 420


@pytest.mark.parametrize(
    ("said", "expected"),
    [("GPU-1bb [0, 1]", True), ("GPU-1bb [1]", True), ("GPU-1bb [1, 4]", False), ("None [0]", False)],
)
def test_what_an_instance_says_of_itself(said: str, expected: bool) -> None:
    assert devices.is_beside(said, "GPU-1bb", (0, 1)) is expected


def test_the_code_of_models_is_python() -> None:
    for fault in (devices.NO_FAULT, devices.OUT_OF_MEMORY, devices.LOST, devices.FAKE_LOST):
        compile(devices.CODE % ("cuda:0", 1) + fault, "model.py", "exec")


# -- packing ----------------------------------------------------------------------------------------------------------


def test_every_dependency_is_packed_or_known_to_be_there() -> None:
    names = {pack.name_of(requirement) for requirement in pack.dependencies()}
    assert names > pack.PRESENT
    assert {pack.name_of(requirement) for requirement in pack.wanted()} >= names - pack.PRESENT
    assert "protobuf" in names - pack.PRESENT


def test_the_server_s_imports_are_those_that_are_packed_or_there() -> None:
    imports = {"google.protobuf": "protobuf", "yaml": "pyyaml", "rapidjson": "python-rapidjson"}
    names = {pack.name_of(requirement) for requirement in pack.dependencies()}
    assert {imports.get(name, name) for name in machine.NEEDED} == names


def test_pip_s_command_is_for_the_other_machine(tmp_path: Path) -> None:
    command = pack.command(["flask>=3.0"], tmp_path, "3.12")
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--python-version=3.12"} <= set(command)
    assert command[-1] == "flask>=3.0"


def test_a_wheel_that_does_not_suit_leaves_out_its_package_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_bytes(b"no archive")
    gpu_check.install([broken], tmp_path / "site")
    assert "not installed: broken-1.0-py3-none-any.whl" in capfd.readouterr().err


def test_the_fake_driver_is_found_before_the_real_one(tmp_path: Path) -> None:
    variables = gpu_check.environment(tmp_path, None, on_cpu=True)
    assert variables["PYTHONPATH"].split(":")[0] == variables["PATH"].split(":")[0] == str(FAKES)
    assert gpu_check.is_gpu_there(variables)
