"""scripts/gpu-check without a GPU: it says so, and the script itself works."""

import os
import subprocess
from pathlib import Path

import pytest

from scripts import gpu_check
from shoal.placement import Gpu, Machine

GPU = Gpu(3, "GPU-1bb", "9.0", (0, 1))
ROOT = Path(__file__).parents[2]
WITHOUT = not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/dxg").exists()


@pytest.mark.skipif(not WITHOUT, reason="NOT CHECKED: what gpu-check prints without a GPU, since there is one")
def test_without_a_gpu_it_says_so_and_installs_nothing() -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "gpu-check")], capture_output=True, text=True, timeout=60, check=False
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
    assert gpu_check.is_beside(said, GPU) is expected


def test_the_models_are_of_the_gpu_that_is_used(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    repository = gpu_check.make_repository(tmp_path / "repository", tmp_path / "model.onnx", ["onnxruntime"], GPU)
    configs = [(repository / name / "config.pbtxt").read_text() for name in ("onnxruntime", "devices")]
    assert all("instance_group { kind: KIND_GPU gpus: [3] " in config for config in configs)


@pytest.mark.parametrize("before", [None, "1,3"])
def test_only_what_is_measured_bare_sees_one_gpu(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    for gpu, inside in ((GPU, "GPU-1bb"), (None, before)):
        with gpu_check.seeing_only(gpu):
            assert os.environ.get("CUDA_VISIBLE_DEVICES") == inside
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


@pytest.mark.gpu
def test_a_real_gpu_is_right() -> None:
    assert gpu_check.main(["--seconds", "1"]) == 0
