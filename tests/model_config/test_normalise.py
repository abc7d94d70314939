"""normalise.py: the defaults one by one, and that a second pass changes nothing."""

import copy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model_config import pbtxt
from shoal.model_config.messages import Config
from shoal.model_config.normalise import normalise, place


def parsed(text: str) -> Config:
    return pbtxt.parse(f'name: "m" {text}', Path("config.pbtxt"))


def groups(config: Config) -> list[tuple[str, str, int, list[int]]]:
    return [(group["name"], group["kind"], group["count"], group["gpus"]) for group in config["instance_group"]]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("", "version_policy", {"latest": {"num_versions": 1}}),
        ("version_policy { all {} }", "version_policy", {"all": {}}),
        (
            "",
            "optimization",
            {
                "priority": "PRIORITY_DEFAULT",
                "gather_kernel_buffer_threshold": 0,
                "eager_batching": False,
                "input_pinned_memory": {"enable": True},
                "output_pinned_memory": {"enable": True},
            },
        ),
        (
            "optimization { graph { level: 1 } input_pinned_memory { enable: false } }",
            "optimization",
            {
                "graph": {"level": 1},
                "priority": "PRIORITY_DEFAULT",
                "gather_kernel_buffer_threshold": 0,
                "eager_batching": False,
                "input_pinned_memory": {"enable": False},
                "output_pinned_memory": {"enable": True},
            },
        ),
    ],
)
def test_defaults(text: str, field: str, value: object) -> None:
    assert normalise(parsed(text))[field] == value


@pytest.mark.parametrize(
    ("text", "preferred"),
    [
        ("max_batch_size: 8 dynamic_batching {}", [8]),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 4] }", [2, 4]),
        ("dynamic_batching {}", []),
    ],
)
def test_preferred_batch_size(text: str, preferred: list[int]) -> None:
    assert normalise(parsed(text))["dynamic_batching"]["preferred_batch_size"] == preferred


def test_no_scheduler_is_added() -> None:
    assert "dynamic_batching" not in normalise(parsed("max_batch_size: 8"))


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        # the implied group bears the model's name, listed ones their position
        ('backend: "onnxruntime"', (), [("m", "KIND_CPU", 2, [])]),
        ('backend: "identity"', (), [("m", "KIND_CPU", 1, [])]),
        ('backend: "onnxruntime" instance_group { kind: KIND_CPU }', (), [("m_0", "KIND_CPU", 2, [])]),
        (
            'backend: "identity" instance_group [ { count: 3 }, { name: "mine" }, { kind: KIND_CPU } ]',
            (),
            [("m_0", "KIND_CPU", 3, []), ("mine", "KIND_CPU", 1, []), ("m_2", "KIND_CPU", 1, [])],
        ),
        # GPUs: the count of onnxruntime is 2 only on the CPU
        ('backend: "onnxruntime"', (0, 1), [("m", "KIND_GPU", 1, [0, 1])]),
        ('backend: "onnxruntime" instance_group { kind: KIND_GPU gpus: 1 }', (0, 1), [("m_0", "KIND_GPU", 1, [1])]),
        ('backend: "onnxruntime" instance_group { kind: KIND_GPU }', (), [("m_0", "KIND_GPU", 1, [])]),
        # KIND_AUTO takes what the backend can
        ('backend: "tensorrt"', (0, 1), [("m", "KIND_GPU", 1, [0, 1])]),
        ('backend: "tensorrt"', (), [("m", "KIND_GPU", 1, [])]),
        ('backend: "fil"', (0, 1), [("m", "KIND_CPU", 1, [])]),
        ('backend: "python"', (0, 1), [("m", "KIND_GPU", 1, [0, 1])]),
        # a kind that the backend cannot serve is the CPU, where it has that
        ('backend: "fil" instance_group { kind: KIND_GPU gpus: 1 count: 3 }', (0, 1), [("m_0", "KIND_CPU", 3, [])]),
        ('backend: "onnxruntime" instance_group { kind: KIND_MODEL count: 1 }', (), [("m_0", "KIND_CPU", 1, [])]),
        ('backend: "python" instance_group { kind: KIND_MODEL }', (), [("m_0", "KIND_MODEL", 1, [])]),
        ('backend: "tensorrt" instance_group { kind: KIND_CPU }', (), [("m_0", "KIND_CPU", 1, [])]),
        # KIND_AUTO that lists a GPU the server lacks runs on the CPU
        ('backend: "onnxruntime" instance_group { gpus: 7 }', (0, 1), [("m_0", "KIND_CPU", 2, [7])]),
        ('backend: "onnxruntime" instance_group { count: 1 kind: KIND_CPU }', (0,), [("m_0", "KIND_CPU", 1, [])]),
        ('backend: "onnxruntime" instance_group { count: -1 }', (), [("m_0", "KIND_CPU", -1, [])]),
    ],
)
def test_instance_groups(text: str, gpus: tuple[int, ...], expected: list[tuple[str, str, int, list[int]]]) -> None:
    assert groups(place(normalise(parsed(text)), gpus)) == expected


def test_before_they_are_placed_groups_of_kind_auto_have_no_count() -> None:
    assert groups(normalise(parsed('backend: "onnxruntime"'))) == [("m", "KIND_AUTO", 0, [])]


def test_an_ensemble_gets_neither_instances_nor_optimization() -> None:
    config = normalise(parsed('platform: "ensemble" ensemble_scheduling {}'))
    assert config["instance_group"] == []
    assert "optimization" not in config


@given(
    backend=st.sampled_from(['backend: "onnxruntime"', 'platform: "onnxruntime_onnx"', 'backend: "identity"', ""]),
    size=st.integers(0, 8),
    kinds=st.lists(st.sampled_from(["KIND_AUTO", "KIND_CPU", "KIND_GPU"]), max_size=3),
    batching=st.sampled_from(["", "dynamic_batching {}", "dynamic_batching { preferred_batch_size: 3 }"]),
    gpus=st.lists(st.integers(0, 3), max_size=2, unique=True),
)
@settings(max_examples=100)
def test_a_second_pass_changes_nothing_and_the_argument_stays(
    backend: str, size: int, kinds: list[str], batching: str, gpus: list[int]
) -> None:
    listed = " ".join(f"instance_group {{ kind: {kind} }}" for kind in kinds)
    given_config = parsed(f"{backend} max_batch_size: {size} {batching} {listed}")
    before = copy.deepcopy(given_config)
    once = place(normalise(given_config), gpus)
    assert place(normalise(once), gpus) == once
    assert given_config == before
