"""Triton's parameters for TensorFlow, each by itself; TensorFlow is not needed."""

from typing import Any

import pytest

from shoal.errors import InternalError, InvalidArgumentError, UnsupportedError
from shoal.workers.backends.backend import Device
from shoal.workers.backends.tensorflow_options import TensorflowSettings, chosen_signature, tensorflow_settings
from tests.workers.worker_harness import model, model_config

CPU = Device("KIND_CPU", 0, (2, 3, 5))


def settings(
    parameters: dict[str, str] | None = None, backend_config: dict[str, str] | None = None, **fields: Any
) -> TensorflowSettings:
    config = model_config([], [], parameters=parameters, **fields)
    return tensorflow_settings(model(config, backend_config=backend_config), CPU)


def test_the_defaults_follow_the_cores() -> None:
    assert settings() == TensorflowSettings(
        is_graphdef=False,
        num_intra_threads=3,
        num_inter_threads=3,
        uses_per_session_threads=False,
        graph_tag="serve",
        signature_def="serving_default",
        init_ops_file="",
        jit_level=0,
        allows_soft_placement=True,
    )


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("TF_NUM_INTRA_THREADS", "5", "num_intra_threads", 5),
        ("TF_NUM_INTRA_THREADS", "0", "num_intra_threads", 3),
        ("TF_NUM_INTER_THREADS", "1", "num_inter_threads", 1),
        ("TF_USE_PER_SESSION_THREADS", "Yes", "uses_per_session_threads", True),
        ("TF_USE_PER_SESSION_THREADS", "off", "uses_per_session_threads", False),
        ("TF_GRAPH_TAG", "mine", "graph_tag", "mine"),
        ("TF_SIGNATURE_DEF", "label", "signature_def", "label"),
        ("TF_INIT_OPS_FILE", "init_ops.json", "init_ops_file", "init_ops.json"),
        ("MAX_SESSION_SHARE_COUNT", "4", "graph_tag", "serve"),
    ],
)
def test_parameters(key: str, value: str, field: str, expected: Any) -> None:
    assert getattr(settings({key: value}), field) == expected


def test_what_the_command_line_says() -> None:
    assert not settings(backend_config={"allow-soft-placement": "false"}).allows_soft_placement


@pytest.mark.parametrize(("level", "jit_level"), [(-1, -1), (0, 0), (1, 1), (2, 2), (7, 2)])
def test_the_graphs_level_is_xlas(level: int, jit_level: int) -> None:
    assert settings(optimization={"graph": {"level": level}}).jit_level == jit_level


def test_the_platform_says_what_the_file_is() -> None:
    assert settings(platform="tensorflow_graphdef").is_graphdef


def test_only_the_cpu() -> None:
    with pytest.raises(UnsupportedError) as caught:
        tensorflow_settings(model(model_config([], [])), Device("KIND_GPU", 0, (0,)))
    assert str(caught.value) == "unable to load model 'm', TensorFlow models are served on KIND_CPU only"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("TF_NUM_INTRA_THREADS", "-1", "non-negative number"),
        ("TF_NUM_INTER_THREADS", "two", "non-negative number"),
        ("MAX_SESSION_SHARE_COUNT", "0", "positive number"),
        ("TF_USE_PER_SESSION_THREADS", "maybe", "'true' or 'false'"),
        ("TF_INIT_OPS_FILE", "../init_ops.json", "name of a file in the model's directory or its version's"),
    ],
)
def test_a_value_that_is_none_is_named(key: str, value: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings({key: value})
    assert str(caught.value) == f"parameter '{key}' must be {expected} for TensorFlow model 'm'"


def test_accelerators_of_gpus_are_ignored_and_those_of_cpus_refused() -> None:
    on_gpus = {"execution_accelerators": {"gpu_execution_accelerator": [{"name": "tensorrt"}]}}
    assert settings(optimization=on_gpus) == settings()
    with pytest.raises(
        InvalidArgumentError, match=r"^CPU Execution Accelerator is not supported in TensorFlow backend$"
    ):
        settings(optimization={"execution_accelerators": {"cpu_execution_accelerator": [{"name": "openvino"}]}})


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["a", "serving_default", "z"], "serving_default"),
        (["__saved_model_init_op", "z", "predict"], "predict"),
    ],
)
def test_the_signature_that_is_served(names: list[str], chosen: str) -> None:
    assert chosen_signature(names, settings(), "m") == chosen


def test_a_model_without_a_signature_has_tritons_sentence() -> None:
    with pytest.raises(InternalError) as caught:
        chosen_signature(["__saved_model_init_op", "__saved_model_train_op"], settings({"TF_SIGNATURE_DEF": "s"}), "m")
    assert str(caught.value) == "unable to load model 'm', expected 's' signature"
