"""checks.py: each rule's sentence, and that a sound configuration passes."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import pbtxt
from shoal.model_config.checks import check, check_unfinished, is_inside
from shoal.model_config.messages import Config
from shoal.model_config.normalise import normalise

TENSORS = (
    'input { name: "X" data_type: TYPE_FP32 dims: 4 } '
    'output { name: "Y" data_type: TYPE_FP32 dims: 4 label_filename: "labels/all.txt" }'
)


def unfinished(text: str, *, tensors: str = TENSORS) -> Config:
    backend = "" if "backend:" in text else 'backend: "identity"'
    return normalise(pbtxt.parse(f'name: "m" {backend} {tensors} {text}', Path("config.pbtxt")))


def priorities(text: str, levels: int = 2) -> str:
    return f"dynamic_batching {{ priority_levels: {levels} default_priority_level: 1 {text} }}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [1, 8] max_queue_delay_microseconds: 3600000000 }",
        "dynamic_batching { default_queue_policy { max_queue_size: 16 } }",
        "instance_group { kind: KIND_CPU count: 64 }",
        "instance_group { kind: KIND_GPU gpus: [0, 1] count: 32 }",
        'default_model_filename: "sub/model.onnx" cc_model_filenames { key: "8.0" value: "a..b.onnx" }',
        priorities("priority_queue_policy { key: 2 value { default_timeout_microseconds: 5 } }", levels=64),
        # What means nothing is not judged, as in Triton.
        "dynamic_batching { default_priority_level: 3 priority_queue_policy { key: 1 value {} } }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
    ],
)
def test_a_sound_configuration_passes(text: str) -> None:
    check_unfinished(unfinished(text))
    check(unfinished(text))


#: Faults that are told before any process is started for the model.
UNFINISHED = [
    (
        'platform: "pytorch_libtorch" backend: "onnxruntime"',
        "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime",
    ),
    (
        'default_model_filename: "../1/model.onnx"',
        "default_model_filename '../1/model.onnx' of model 'm' is outside the version directory; "
        "give a path relative to it, without '..'",
    ),
    (
        'cc_model_filenames { key: "8.0" value: "/bin/sh" }',
        "cc_model_filenames['8.0'] '/bin/sh' of model 'm' is outside the version directory; "
        "give a path relative to it, without '..'",
    ),
    (
        "dynamic_batching { max_queue_delay_microseconds: 9223372036854775808 }",
        "max_queue_delay_microseconds is 9223372036854775808 for m, must be at most 3600000000 (one hour)",
    ),
    (
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 18446744073709551615 } }",
        "default_timeout_microseconds is 18446744073709551615 for m, must be at most 3600000000 (one hour)",
    ),
    (
        priorities("priority_queue_policy { key: 1 value { default_timeout_microseconds: 3600000001 } }"),
        "default_timeout_microseconds is 3600000001 for m, must be at most 3600000000 (one hour)",
    ),
    (
        "dynamic_batching { priority_levels: 3 }",
        "default priority level must be in range [1, 3] for m",
    ),
    (
        "dynamic_batching { priority_levels: 3 default_priority_level: 4 }",
        "default priority level must be in range [1, 3] for m",
    ),
    (
        priorities("preserve_ordering: true"),
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        "dynamic_batching { preserve_ordering: true "
        "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        priorities("priority_queue_policy { key: 3 value {} }"),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        "instance_group { count: -1 kind: KIND_CPU }",
        "instance group m_0 of model m has count -1, must be a positive number of instances",
    ),
    (
        'instance_group { name: "g" kind: KIND_CPU gpus: 0 }',
        "instance group g of model m has kind KIND_CPU but specifies one or more GPUs",
    ),
    (
        "instance_group [ {}, { kind: KIND_MODEL gpus: 0 } ]",
        "instance group m_1 of model m has kind KIND_MODEL but specifies one or more GPUs",
    ),
    (
        'instance_group { profile: "0" }',
        "instance group m_0 of model m and platform specifies profile field which is only supported for TensorRT "
        "models",
    ),
    (
        'platform: "tensorrt_plan" backend: "tensorrt" instance_group { profile: [ "0", "-1" ] }',
        "instance group m_0 of model m and platform tensorrt_plan specifies invalid profile -1. "
        "The field should contain the string representation of a non-negative integer.",
    ),
    (
        'model_warmup { inputs { key: "X" value { input_data_file: "../1/x" } } }',
        "warmup data file '../1/x' for input 'X' in model 'm' is outside directory 'warmup' of the model",
    ),
    (
        "instance_group [ { kind: KIND_CPU count: 64 }, { kind: KIND_AUTO } ]",
        "instance groups of model m ask for 65 instances, each of them a process; "
        "lower 'count' to at most 64 instances in all",
    ),
    (
        "instance_group { kind: KIND_GPU gpus: [0, 1] count: 33 }",
        "instance groups of model m ask for 66 instances, each of them a process; "
        "lower 'count' to at most 64 instances in all",
    ),
    (
        "instance_group { kind: KIND_CPU count: 2147483647 }",
        "instance groups of model m ask for 2147483647 instances, each of them a process; "
        "lower 'count' to at most 64 instances in all",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), UNFINISHED)
def test_a_fault_of_an_unfinished_configuration(text: str, sentence: str) -> None:
    for refuse in (check_unfinished, check):
        with pytest.raises(InvalidArgumentError) as caught:
            refuse(unfinished(text))
        assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 0] }",
            "dynamic batching preferred size must be positive for m",
        ),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: 9 }",
            "dynamic batching preferred size must be <= max batch size for m",
        ),
        (
            "dynamic_batching { preferred_batch_size: 1 }",
            "dynamic batching preferred size must be <= max batch size for m",
        ),
    ],
)
def test_a_fault_that_auto_complete_could_still_mend(text: str, sentence: str) -> None:
    config = unfinished(text)
    check_unfinished(config)
    with pytest.raises(InvalidArgumentError) as caught:
        check(config)
    assert str(caught.value) == sentence


def test_labels_outside_the_model_directory() -> None:
    config = unfinished("")
    config["output"][0]["label_filename"] = "../../../etc/passwd"
    with pytest.raises(InvalidArgumentError) as caught:
        check(config)
    assert str(caught.value) == (
        "label file path '../../../etc/passwd' for output 'Y' in model 'm' is outside model directory"
    )


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("labels.txt", True),
        ("a/../labels.txt", True),
        ("..labels", True),
        ("a/b/c", True),
        ("..", False),
        (".", False),
        ("a/../..", False),
        ("a/../../b", False),
        ("/etc/passwd", False),
        ("//etc/passwd", False),
        ("a\0b", False),
    ],
)
def test_is_inside(path: str, inside: bool) -> None:
    assert is_inside(path) is inside
