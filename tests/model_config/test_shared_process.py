"""shared_process.py: which models may have their instances in one process."""

import pytest

from shoal.model_config.messages import Config
from shoal.model_config.shared_process import faults, instances_share_process


def config(backend: str = "onnxruntime", **parameters: str) -> Config:
    said = {name: {"string_value": text} for name, text in parameters.items()}
    return {"name": "m", "backend": backend, "platform": "", "parameters": said}


def test_instances_share_a_process_only_where_the_model_says_so() -> None:
    assert not instances_share_process(config())
    assert not instances_share_process(config(instances_share_process="false"))
    assert instances_share_process(config(instances_share_process="true"))


@pytest.mark.parametrize("backend", ["identity", "onnxruntime", "python", "pytorch", "tensorrt", "a_backend_in_python"])
def test_backends_that_can(backend: str) -> None:
    assert list(faults(config(backend, instances_share_process="true"))) == []


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (config("openvino", instances_share_process="true"), "and not for 'openvino'"),
        (config("torchserve", instances_share_process="true"), "and not for 'torchserve'"),
        ({**config("", instances_share_process="true"), "platform": "ensemble", "ensemble_scheduling": {}}, "ensemble"),
        (config(instances_share_process="true", max_requests="5"), "'max_requests' and 'max_rss'"),
        (config(instances_share_process="true", max_rss="1GiB"), "'max_requests' and 'max_rss'"),
    ],
)
def test_refusals(said: Config, sentence: str) -> None:
    (found,) = faults(said)
    assert sentence in found
    assert "model 'm'" in found
