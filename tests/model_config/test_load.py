"""load.py: a model directory to its finished configuration, the whole way."""

import os
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidArgumentError
from shoal.model_config import pbtxt
from shoal.model_config.autocomplete import IOTensor, ModelIO, needs_autocomplete
from shoal.model_config.finish import finish_config
from shoal.model_config.load import parse_override, prepare_config, read_config
from shoal.model_config.messages import Config
from shoal.model_config.support import BACKENDS

MODEL_IO = ModelIO((IOTensor("X", "TYPE_FP32", (-1, 512)),), (IOTensor("Y", "TYPE_FP32", (-1, 10)),))
TENSORS = (
    'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 reshape { } }'
)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True)
    return directory


def write(model_dir: Path, text: str) -> Path:
    (model_dir / "config.pbtxt").write_text(text)
    return model_dir


def test_an_onnx_file_needs_no_configuration(model_dir: Path) -> None:
    (model_dir / "1" / "model.onnx").write_bytes(b"")
    config = read_config(model_dir)
    assert needs_autocomplete(config)
    # The rest is as in tests/end_to_end/sample_configurations.py, which has whole configurations.
    expected = {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 4,
        "default_model_filename": "model.onnx",
    }
    finished = finish_config(config, MODEL_IO)
    assert {name: finished[name] for name in expected} == expected
    for field, tensor in (("input", ("X", "TYPE_FP32", [512])), ("output", ("Y", "TYPE_FP32", [10]))):
        assert [(each["name"], each["data_type"], each["dims"]) for each in finished[field]] == [tensor]
    rest = (
        "runtime input output batch_input batch_output optimization dynamic_batching instance_group cc_model_filenames"
    )
    assert set(finished) == {*expected, *rest.split(), "metric_tags", "parameters", "model_warmup"}
    assert finished["dynamic_batching"] == {
        "preferred_batch_size": [4],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    }
    (group,) = finished["instance_group"]
    assert (group["name"], group["kind"], group["count"], group["gpus"]) == ("m", "KIND_CPU", 2, [])


def test_an_identity_model_is_finished_without_a_look_into_files(model_dir: Path) -> None:
    config = read_config(
        write(model_dir, f'backend: "identity" max_batch_size: 8 {TENSORS.replace("reshape { }", "")}')
    )
    assert not needs_autocomplete(config)
    finished = finish_config(config)
    assert (finished["name"], finished["instance_group"][0]["count"]) == ("m", 1)


def test_the_servers_choices_reach_the_configuration(model_dir: Path) -> None:
    config = read_config(write(model_dir, 'backend: "onnxruntime"'))
    finished = finish_config(config, MODEL_IO, gpus=(0, 1), default_max_batch_size=16)
    assert finished["max_batch_size"] == 16
    assert [(group["kind"], group["count"], group["gpus"]) for group in finished["instance_group"]] == [
        ("KIND_GPU", 1, [0, 1])
    ]


def test_preferred_sizes_may_wait_for_the_batch_size_that_auto_complete_finds(model_dir: Path) -> None:
    config = read_config(write(model_dir, 'backend: "onnxruntime" dynamic_batching { preferred_batch_size: 4 }'))
    assert finish_config(config, MODEL_IO)["dynamic_batching"]["preferred_batch_size"] == [4]


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (
            'name: "n" backend: "identity"',
            InvalidArgumentError,
            "unexpected directory name 'm' for model 'n', directory name must equal model name",
        ),
        (
            'name: "../../etc" backend: "identity"',
            InvalidArgumentError,
            "unexpected directory name 'm' for model '../../etc', directory name must equal model name",
        ),
        (
            "max_batch_size: 8",
            InvalidArgumentError,
            "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
            "Expected model name of the form 'model.<backend_name>'.",
        ),
        (
            'backend: "identity" instance_group { count: 2147483647 }',
            InvalidArgumentError,
            "instance groups of model m ask for 2147483647 instances, each of them a process; "
            "lower 'count' to at most 64 instances in all",
        ),
        (
            'backend: "identity" response_cache { enable: true } model_transaction_policy { decoupled: true }',
            InvalidArgumentError,
            "Response Cache does not currently support model m with 'decoupled' transaction policy. "
            "Please disable the response cache.",
        ),
        (
            'backend: "dali"',
            InvalidArgumentError,
            "unable to find backend library for backend 'dali', try specifying runtime on the model configuration. "
            f"For model 'm' there are: {', '.join(BACKENDS)}",
        ),
    ],
)
def test_what_is_refused_before_a_process_is_started(
    model_dir: Path, text: str, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind) as caught:
        read_config(write(model_dir, text))
    assert str(caught.value) == sentence
    assert sorted(os.listdir(model_dir)) == ["1", "config.pbtxt"]


@pytest.mark.parametrize("text", ['backend: "identity"', 'backend: "onnxruntime"'])
def test_a_configuration_that_stays_incomplete_is_refused(model_dir: Path, text: str) -> None:
    config = read_config(write(model_dir, text), strict=True)
    with pytest.raises(InvalidArgumentError, match=r"^model 'm' has no 'input' in its configuration; "):
        finish_config(config)


def test_strict_means_that_the_backend_is_not_guessed(model_dir: Path) -> None:
    (model_dir / "1" / "model.onnx").write_bytes(b"")
    with pytest.raises(InvalidArgumentError) as caught:
        read_config(model_dir, strict=True)
    assert str(caught.value) == "must specify 'platform' or 'backend' for 'm'"


