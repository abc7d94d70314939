"""pbtxt.py: what is read, how it is refused, and the JSON form to the last field."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import pbtxt
from shoal.model_config.messages import Config

PATH = Path("repo/m/config.pbtxt")


def parse(text: str) -> Config:
    return pbtxt.parse(text, PATH)


def test_an_empty_configuration_prints_every_field_but_the_sub_messages() -> None:
    assert parse("") == {
        "name": "",
        "platform": "",
        "backend": "",
        "runtime": "",
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        # 64-bit integers are numbers, enums are names
        (
            'input { name: "X" data_type: TYPE_FP32 dims: [ -1, 4294967296 ] }',
            "input",
            [
                {
                    "name": "X",
                    "data_type": "TYPE_FP32",
                    "format": "FORMAT_NONE",
                    "dims": [-1, 4294967296],
                    "is_shape_tensor": False,
                    "allow_ragged_batch": False,
                    "optional": False,
                    "is_non_linear_format_io": False,
                }
            ],
        ),
        # an empty reshape is set, and differs from none
        (
            'output { name: "Y" data_type: TYPE_STRING dims: 1 reshape { shape: [ ] } }',
            "output",
            [
                {
                    "name": "Y",
                    "data_type": "TYPE_STRING",
                    "dims": [1],
                    "reshape": {"shape": []},
                    "label_filename": "",
                    "is_shape_tensor": False,
                    "is_non_linear_format_io": False,
                }
            ],
        ),
        # of a oneof only the member that is set
        ("version_policy { specific { versions: [ 3, 1 ] } }", "version_policy", {"specific": {"versions": [3, 1]}}),
        ("version_policy: { all: {} }", "version_policy", {"all": {}}),
        # map keys are strings, sorted by their number
        (
            "dynamic_batching { priority_queue_policy { key: 10 value {} } priority_queue_policy { key: 9 value {} } }",
            "dynamic_batching",
            {
                "preferred_batch_size": [],
                "max_queue_delay_microseconds": 0,
                "preserve_ordering": False,
                "priority_levels": 0,
                "default_priority_level": 0,
                "priority_queue_policy": {
                    level: {
                        "timeout_action": "REJECT",
                        "default_timeout_microseconds": 0,
                        "allow_timeout_override": False,
                        "max_queue_size": 0,
                    }
                    for level in ("9", "10")
                },
            },
        ),
        # comments, adjacent strings, lists of one without brackets, colons before braces
        (
            '# a comment\nparameters: { key: "a" value: { string_value: "b" "c" } }',
            "parameters",
            {"a": {"string_value": "bc"}},
        ),
        (
            "instance_group [ { kind: KIND_CPU, gpus: 0 } ]",
            "instance_group",
            [
                {
                    "name": "",
                    "kind": "KIND_CPU",
                    "count": 0,
                    "gpus": [0],
                    "secondary_devices": [],
                    "profile": [],
                    "passive": False,
                    "host_policy": "",
                }
            ],
        ),
        ("response_cache {}", "response_cache", {"enable": False}),
    ],
)
def test_the_json_form(text: str, field: str, value: object) -> None:
    assert parse(text)[field] == value


def test_maps_keep_one_order() -> None:
    config = parse(
        "dynamic_batching { priority_queue_policy { key: 10 value {} } priority_queue_policy { key: 9 value {} } }"
    )
    assert list(config["dynamic_batching"]["priority_queue_policy"]) == ["9", "10"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '\n inptu { name: "X" }',
            'line 2, column 2: Message type "inference.ModelConfig" has no field named "inptu". '
            "Did you mean 'input'?",
        ),
        (
            "input { data_type: 99 }",
            "'data_type' is 99, must be one of TYPE_BF16, TYPE_BOOL, TYPE_FP16, TYPE_FP32, TYPE_FP64, TYPE_INT16, "
            "TYPE_INT32, TYPE_INT64, TYPE_INT8, TYPE_INVALID, TYPE_STRING, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, "
            "TYPE_UINT8",
        ),
        (
            "input { data_type: FP32 }",
            "line 1, column 20: 'input { data_type: FP32 }': Enum type \"inference.DataType\" has no value named FP32. "
            "Did you mean 'TYPE_FP32'?",
        ),
        (
            "input { data_type: TYPE_FLOAT }",
            "line 1, column 20: 'input { data_type: TYPE_FLOAT }': Enum type \"inference.DataType\" has no value named "
            "TYPE_FLOAT. Did you mean 'TYPE_FP32'?",
        ),
        (
            "version_policy { zzzzzz {} }",
            'line 1, column 18: Message type "inference.ModelVersionPolicy" has no field named "zzzzzz". '
            "It knows: all, latest, specific.",
        ),
        (
            "max_batch_size: 99999999999",
            "line 1, column 17: 'max_batch_size: 99999999999': Value out of range: 99999999999",
        ),
        ("input { data_type: 99999999999999999999 }", "Value out of range: 99999999999999999999"),
        (
            'name: "a"\nname: "b"',
            'line 2, column 7: Message type "inference.ModelConfig" should not have multiple "name" fields.',
        ),
    ],
)
def test_a_parse_error_says_where_and_what_to_write(text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse(text)
    assert str(caught.value) == f"failed to read text proto from repo/m/config.pbtxt: {sentence}"


@pytest.mark.parametrize(
    "text",
    [
        'name: "x',
        "input [ { dims: [1] }",
        "input { " * 10_000,
        "name: \0",
        "\x0a\x01\x02\x03",
        "dynamic_batching {} sequence_batching {}",
        "dynamic_batching { default_queue_policy { max_queue_size: -1 } }",
        "instance_group { count: 2147483648 }",
        "instance_group { kind: 99 }",
    ],
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^failed to read text proto from repo/m/config\.pbtxt: "):
        parse(text)


def test_json_means_what_the_same_text_proto_means() -> None:
    text = """
        name: "m" platform: "onnxruntime_onnx" max_batch_size: 8
        version_policy { specific { versions: [ 1, 3 ] } }
        input { name: "X" data_type: TYPE_FP32 dims: [ -1, 4294967296 ] format: FORMAT_NCHW reshape { shape: [ ] } }
        dynamic_batching {
            max_queue_delay_microseconds: 9007199254740993
            priority_queue_policy { key: 10 value { timeout_action: DELAY } }
        }
        instance_group { kind: KIND_CPU count: 2 }
        parameters { key: "a" value { string_value: "b" } }
        model_warmup { batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }
    """
    given = {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "maxBatchSize": 8,  # camelCase too
        "version_policy": {"specific": {"versions": ["1", 3]}},  # 64 bits as text or number
        "input": [
            {
                "name": "X",
                "data_type": "type_fp32",  # enums in any case
                "dims": [-1, "4294967296"],
                "format": 2,  # or by number
                "reshape": {"shape": []},
            }
        ],
        "dynamic_batching": {
            "max_queue_delay_microseconds": "9007199254740993",
            "priority_queue_policy": {"10": {"timeout_action": "delay"}},
        },
        "instance_group": [{"kind": "kind-cpu", "count": 2}],
        "parameters": {"a": {"string_value": "b"}},
        "modelWarmup": [{"batch_size": 1, "inputs": {"X": {"dataType": "TYPE_FP32", "dims": [4], "zero_data": True}}}],
        "metric_tags": None,
    }
    assert pbtxt.parse_json(json.dumps(given)) == parse(text)


def test_what_config_prints_is_read_back() -> None:
    config = parse('name: "m" input { name: "X" dims: 3 } ensemble_scheduling { step { model_version: -1 } }')
    assert pbtxt.parse_json(json.dumps(config)) == config
    assert pbtxt.parse_json("{}") == parse("")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("[]", "it is not a JSON object"),
        ('{"name": 7}', "Failed to parse name field: expected string or bytes-like object"),
        ('{"inptu": []}', 'Message type "inference.ModelConfig" has no field named "inptu"'),
        ('{"input": [{"data_type": "FP32"}]}', "Invalid enum value FP32 for enum type inference.DataType"),
        ('{"input": [{"data_type": 99}]}', "'data_type' is 99, must be one of TYPE_BF16"),
        ('{"max_batch_size": 1.5}', "Couldn't parse integer: 1.5"),
        ('{"max_batch_size": true}', "Bool value True is not acceptable for integer field"),
        ('{"input": {"name": "X"}}', "repeated field input must be in [] which is"),
        ('{"parameters": []}', "Map field parameters must be in a dict which is []"),
        ('{"dynamic_batching": {}, "sequence_batching": {}}', "should not have multiple"),
        ("{" + " " * (1 << 20) + "}", "it is larger than 1048576 bytes; a model configuration is a short text"),
    ],
)
def test_json_that_is_no_configuration_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        pbtxt.parse_json(text)
    assert sentence in str(caught.value)


def test_json_that_is_nested_too_deep_is_refused() -> None:
    """By a limit of frames; from Python 3.14 on by the size of the stack."""
    with pytest.raises(InvalidArgumentError, match=r"recursion|Stack overflow"):
        pbtxt.parse_json('{"input": ' + "[" * 100_000 + "]" * 100_000 + "}")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b" " * ((1 << 20) + 1), "it is larger than 1048576 bytes; a model configuration is a short text"),
        (b'name: "\xff"', "byte 7 is not UTF-8; save the file as plain UTF-8 text"),
    ],
)
def test_a_file_that_is_no_short_text_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(data)
    with pytest.raises(InvalidArgumentError) as caught:
        pbtxt.read(path)
    assert str(caught.value) == f"failed to read text proto from {path}: {reason}"


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(b" " * (1 << 20))
    assert pbtxt.read(path) == " " * (1 << 20)


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path, num_descriptors: Callable[[], int]) -> None:
    fifo, device, directory, dangling = (tmp_path / name for name in ("fifo", "device", "directory", "dangling"))
    os.mkfifo(fifo)
    device.symlink_to("/dev/zero")
    directory.mkdir()
    dangling.symlink_to("nowhere")
    before = num_descriptors()
    reasons = []
    for path in (fifo, device, directory, dangling):
        with pytest.raises(InvalidArgumentError) as caught:
            pbtxt.read(path)
        reasons.append(str(caught.value).removeprefix(f"failed to read text proto from {path}: ").split(";")[0])
    no_file = "it is not a regular file"
    assert reasons == [no_file, no_file, "Is a directory", "No such file or directory"]
    assert num_descriptors() == before


def test_the_configuration_is_json() -> None:
    config = parse('input { name: "ä" dims: 9007199254740993 }')
    assert json.loads(json.dumps(config)) == config
