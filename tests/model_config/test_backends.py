"""backends.py: platform, backend and file name from each other, from the files, from the name."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import backends, pbtxt
from shoal.model_config.messages import Config


def config(text: str) -> Config:
    return pbtxt.parse(f'name: "m.x" {text}', Path("config.pbtxt"))


def three(config: Config) -> tuple[str, str, str]:
    return config["platform"], config["backend"], config["default_model_filename"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('backend: "onnxruntime"', ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ('platform: "onnxruntime_onnx"', ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        (
            'backend: "onnxruntime" default_model_filename: "a.onnx"',
            ("onnxruntime_onnx", "onnxruntime", "a.onnx"),
        ),
        ('platform: "torch_aoti"', ("torch_aoti", "pytorch", "model.pt2")),
        ('platform: "libtorch"', ("libtorch", "pytorch", "model.pt")),
        ('platform: "tensorrt_plan"', ("tensorrt_plan", "tensorrt", "model.plan")),
        ('backend: "pytorch"', ("pytorch_libtorch", "pytorch", "model.pt")),
        ('backend: "pytorch" runtime: "model.py"', ("", "pytorch", "")),
        ('platform: "pytorch_libtorch" runtime: "model.py"', ("pytorch_libtorch", "pytorch", "")),
        ('backend: "python"', ("", "python", "model.py")),
        ('backend: "openvino"', ("", "openvino", "model.xml")),
        ('backend: "identity"', ("", "identity", "")),
        ('platform: "caffe2_netdef"', ("caffe2_netdef", "", "")),
        ('platform: "onnxruntime_onnx" backend: "python"', ("onnxruntime_onnx", "python", "model.py")),
        ('platform: "python" backend: "python"', ("python", "python", "model.py")),
        ("", ("", "", "")),
    ],
)
def test_completed_from_each_other(text: str, expected: tuple[str, str, str]) -> None:
    assert three(backends.complete(config(text))) == expected


@pytest.mark.parametrize(
    ("names", "platform", "backend"),
    [
        ({"model.onnx", "labels.txt"}, "onnxruntime_onnx", "onnxruntime"),
        ({"model.plan", "model.onnx"}, "tensorrt_plan", "tensorrt"),
        ({"model.py", "model.pt", "model.pt2"}, "pytorch_libtorch", "pytorch"),
        ({"model.pt2"}, "torch_aoti", "pytorch"),
        ({"model.py"}, "", "python"),
        ({"weights.bin"}, "", "x"),
    ],
)
def test_detected_from_the_files_or_else_the_name(names: set[str], platform: str, backend: str) -> None:
    detected = backends.detect(config(""), names)
    assert (detected["platform"], detected["backend"]) == (platform, backend)


@pytest.mark.parametrize("name", ["m", "m."])
def test_a_name_that_tells_nothing(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        backends.detect({**config(""), "name": name}, ())
    assert str(caught.value) == (
        f"Invalid model name: Could not determine backend for model '{name}' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", ["must specify 'platform' or 'backend' for 'm.x'"]),
        ('platform: "caffe2_netdef"', ["unexpected platform type 'caffe2_netdef' for m.x"]),
        ('platform: "python"', ["unexpected platform type 'python' for m.x"]),
        (
            'platform: "pytorch_libtorch" backend: "onnxruntime"',
            ["unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime"],
        ),
        (
            'platform: "onnx" backend: "onnxruntime"',
            ["unexpected 'platform' and 'backend' pair, got:onnx, onnxruntime. Did you mean 'onnxruntime_onnx'?"],
        ),
        # A backend that has no platform of its own takes any, as in Triton.
        ('platform: "caffe2_netdef" backend: "x"', []),
        ('platform: "python" backend: "python"', []),
        ('platform: "onnxruntime_onnx" backend: "python"', []),
        (
            'platform: "ensemble" backend: "python"',
            ["Ensemble model 'm.x' must have platform type 'ensemble' and empty backend type"],
        ),
        (
            'backend: "python" ensemble_scheduling {}',
            ["Ensemble model 'm.x' must have platform type 'ensemble' and empty backend type"],
        ),
        ('platform: "ensemble" ensemble_scheduling {}', []),
        ('platform: "onnxruntime_onnx" backend: "onnxruntime"', []),
        ('backend: "identity"', []),
    ],
)
def test_disagreements(text: str, sentences: list[str]) -> None:
    assert list(backends.disagreements(config(text))) == sentences
