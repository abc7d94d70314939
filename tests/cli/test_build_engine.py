"""The verb `build-engine`, where there is no GPU: what is understood, what is refused, and how."""

from pathlib import Path

import pytest

from shoal.cli.build_engine import build_engine


def said(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_without_tensorrt_its_command_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").touch()
    assert build_engine([str(tmp_path / "m.onnx"), str(tmp_path / "m.plan")], environ={}) == 1
    sentence = said(capsys)
    assert sentence.startswith("engines cannot be built here: No module named '")
    assert "'. Install it with: pip install 'shoal[tensorrt]'\nUsage: shoal build-engine <model.onnx>" in sentence
    assert not (tmp_path / "m.plan").exists()


def test_help_shows_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        build_engine(["--help"], environ={})
    printed = capsys.readouterr().out
    assert "shoal build-engine model.onnx model.plan --max-batch-size 32 --fp16\n" in printed
    assert "the first of CUDA_VISIBLE_DEVICES, else CUDA's device 0" in " ".join(printed.split())