def test_the_backend_is_looked_for_in_the_first_directory_by_name(model_dir: Path) -> None:
    (model_dir / ".cache").mkdir()
    (model_dir / ".cache" / "model.plan").write_bytes(b"")
    (model_dir / "2").mkdir()
    (model_dir / "2" / "model.py").write_bytes(b"")
    (model_dir / "1" / "model.onnx").mkdir()
    assert read_config(model_dir)["backend"] == "onnxruntime"


def test_a_directory_may_bear_another_name_where_the_models_is_told(model_dir: Path) -> None:
    write(model_dir, 'backend: "identity"')
    assert read_config(model_dir, name="n")["name"] == "n"
    write(model_dir, 'name: "n" backend: "identity"')
    assert read_config(model_dir, name="n")["name"] == "n"
    with pytest.raises(
        InvalidArgumentError, match=r"^unexpected directory name 'k' for model 'n', directory name must"
    ):
        read_config(model_dir, name="k")


def test_a_configuration_may_be_chosen_by_name(model_dir: Path) -> None:
    write(model_dir, 'backend: "identity" max_batch_size: 1')
    (model_dir / "configs").mkdir()
    (model_dir / "configs" / "large.pbtxt").write_text('backend: "identity" max_batch_size: 64')
    chosen = {name: read_config(model_dir, config_name=name)["max_batch_size"] for name in ("large", "small", "")}
    assert chosen == {"large": 64, "small": 1, "": 1}
    (model_dir / "configs" / "small.pbtxt").symlink_to("moved.pbtxt")
    with pytest.raises(InvalidArgumentError, match=r"small\.pbtxt: No such file or directory; "):
        read_config(model_dir, config_name="small")


def test_an_override_takes_the_place_of_the_file(model_dir: Path) -> None:
    write(model_dir, "this is not read")
    override = parse_override(
        '{"backend": "identity", "maxBatchSize": "4", "instance_group": [{"kind": "kind_cpu"}]}', "n"
    )
    config = prepare_config(override, model_dir)
    assert (config["name"], config["max_batch_size"]) == ("n", 4)
    assert [(group["name"], group["kind"]) for group in config["instance_group"]] == [("n_0", "KIND_CPU")]


def test_an_override_is_completed_from_the_files(model_dir: Path) -> None:
    (model_dir / "1" / "model.onnx").write_bytes(b"")
    assert prepare_config(parse_override("{}", "m"), model_dir)["backend"] == "onnxruntime"
    with pytest.raises(InvalidArgumentError, match=r"^must specify 'platform' or 'backend' for 'm'$"):
        prepare_config(parse_override("{}", "m"), model_dir, strict=True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Invalid config override: Expecting value: line 1 column 1 (char 0)"),
        ('{"kind": 1}', 'Invalid config override: Message type "inference.ModelConfig" has no field named "kind"'),
        ('{"name": "n"}', "unexpected directory name 'm' for model 'n', directory name must equal model name"),
    ],
)
def test_an_override_that_is_none(text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_override(text, "m")
    assert str(caught.value).startswith(sentence)


def test_a_configuration_that_points_nowhere_is_a_fault_and_not_an_empty_one(model_dir: Path) -> None:
    (model_dir / "1" / "model.onnx").write_bytes(b"")
    (model_dir / "config.pbtxt").symlink_to("moved.pbtxt")
    with pytest.raises(InvalidArgumentError, match=r"^failed to read text proto from .*: No such file or directory; "):
        read_config(model_dir)


dims = st.lists(st.one_of(st.just(-1), st.integers(1, 64)), min_size=1, max_size=3)
data_types = st.sampled_from(["TYPE_FP32", "TYPE_INT64", "TYPE_STRING", "TYPE_BF16"])
names = st.text("abcXYZ\"'\\\n é", min_size=1, max_size=6)
groups = st.tuples(st.sampled_from(["KIND_AUTO", "KIND_CPU"]), st.integers(0, 8))


@given(
    io=st.lists(st.tuples(names, data_types, dims), min_size=1, max_size=3, unique_by=lambda tensor: tensor[0]),
    max_batch_size=st.integers(0, 64),
    listed=st.lists(groups, max_size=3),
    policy=st.sampled_from([{"all": {}}, {"latest": {"num_versions": 2}}, {"specific": {"versions": [7, 1]}}]),
    parameters=st.dictionaries(names, names, max_size=3),
    delay=st.one_of(st.none(), st.integers(0, 3_600_000_000)),
)
@settings(max_examples=60)
def test_what_is_accepted_reads_back_the_same(
    io: list[tuple[str, str, list[int]]],
    max_batch_size: int,
    listed: list[tuple[str, int]],
    policy: Config,
    parameters: dict[str, str],
    delay: int | None,
) -> None:
    tensors = [{"name": name, "data_type": data_type, "dims": dims} for name, data_type, dims in io]
    given_config: Config = {
        "name": "m",
        "backend": "identity",
        "max_batch_size": max_batch_size,
        "input": tensors,
        "output": tensors,
        "version_policy": policy,
        "instance_group": [{"kind": kind, "count": count} for kind, count in listed],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    if delay is not None:
        given_config["dynamic_batching"] = {"max_queue_delay_microseconds": delay}
    finished = finish_config(pbtxt.to_config(json_format.ParseDict(given_config, pbtxt.new_message())))
    text = text_format.MessageToString(json_format.ParseDict(finished, pbtxt.new_message()))
    again = pbtxt.parse(text, Path("config.pbtxt"))
    assert again == finished
    assert finish_config(again) == finished
