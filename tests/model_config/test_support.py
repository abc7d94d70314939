"""support.py: every row of the table refuses the field it names, and its default passes."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.model_config import pbtxt
from shoal.model_config.messages import Config
from shoal.model_config.support import BACKENDS, FEATURES, Unsupported, check_support

REFUSED = {
    "ensemble_scheduling.step[].model_namespace": 'ensemble_scheduling { step { model_namespace: "n" } }',
    "sequence_batching.state[].use_growable_memory": "sequence_batching { state { use_growable_memory: true } }",
    "input[].allow_ragged_batch": 'input [ { name: "a" }, { name: "b" allow_ragged_batch: true } ]',
    "input[].is_shape_tensor": "input { is_shape_tensor: true }",
    "output[].is_shape_tensor": "output { is_shape_tensor: true }",
    "input[].is_non_linear_format_io": "input { is_non_linear_format_io: true }",
    "output[].is_non_linear_format_io": "output { is_non_linear_format_io: true }",
    "batch_input": "batch_input { kind: BATCH_ELEMENT_COUNT }",
    "batch_output": "batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE }",
    "instance_group[].passive": "instance_group { passive: true }",
    "instance_group[].secondary_devices": "instance_group { secondary_devices { device_id: 0 } }",
    "model_operations.op_library_filename": 'model_operations { op_library_filename: "libops.so" }',
    "parameters.TRITON_BATCH_STRATEGY_PATH": (
        'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/lib/x.so" } }'
    ),
    "model_repository_agents.agents": 'model_repository_agents { agents { name: "checksum" } }',
}


def parsed(text: str) -> Config:
    return pbtxt.parse(f'name: "m" {text}', Path("config.pbtxt"))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.path)
def test_a_feature_is_refused_by_its_field(feature: Unsupported) -> None:
    path, _, reason, _ = feature
    with pytest.raises(UnsupportedError) as caught:
        check_support(parsed(f'backend: "openvino" {REFUSED[path]}'))
    assert str(caught.value) == f"model 'm' sets '{path}', which is not supported: {reason}"


def test_shape_tensors_are_for_tensorrt() -> None:
    check_support(parsed('backend: "tensorrt" input { is_shape_tensor: true } output { is_shape_tensor: true }'))


def test_python_models_get_their_requests_one_by_one_so_they_may_differ() -> None:
    check_support(parsed('backend: "python" input { name: "a" dims: -1 allow_ragged_batch: true }'))


def test_every_refused_configuration_has_its_row() -> None:
    assert [feature.path for feature in FEATURES] == list(REFUSED)


@pytest.mark.parametrize(
    "text",
    [
        "dynamic_batching { default_queue_policy { max_queue_size: 16 } max_queue_delay_microseconds: 100 }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 2 value {} } }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { default_timeout_microseconds: 9 } }",
        'input { name: "X" optional: true } output { name: "Y" label_filename: "labels.txt" }',
        'instance_group { rate_limiter { priority: 1 resources { name: "R" count: 1 } } host_policy: "numa0" }',
        'model_warmup { name: "zeros" batch_size: 1 inputs { key: "X" value { zero_data: true } } }',
        "response_cache {} model_transaction_policy {} model_operations {} model_repository_agents {}",
        'parameters { key: "intra_op_thread_count" value { string_value: "1" } } metric_tags { key: "a" value: "b" }',
        'runtime: "libtriton_identity.so"',
    ],
)
def test_what_is_served_passes(text: str) -> None:
    check_support(parsed(f'backend: "identity" {text}'))


def test_a_backend_may_have_another_runtime() -> None:
    check_support(parsed('backend: "pytorch" runtime: "model.py"'))


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("python", "MODEL"), ("python", "GPU"), ("onnxruntime", "GPU"), ("identity", "AUTO"), ("onnxruntime", "CPU")],
)
def test_kinds_that_a_backend_takes(backend: str, kind: str) -> None:
    check_support(parsed(f'backend: "{backend}" instance_group {{ kind: KIND_{kind} }}'))


def test_a_kind_that_a_backend_does_not_take_is_refused_with_tritons_sentence_where_there_is_no_cpu() -> None:
    check_support(parsed('backend: "onnxruntime" instance_group { name: "g" kind: KIND_MODEL }'))
    with pytest.raises(UnsupportedError) as caught:
        check_support(parsed('backend: "tensorrt" instance_group { name: "g" kind: KIND_CPU }'))
    assert str(caught.value) == (
        "instance_group kind KIND_CPU not supported: group 'g' of model 'm' runs on the backend 'tensorrt', which "
        "takes KIND_GPU"
    )


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (
            'backend: "dali"',
            InvalidArgumentError,
            "unable to find backend library for backend 'dali', try specifying runtime on the model configuration. "
            f"For model 'm' there are: {', '.join(BACKENDS)}",
        ),
        (
            'platform: "ensemble"',
            InvalidArgumentError,
            "unable to find backend library for backend 'ensemble', try specifying runtime on the model configuration. "
            f"For model 'm' there are: {', '.join(BACKENDS)}",
        ),
        (
            'backend: "onnxruntime" runtime: "model.py"',
            UnsupportedError,
            "unable to find backend library 'model.py' for model 'm': the backend 'onnxruntime' is built in; "
            "remove 'runtime' from its configuration",
        ),
    ],
)
def test_backends_and_runtimes_that_are_not_there(text: str, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind) as caught:
        check_support(parsed(text))
    assert str(caught.value) == sentence
