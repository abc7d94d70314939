"""scripts/gpu-check without a GPU: it says so, and the script itself works."""

import subprocess
from pathlib import Path

import pytest

from scripts import gpu_check
from shoal.placement import Gpu, Machine

ROOT = Path(__file__).parents[2]
WITHOUT = not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/dxg").exists()


@pytest.mark.skipif(not WITHOUT, reason="there is a GPU here, which this would measure for minutes")
def test_without_a_gpu_it_says_so_and_installs_nothing() -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "gpu-check")], capture_output=True, text=True, timeout=10, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "There is no GPU here: NVIDIA's driver is not loaded. Nothing has been checked.\n"


def test_a_driver_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_check, "find_machine", lambda *_arguments: Machine((0,)))
    assert gpu_check.main([]) == 2
    assert capsys.readouterr().err.startswith("There is no GPU here that NVIDIA's driver tells of.")


def test_the_table_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--on-cpu", "--seconds", "0.1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(cells[0]) == gpu_check.HEADINGS
    assert [row[:2] for row in cells[2:]] == [["onnxruntime", "1"], ["onnxruntime", "8"], ["onnxruntime", "32"]]
    assert all(row[2].startswith("right") for row in cells[2:])


@pytest.mark.parametrize(
    ("said", "expected"),
    [("GPU-1bb [0, 1]", True), ("GPU-1bb [1]", True), ("GPU-1bb [1, 4]", False), ("None [0]", False)],
)
def test_what_an_instance_says_of_itself(said: str, expected: bool) -> None:
    machine = Machine((0, 1, 4), (Gpu(0, "GPU-1bb", "9.0", (0, 1)),))
    assert gpu_check.is_beside(said, machine) is expected


@pytest.mark.gpu
def test_a_real_gpu_is_right() -> None:
    assert gpu_check.main(["--seconds", "1"]) == 0
