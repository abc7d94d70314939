"""workers/backends/vllm_backend: what keeps a model from loading, said in one sentence; vLLM is not installed here."""

import json
import os
from pathlib import Path

import pytest

from shoal.errors import InternalError
from shoal.model_config.autocomplete import needs_autocomplete
from shoal.model_config.load import read_config
from shoal.model_config.python_backends import python_backend_file
from shoal.workers.backends.python.model import InstanceIdentity, PythonModel


def model(tmp_path: Path, settings: str | None, config: str = "", kind: str = "KIND_MODEL") -> PythonModel:
    version = tmp_path / "words" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(f'backend: "vllm" {config}')
    if settings is not None:
        (version / "model.json").write_text(settings)
    read = read_config(version.parent)
    assert needs_autocomplete(read)
    file = python_backend_file("vllm", None)
    assert file is not None
    made = PythonModel(InstanceIdentity("words", 1, "words_0_0", str(version), str(file), kind), read)
    made.configure(made.auto_complete())
    return made


def test_its_tensors_are_triton_s(tmp_path: Path) -> None:
    config = model(tmp_path, "{}").config
    assert config["model_transaction_policy"]["decoupled"]
    assert {each["name"] for each in config["input"] if not each.get("optional")} == {"text_input"}
    assert {"stream", "sampling_parameters", "exclude_input_in_output"} <= {each["name"] for each in config["input"]}
    assert {"text_output", "finish_reason", "num_output_tokens"} <= {each["name"] for each in config["output"]}


GPUS = 'parameters { key: "GPU_DEVICE_IDS" value { string_value: "%s" } }'


@pytest.mark.parametrize(
    ("settings", "config", "kind", "sentence"),
    [
        (
            '{"model": "x"}',
            "",
            "KIND_MODEL",
            "model 'words' needs vLLM (No module named 'vllm'): install it with `pip install vllm`, or name an "
            "environment that has it by the parameter EXECUTION_ENV_PATH or PYTHON_INTERPRETER",
        ),
        (None, "", "KIND_MODEL", "a JSON object with vLLM's settings"),
        ("[1]", "", "KIND_MODEL", "needs a JSON object in"),
        ('{"model": "x", "tensor_parallel_size": 2}', "", "KIND_GPU", "specify KIND_MODEL"),
        ('{"model": "x", "tensor_parallel_size": 2}', GPUS % "3", "KIND_MODEL", "the engine takes 2 GPUs"),
        ('{"model": "x"}', GPUS % "0,0", "KIND_MODEL", "must be different numbers"),
        ('{"model": "x", "enable_lora": "true"}', "", "KIND_MODEL", "multi_lora.json"),
    ],
)
def test_what_keeps_it_from_loading(
    tmp_path: Path, settings: str | None, config: str, kind: str, sentence: str
) -> None:
    with pytest.raises(InternalError) as refusal:
        model(tmp_path, settings, config, kind).load()
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_backend_in_the_directory_of_backends_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "model.py").write_text(json.dumps(os.name))
    assert python_backend_file("vllm", tmp_path) == tmp_path / "vllm" / "model.py"
